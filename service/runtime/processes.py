"""Processes as /proc shows them, identified so that a reused PID is never mistaken for the old process. Linux only.

A process is identified by its PID *and* its start time, within one boot. The supervisor imports this module, so it uses the
standard library only.
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
    """Unique identity of a process within a boot: ``start_ticks`` are the clock ticks from the boot to its start."""

    pid: int
    start_ticks: int


class ProcessInfo(NamedTuple):
    """Fields of /proc/PID/stat. ``session`` is the PID of the session leader."""

    id: ProcessId
    parent: int
    session: int
    zombie: bool


def boot_id() -> str:
    """The kernel's unique id of this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def boot_time_s() -> float:
    """Seconds since the boot, the same in all processes. Time in suspend counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_info(pid: int) -> ProcessInfo | None:
    """The state of ``pid`` now; None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program name in parentheses may contain parentheses, so count the fields after the last one (proc(5)).
    fields = text[text.rindex(")") + 2 :].split()
    # If the main thread ends first, the state is a zombie's while the other threads still run.
    zombie = fields[0] in "ZX" and int(fields[17]) <= 1
    return ProcessInfo(ProcessId(pid, int(fields[19])), int(fields[1]), int(fields[3]), zombie)


def all_processes() -> list[ProcessInfo]:
    """All processes of the machine now. O(processes)."""
    numbers = (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 names only, no paths
    return [info for info in map(process_info, numbers) if info is not None]


def descendants(root: int, processes: list[ProcessInfo] | None = None) -> list[ProcessInfo]:
    """The running descendants of ``root``, without ``root`` and without zombies."""
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
    """Whether standard output or error of the process is one of ``pipes`` (inode numbers)."""
    names = {f"pipe:[{pipe}]" for pipe in pipes}
    for stream in ("1", "2") if names else ():
        with contextlib.suppress(OSError):
            if str((PROC / str(pid) / "fd" / stream).readlink()) in names:
                return True
    return False


def catches(pid: int, signum: int) -> bool:
    """Whether the process handles the signal itself (``SigCgt`` in proc(5)), so that the signal does not end it."""
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def is_running(process: ProcessId) -> bool:
    """Whether exactly this process runs; False for a zombie."""
    info = process_info(process.pid)
    return info is not None and info.id == process and not info.zombie


def signal_process(process: ProcessId, signum: int) -> bool:
    """Send a signal to exactly this process; False if it has ended. The pidfd prevents a race with a reused PID."""
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
    """Close all descriptors except the standard streams. The parent process may have left descriptors open."""
    for descriptor in [int(entry.name) for entry in (PROC / "self/fd").iterdir()]:
        if descriptor > 2:
            with contextlib.suppress(OSError):  # the descriptor of the directory listing
                os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Let the kernel kill this process (SIGKILL) when its parent ends for any reason. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remains_of(marker: bytes, ranks: list[ProcessId], pipes: Collection[int] = ()) -> list[ProcessId]:
    """The processes that an attempt left when its supervisor died: its ranks, their descendants, the processes with its marker,
    and the processes that write into the output of its ranks (``pipes``, by inode).

    No other process is returned. A process belongs to the attempt by its environment, its exact start time, its output, or a
    parent or session leader that belongs to it.
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
    """Send SIGKILL to each process that still runs."""
    for process in processes:
        with contextlib.suppress(OSError):
            signal_process(process, signal.SIGKILL)
