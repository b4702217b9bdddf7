"""Forecasts made in a process of their own: the scheduling loop goes on undisturbed.

The process starts with the first forecast and stays. It ends when this one does: its input ends, and it checks for its parent
while it computes.
"""

import pickle
import sys
from typing import Any

from policies.base import Policy
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast
from service.forecast.worker import Answer, Question
from service.history.snapshot import WorldSnapshot
from service.runtime.child import Child, ChildClosed, ChildLost

GRACE_S = 20.0
"""Beyond the time limit, for one decision that takes long. Then the process is taken to hang."""


class ForecastProcess:
    """Implements :class:`service.forecast.forecaster.Compute`. Callers take turns; safe to call from several threads."""

    def __init__(self) -> None:
        self._child = Child([sys.executable, "-m", "service.forecast.worker"])

    def __call__(
        self,
        world: WorldSnapshot,
        policy: Policy[Any],
        dump: dict[str, Any],
        options: ForecastOptions,
        timeout_s: float,
    ) -> Forecast:
        """Make a forecast. Raises :class:`NoForecast`, also where the process died."""
        question = pickle.dumps(Question(world, policy, dump, options, timeout_s))
        try:
            answer: Answer = self._child.ask(question, timeout_s + GRACE_S)
        except ChildLost as error:
            raise NoForecast("The process that makes forecasts has ended; ask again.") from error
        except ChildClosed as error:
            raise NoForecast("The service is shutting down.") from error
        if isinstance(answer, str):
            raise NoForecast(answer)
        return answer

    def close(self) -> None:
        """End the process; nothing starts afterwards, and a forecast under way is given up."""
        self._child.close()
