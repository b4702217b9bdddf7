"""Processes as /proc shows them, named so that a recycled number is never taken for an old friend. Linux only.

A process is its number *and* its start time within one boot. Standard library only: the supervisor uses this too.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ProcessId(NamedTuple):
    """One process for ever (within a boot): ``start_ticks`` are clock ticks between boot and its start."""

    pid: int
    start_ticks: int


class ProcessInfo(NamedTuple):
    """A line of /proc/PID/stat. ``session`` is the number of the process that leads its session."""

    id: ProcessId
    parent: int
    session: int
    zombie: bool


def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def boot_time_s() -> float:
    """Seconds since the machine was started, the same for all its processes; it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_info(pid: int) -> ProcessInfo | None:
    """What the kernel says of ``pid`` now; None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, parentheses too: fields are counted from the last one (proc(5)).
    fields = text[text.rindex(")") + 2 :].split()
    # The main thread of a program may end before the others: it is shown as a zombie, and the others run on.
    zombie = fields[0] in "ZX" and int(fields[17]) <= 1
    return ProcessInfo(ProcessId(pid, int(fields[19])), int(fields[1]), int(fields[3]), zombie)


def all_processes() -> list[ProcessInfo]:
    """Every process now. O(processes of the machine)."""
    numbers = (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 names only, no paths
    return [info for info in map(process_info, numbers) if info is not None]


def descendants(root: int, processes: list[ProcessInfo] | None = None) -> list[ProcessInfo]:
    """The living children of ``root``, their children and so on; not ``root``, and no zombies."""
    children: dict[int, list[ProcessInfo]] = {}
    for info in all_processes() if processes is None else processes:
        children.setdefault(info.parent, []).append(info)
    found: list[ProcessInfo] = []
    pending = [root]
    while pending:
        for info in children.get(pending.pop(), ()):
            pending.append(info.id.pid)
            found.append(info)
    return [info for info in found if not info.zombie]


def carries(pid: int, marker: bytes) -> bool:
    """Whether the process was started with the environment entry ``marker`` (``NAME=value``)."""
    try:
        return marker in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def writes_to(pid: int, pipes: Collection[int]) -> bool:
    """Whether the process' standard output or error is one of these pipes, which are named by their inodes."""
    names = {f"pipe:[{pipe}]" for pipe in pipes}
    for stream in ("1", "2") if names else ():
        with contextlib.suppress(OSError):
            if str((PROC / str(pid) / "fd" / stream).readlink()) in names:
                return True
    return False


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal (``SigCgt`` of proc(5)), so that it will not die of it."""
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def is_running(process: ProcessId) -> bool:
    """Whether exactly this process lives (a zombie does not)."""
    info = process_info(process.pid)
    return info is not None and info.id == process and not info.zombie


def signal_process(process: ProcessId, signum: int) -> bool:
    """Send a signal to exactly this process; False if it is gone. The pidfd closes the window for a recycled number."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        if not is_running(process):
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def close_inherited() -> None:
    """Close all descriptors but the standard streams: whoever started the service may have left it some for good."""
    for descriptor in [int(entry.name) for entry in (PROC / "self/fd").iterdir()]:
        if descriptor > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Whatever this process' descendants leave behind becomes its child, not init's. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, however that ends. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remains_of(marker: bytes, ranks: list[ProcessId], pipes: Collection[int] = ()) -> list[ProcessId]:
    """What an attempt left behind when its supervisor died: its ranks and all below them, all with its marker, and all
    that write into its ranks' output (``pipes``, by inode).

    Nothing else is ever named: a process must prove that it belongs to the attempt, by its environment, by its exact
    start time, by its output, or by a parent or session leader that does.
    """
    processes = all_processes()
    living = {info.id for info in processes if not info.zombie}
    mine = {rank for rank in ranks if rank in living}
    for rank in tuple(mine):
        mine.update(info.id for info in descendants(rank.pid, processes))
        mine.update(info.id for info in processes if info.session == rank.pid and not info.zombie)
    mine.update(process for process in living if carries(process.pid, marker) or writes_to(process.pid, pipes))
    return sorted(mine)


def kill_all(processes: list[ProcessId]) -> None:
    """SIGKILL to each that still lives."""
    for process in processes:
        with contextlib.suppress(OSError):
            signal_process(process, signal.SIGKILL)
