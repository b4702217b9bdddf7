"""Sends the warning of a stop to those processes of an attempt that handle it. Used by the supervisor; standard library only.

What Sooner starts is often a launcher (``torchrun``, ``accelerate``, ``deepspeed``, a shell) that has no handler for the signal
and would die of it. The processes that train are below it.
"""

import time
from collections.abc import Callable, Iterable

from service.executors.folder import DELIVERED, NOT_DELIVERED
from service.runtime.processes import ProcessId, catches, children, is_running, process_info, signal_process

_URGENT_S = 0.05
"""Time between two looks while no process below a rank has taken the warning."""
_LATER_S = 0.5
_SHARE = 0.1
"""Largest share of a core that the looks use."""


class Warner:
    """Warns with ``signum``. ``before_first`` is called before the first signal is sent."""

    def __init__(self, signum: int, before_first: Callable[[], None]) -> None:
        self.signum = signum
        self._before_first = before_first
        self._warned: set[ProcessId] = set()
        self._served: set[ProcessId] = set()
        self._looked = False
        self._next_s = 0.0

    @property
    def outcome(self) -> str | None:
        """Whether a process has taken the warning; None as long as there was no process to warn."""
        if self._warned:
            return DELIVERED
        return NOT_DELIVERED if self._looked else None

    @property
    def pause_s(self) -> float:
        """Seconds until the next look is due."""
        return max(0.0, self._next_s - time.monotonic())

    def look(self, ranks: Iterable[ProcessId]) -> None:
        """Warn what handles the signal by now and was not warned before, if a look is due. O(processes and threads below ranks).

        On each branch below a rank, only the topmost process with a handler is warned: its children, such as data loaders, may
        have inherited the handler, and it can inform them itself. A process without a handler would die of the signal. It may set
        up a handler later (an interpreter takes seconds for its imports), or start a process that has one, so looks are repeated.
        """
        began_s = time.monotonic()
        if began_s < self._next_s:
            return
        waiting = False
        for rank in ranks:
            self._looked = True
            if self._warn_below(rank):
                self._served.add(rank)
            waiting |= rank not in self._served
        cost_s = time.monotonic() - began_s
        self._next_s = began_s + max(_URGENT_S if waiting else _LATER_S, cost_s / _SHARE)

    def _warn_below(self, rank: ProcessId) -> bool:
        """Whether the rank or a process below it takes the warning."""
        found = False
        pending = [rank]
        while pending:
            process = pending.pop()
            if process in self._warned or (catches(process.pid, self.signum) and self._warn(process)):
                found = True
            elif is_running(process):  # the children of an ended process are no longer below the rank
                infos = map(process_info, children(process.pid))
                pending += [info.id for info in infos if info is not None and info.parent == process.pid]
        return found

    def _warn(self, process: ProcessId) -> bool:
        if not self._warned:
            self._before_first()
        if not signal_process(process, self.signum):
            return False
        self._warned.add(process)
        return True
