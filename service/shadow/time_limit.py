"""Work that may take so long and no longer, for whom the scheduling loop cannot wait.

Python stops no thread from outside. What runs over its time is left behind in a thread of its own, which is asked to end by
an exception raised inside it; nothing waits for it, and no other work is taken on until it has ended.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from service.shadow.shadow import OutOfTime

Result = TypeVar("Result")


class _Abandoned(BaseException):
    """Raised inside a thread whose result nobody waits for any more. Not an Exception, so that no handler takes it for one."""


class Limited:
    """A runner (:class:`service.shadow.shadow.Runner`) that keeps to the budget. Called by one thread at a time."""

    def __init__(self) -> None:
        self._left_behind: _Task[Any] | None = None

    def __call__(self, work: Callable[[], Result], budget_s: float) -> Result:
        """The work's result, or what it raised. Raises OutOfTime after ``budget_s`` seconds of real time."""
        if self._left_behind is not None and not self._left_behind.interrupt():
            raise OutOfTime("earlier work has not come to an end yet")
        self._left_behind = None
        task = _Task(work)
        task.thread.start()
        task.thread.join(budget_s)
        if task.interrupt():
            return task.answer()
        self._left_behind = task
        raise OutOfTime(f"it took longer than {budget_s:g} s")


class _Task(Generic[Result]):
    def __init__(self, work: Callable[[], Result]) -> None:
        # A daemon: whatever hangs in it must not keep the service from ending.
        self.thread = threading.Thread(target=self._run, name="limited", daemon=True)
        self._work = work
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._done = False

    def _run(self) -> None:
        try:
            try:
                self._results.append(self._work())
            except BaseException as error:
                self._error = error
            with self._lock:
                self._done = True
        except _Abandoned:
            # It ended by itself at the moment in which it was asked to.
            self._done = True

    def interrupt(self) -> bool:
        """Whether it is done; if not, raise :class:`_Abandoned` where it runs Python code next (code in C is not reached)."""
        with self._lock:
            if not self._done and self.thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident), ctypes.py_object(_Abandoned)
                )
            return self._done

    def answer(self) -> Result:
        """The result. Whatever would end the process (SystemExit and the like) ends the work alone."""
        if isinstance(self._error, Exception):
            raise self._error
        if self._error is not None:
            raise RuntimeError(f"it raised {type(self._error).__name__}") from self._error
        return self._results[0]
