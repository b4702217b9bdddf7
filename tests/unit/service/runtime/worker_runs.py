"""The program of :mod:`.test_workers`: runs in workers, started by the method that the command line names.

It is a process of its own, because a process with threads, as that of the tests, cannot be forked.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from service.runtime.workers import Method, Watch, best_method, run_each


class Awkward(Exception):
    """Cannot be unpickled: it is made of two arguments and keeps one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def task(run: int, note: Callable[[float], None]) -> tuple[int, int]:
    """Squares; some runs end otherwise."""
    if run == 2:
        error = ValueError("two")
        error.add_note("a note")
        raise error
    if run == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if run == 4:
        raise Awkward("o", "k")
    if run == 5:
        os._exit(7)
    return run * run, os.getpid()


def waits(run: int, note: Callable[[float], None]) -> None:
    """A run that begins and does not end."""
    (Path(sys.argv[3]) / str(os.getpid())).touch()
    while True:
        signal.pause()


class Backwards(Watch[Any]):
    """Takes the last run first, and collects what happens."""

    def __init__(self) -> None:
        self.began_runs: list[int] = []
        self.values: dict[int, int] = {}
        self.errors: dict[int, list[str]] = {}
        self.workers: set[int] = set()

    def next_of(self, waiting: Sequence[int]) -> int:
        return waiting[-1]

    def began(self, run: int) -> None:
        self.began_runs.append(run)

    def ended(self, run: int, value: Any) -> None:
        self.values[run], worker = value
        self.workers.add(worker)

    def failed(self, run: int, error: Exception, trace: str) -> None:
        notes = getattr(error, "__notes__", [])
        self.errors[run] = [type(error).__name__, str(error), *notes, str("Traceback" in trace)]


class Strict(Watch[Any]):
    """Does not put up with a failure."""


def main() -> None:
    """Print what happened, as JSON."""
    what, method = sys.argv[1], cast(Method, sys.argv[2])
    if what == "best":
        print(json.dumps(best_method()))
    elif what == "wait":
        run_each(waits, range(2), 2, Strict(), method)
    elif what == "strict":
        try:
            run_each(task, range(3), 2, Strict(), method)
        except ValueError as error:
            print(json.dumps([str(error), os.getpid()]))
    else:
        watch = Backwards()
        run_each(task, range(10), 3, watch, method)
        document = {"began": watch.began_runs, "values": watch.values, "errors": watch.errors}
        print(json.dumps({**document, "workers": len(watch.workers), "here": os.getpid() in watch.workers}))


if __name__ == "__main__":
    main()
