"""The supervisor of an attempt and its keeper, as the service sees them: found, continued, and killed when they hang.

A job may suspend or kill both. What they leave then is ended by :mod:`service.runtime.remains`.
"""

import math
import signal
import time
from pathlib import Path

from service.executors import folder as names
from service.executors.seal import Seal
from service.runtime.processes import (
    ProcessId,
    all_processes,
    boot_id,
    command_line,
    is_running,
    signal_process,
)

STALL_S = 10.0
"""Longest time that a supervisor may need beyond the grace periods, and that one of the two lives without the other."""
_PROGRAM = "_supervise.py"


class Supervision:
    """Both processes of one attempt. A record is believed only if it names processes that were started for this attempt."""

    def __init__(self, folder: Path, seal: Seal) -> None:
        self._folder = folder
        self._seal = seal
        self._processes: tuple[ProcessId, ...] = ()
        """The supervisor, then its keeper."""
        self._count = 0
        self._kill_at_s = math.inf
        self._incomplete_since_s = math.inf

    def is_held(self) -> bool:
        """Whether the lock of the folder is held by a supervisor or its keeper; one that hangs is continued, then killed.

        A lock that another process has taken counts for :data:`STALL_S`.
        """
        if not names.is_supervised(self._folder):
            # If a job has replaced the lock, its supervisor ends the job and itself.
            known = self._processes or self._recorded()[0]
            return any(is_running(process) and self._is_ours(process) for process in known)
        running = [process for process in self._find() if is_running(process)]
        now_s = time.monotonic()
        if running and len(running) == self._count:
            if now_s >= self._kill_at_s:
                signal_process(running[0], signal.SIGKILL)
            return True
        # Either of them ends the job, and then itself, when the other one is gone.
        self._incomplete_since_s = min(self._incomplete_since_s, now_s)
        hangs = now_s >= self._incomplete_since_s + STALL_S
        for process in running:
            signal_process(process, signal.SIGKILL if hangs else signal.SIGCONT)
        return bool(running) or not hangs

    def expect_end(self, warning_signal: str | None, grace_s: float) -> None:
        """Note that a stop was requested: continue both, and kill the supervisor when it has not carried out the stop in time."""
        # The grace period counts twice: after the warning, and after SIGTERM.
        steps = 1 if warning_signal is None else 2
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + steps * grace_s + STALL_S)
        self.signal(signal.SIGCONT)

    def signal(self, signum: int) -> None:
        """Send a signal to both."""
        for process in self._find():
            signal_process(process, signum)

    def _find(self) -> tuple[ProcessId, ...]:
        if not self._processes:
            self._processes, self._count = self._recorded()
            if not self._processes or not all(self._is_ours(known) for known in self._processes):
                self._processes = self._search()
        return self._processes

    def _recorded(self) -> tuple[tuple[ProcessId, ...], int]:
        """What the folder says, and how many there were at the start."""
        record = names.read_record(self._folder, names.SUPERVISOR, self._seal) or {}
        if record.get("boot_id") != boot_id():
            return (), 2
        pairs = [(record.get("pid"), record.get("start_ticks"))]
        keeper = record.get("keeper")
        if isinstance(keeper, list) and len(keeper) == len(ProcessId._fields):
            pairs.append((keeper[0], keeper[1]))
        known = [ProcessId(pid, ticks) for pid, ticks in pairs if isinstance(pid, int) and isinstance(ticks, int)]
        return tuple(known), len(pairs)

    def _is_ours(self, process: ProcessId) -> bool:
        # A supervisor of release 0.1 has the id of its attempt as its argument.
        return _supervises(process.pid, str(self._folder), self._folder.name)

    def _search(self) -> tuple[ProcessId, ...]:
        """Both, by their command lines. O(processes of the machine)."""
        found = [info for info in all_processes() if not info.zombie and _supervises(info.id.pid, str(self._folder))]
        numbers = {info.id.pid for info in found}
        return tuple(info.id for info in sorted(found, key=lambda info: info.parent not in numbers))


def _supervises(pid: int, *attempts: str) -> bool:
    """Whether the process was started as a supervisor or keeper with one of these arguments."""
    words = command_line(pid)
    return len(words) > 1 and Path(words[-2]).name == _PROGRAM and words[-1] in attempts
