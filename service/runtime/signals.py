"""Delaying signals while something must not be interrupted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def signals_later(*numbers: signal.Signals) -> Iterator[None]:
    """Handle the first of these signals only at the end. Processes that are started within have them blocked.

    They inherit the mask of this thread. Other threads of this process may block nothing, so a handler records the signal.
    Outside of the main thread, where Python handles no signals, nothing is delayed.
    """
    if current_thread() is not main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    handlers = {number: signal.signal(number, note) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])
