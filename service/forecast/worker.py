"""A process that makes forecasts: questions on standard input, answers on standard output, until the input ends.

It is the service's own child (:mod:`service.forecast.process`), so that the futures of a long queue never take the
interpreter from the scheduling loop. Both ends run the same program; nothing of it is a format.
"""

import gc
import os
import pickle
import sys
import time
from dataclasses import dataclass
from typing import IO, Any

from policies.base import Policy
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, forecast
from service.history.snapshot import WorldSnapshot

NICENESS = 10
"""Whoever schedules and whoever trains comes first."""

_LENGTH_BYTES = 8

_ALLOCATIONS_A_COLLECTION = 200_000
"""Futures make hardly any cyclic garbage, and looking for it at the usual pace costs a tenth of the time."""


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


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Write a message with its length in front."""
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(message)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the stream's end, also where that cuts a message off."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "big")
    message = stream.read(size)
    return message if len(message) == size else None


def answer(question: Question, parent: int | None = None) -> Answer:
    """Make the forecast. It is given up when its time is over, or when process ``parent`` is not ours any more."""
    deadline_s = time.monotonic() + question.timeout_s

    def keep_going() -> bool:
        return time.monotonic() < deadline_s and (parent is None or os.getppid() == parent)

    try:
        return forecast(question.world, question.policy, question.dump, question.options, keep_going)
    except NoForecast as error:
        return str(error)


def main() -> None:
    """Answer until nobody asks any more."""
    parent = os.getppid()
    os.nice(NICENESS)
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION)
    while (message := read_message(sys.stdin.buffer)) is not None:
        write_message(sys.stdout.buffer, pickle.dumps(answer(pickle.loads(message), parent)))  # noqa: S301 (our own parent)


if __name__ == "__main__":
    main()
