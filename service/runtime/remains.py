"""Finds and ends what an attempt left after both its supervisor and the supervisor's keeper were killed.

Then its processes have other parents. They are found by what a process inherits and does not change by accident: its control
group and a limit that nothing else uses, then its environment, its output and its parents. Standard library only. Linux only.
"""

import math
import signal
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from service.runtime.cgroups import Cgroup
from service.runtime.processes import (
    ProcessId,
    ProcessInfo,
    carries,
    descendants,
    has_mark,
    process_info,
    process_numbers,
    signal_process,
    writes_to,
)

_BUDGET_S = 0.2


class Evidence(NamedTuple):
    """What identifies the processes of one attempt.

    ``marker``: an entry of the environment (``NAME=value``). ``mark``: see :func:`service.runtime.processes.set_mark`. ``ranks``:
    the processes that the supervisor started. ``pipes``: the inodes of their output. ``cgroups``: their control groups.
    """

    marker: bytes
    mark: int
    ranks: Collection[ProcessId] = ()
    pipes: Collection[int] = ()
    cgroups: Collection[Cgroup] = ()


def remains_of(evidence: Evidence, processes: Sequence[ProcessInfo]) -> list[ProcessId]:
    """The processes of an attempt among ``processes``, no others and no zombies.

    Raises OSError if something cannot be read, so that it is not known whether a process belongs to the attempt.
    """
    living = [info for info in processes if not info.zombie]
    mine = {info.id for info in living if _is_mine(info, evidence)}
    for rank in {info.id for info in living}.intersection(evidence.ranks):
        mine.add(rank)
        mine.update(info.id for info in living if info.session == rank.pid)
    for process in tuple(mine):
        mine.update(info.id for info in descendants(process.pid, living))
    return sorted(mine)


def _is_mine(info: ProcessInfo, evidence: Evidence) -> bool:
    pid = info.id.pid
    return has_mark(pid, evidence.mark) or carries(pid, evidence.marker) or writes_to(pid, evidence.pipes)


def end_remains(evidence: Evidence) -> bool:
    """Kill what is left, for some tenths of a second. Returns whether anything was or may be left: then look again later.

    Raises OSError if it cannot be known whether anything is left, after the processes that were found are killed.
    """
    occupied, failure = False, None
    for group in evidence.cgroups:
        try:
            if not group.is_empty():
                occupied = True
                group.kill()
        except OSError as error:
            # What is found without the group is killed first.
            failure = error
    stopped, sure = _stop_all(evidence)
    for process in stopped:
        signal_process(process, signal.SIGKILL)
    if failure is not None:
        raise failure
    if occupied or stopped or not sure:
        return True
    for group in evidence.cgroups:
        group.remove()
    return False


def _stop_all(evidence: Evidence) -> tuple[set[ProcessId], bool]:
    """Suspend all processes of the attempt; returns them, and whether every process of the machine was looked at.

    A suspended process forks no more, and stays the parent of its children. A process that forks and ends at once has another
    number each time. So the numbers are listed until none is new, and only the new ones are looked at.
    """
    stopped: set[ProcessId] = set()
    strangers: set[int] = set()
    deadline_s = math.inf
    while time.monotonic() < deadline_s:
        numbers = process_numbers() - strangers
        if numbers <= {process.pid for process in stopped}:
            return stopped, True
        processes = [info for info in map(process_info, sorted(numbers)) if info is not None]
        found = set(remains_of(evidence, processes)) - stopped
        for process in found:
            signal_process(process, signal.SIGSTOP)
        stopped |= found
        strangers.update(info.id.pid for info in processes if info.id not in stopped)
        # The first pass looks at all processes and takes as long as it takes.
        deadline_s = min(deadline_s, time.monotonic() + _BUDGET_S)
    return stopped, False
