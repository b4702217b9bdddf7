"""Computes forecasts in a separate process, so that they do not slow the scheduling loop.

The process starts with the first forecast. It ends with its parent: its input ends, and it checks its parent while it computes.
"""

import pickle
import sys

from service.forecast.forecast import Forecast, NoForecast
from service.forecast.worker import Question
from service.runtime.child import Child, ChildClosed, ChildLost
from service.runtime.limited_process import ONE_THREAD

GRACE_S = 20.0
"""Added to the time limit, for one long decision. After it the process is killed."""


class ForecastProcess:
    """Implements :class:`service.forecast.forecaster.Compute`. Callers take turns; safe to call from several threads."""

    def __init__(self) -> None:
        self._child = Child([sys.executable, "-m", "service.forecast.worker"], ONE_THREAD)

    def __call__(self, question: Question) -> Forecast:
        """Compute a forecast. Raises :class:`NoForecast`, also if the process ended."""
        try:
            found: Forecast = self._child.ask(pickle.dumps(question), question.timeout_s + GRACE_S)
        except ChildLost as error:
            raise NoForecast("The forecast process has ended; try again.") from error
        except ChildClosed as error:
            raise NoForecast("The service is shutting down.") from error
        return found

    def close(self) -> None:
        """End the process. A forecast in progress fails, and no process starts afterwards."""
        self._child.close()
