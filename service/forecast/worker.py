"""The program of the process that makes forecasts (:mod:`service.forecast.process`).

Sampling the futures of a long queue there does not hold the interpreter lock of the scheduling loop.
"""

import gc
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.base import Policy
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, forecast
from service.history.snapshot import WorldSnapshot
from service.runtime.child import serve

NICENESS = 10
"""Scheduling and training come first."""

_ALLOCATIONS_A_COLLECTION = 200_000
"""Futures make hardly any cyclic garbage; collections at the default threshold take a tenth of the time."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a forecast is made from, and the seconds it may take."""

    world: WorldSnapshot
    policy: Policy[Any]
    dump: dict[str, Any]
    options: ForecastOptions
    timeout_s: float


Answer = Forecast | str
"""A forecast, or why there is none."""


def answer(question: Question, parent: int | None = None) -> Answer:
    """Make the forecast. It stops when its time is over, or when ``parent`` is no longer the parent process."""
    deadline_s = time.monotonic() + question.timeout_s

    def keep_going() -> bool:
        return time.monotonic() < deadline_s and (parent is None or os.getppid() == parent)

    try:
        return forecast(question.world, question.policy, question.dump, question.options, keep_going)
    except NoForecast as error:
        return str(error)


def main() -> None:
    """Answer questions until the input ends."""
    parent = os.getppid()
    os.nice(NICENESS)
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION)
    serve(partial(answer, parent=parent))


if __name__ == "__main__":
    main()
