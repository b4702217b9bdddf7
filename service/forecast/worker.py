"""The program of the forecast process (:mod:`service.forecast.process`).

It has no threads, so that it can fork a worker for each core that it may use when a forecast is worth it.
"""

import gc
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.base import Policy
from service.forecast.arrivals import NO_RHYTHM, Rhythm
from service.forecast.failures import NO_FAILURES, Failures
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, forecast
from service.history.snapshot import WorldSnapshot
from service.runtime.child import serve
from service.runtime.workers import cores

NICENESS = 10
"""Niceness of the process: scheduling and training have precedence."""

_ALLOCATIONS_A_COLLECTION = 200_000
"""Garbage collection threshold. At the default threshold collections take a tenth of the time and find little."""


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a forecast, and its time limit in seconds."""

    world: WorldSnapshot
    policy: Policy[Any]
    dump: dict[str, Any]
    options: ForecastOptions
    timeout_s: float
    rhythm: Rhythm = NO_RHYTHM
    failures: Failures = NO_FAILURES


def answer(question: Question, parent: int | None = None) -> Forecast:
    """Compute the forecast. It stops after its time limit, or when ``parent`` is no longer the parent process.

    Raises :class:`NoForecast`.
    """
    deadline_s = time.monotonic() + question.timeout_s

    def orphaned() -> bool:
        return parent is not None and os.getppid() != parent

    here = os.getpid()

    def keep_going() -> bool:
        # Workers end with this process.
        return time.monotonic() < deadline_s and (os.getpid() != here or not orphaned())

    def end_with_parent() -> None:
        if orphaned():
            raise NoForecast("The service has ended.")

    return forecast(
        question.world,
        question.policy,
        question.dump,
        question.options,
        keep_going,
        rhythm=question.rhythm,
        failures=question.failures,
        workers=cores(),
        tick=end_with_parent,
    )


def main() -> None:
    """Answer questions until the input ends."""
    parent = os.getppid()
    os.nice(NICENESS)
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION)
    serve(partial(answer, parent=parent), NoForecast)


if __name__ == "__main__":
    main()
