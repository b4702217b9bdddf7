"""Processes as /proc shows them, identified so that a reused PID is never mistaken for the old process. Linux only.

A process is identified by its PID *and* its start time, within one boot. The supervisor imports this module, so it uses the
standard library only.
"""

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_MARK_MIN = 2**60
MARK_BITS = 60
_OOM_SCORE_MAX = 1000
_OOM_SCORE_JOB = 500
"""As many thousandths of the memory are added to the size of a process when the kernel looks for the largest."""
_OOM_SCORE_STEP = 100
_STAT_BYTES_MAX = 4096
"""More than a line of some fifty numbers and a program's name takes."""


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
    """The state of ``pid`` now; None if there is no such process, or if /proc hides it (:func:`proc_hides`)."""
    # Every poll reads this for all attempts, and every stop for all processes: a Path and a text file take twice as long.
    try:
        descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        text = os.read(descriptor, _STAT_BYTES_MAX)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    # The program name in parentheses may contain parentheses, so count the fields after the last one (proc(5)).
    fields = text[text.rindex(b")") + 2 :].split()
    # If the main thread ends first, the state is a zombie's while the other threads still run.
    zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return ProcessInfo(ProcessId(pid, int(fields[19])), int(fields[1]), int(fields[3]), zombie)


def process_numbers() -> set[int]:
    """The numbers of all processes of the machine now. O(processes)."""
    return {int(name) for name in os.listdir(PROC) if name.isdigit()}  # noqa: PTH208 names only, no paths


def all_processes() -> list[ProcessInfo]:
    """All processes of the machine now. O(processes)."""
    return [info for info in map(process_info, sorted(process_numbers())) if info is not None]


def descendants(root: int, processes: Sequence[ProcessInfo] | None = None) -> list[ProcessInfo]:
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


def command_line(pid: int) -> list[str]:
    """The arguments of the process, without empty ones at the end; none if there is no such process.

    A process that has replaced its arguments by shorter ones shows zeros in place of the rest.
    """
    try:
        shown = os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).rstrip("\0")
    except OSError:
        return []
    return shown.split("\0") if shown else []


def set_mark(mark: int) -> None:
    """Mark this process and all its future descendants with a number below 2**60.

    The number becomes the limit on the time of a real-time thread (RLIMIT_RTTIME), 36,000 years or more, which nothing exceeds. A
    new environment, session or user keeps it, every user may read it, and without privileges it cannot be raised again. A process
    that has a lower limit already, because it belongs to a job of another service, keeps that.
    """
    limit = _MARK_MIN + mark
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))


def has_mark(pid: int, mark: int) -> bool:
    """Whether the process, or an ancestor of it, has set the mark. Raises OSError if that cannot be read."""
    try:
        lines = (PROC / str(pid) / "limits").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    found = next((line for line in lines if line.startswith("Max realtime timeout")), "")
    return str(_MARK_MIN + mark) in found.split()


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


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends for any reason. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def proc_hides() -> bool:
    """Whether /proc shows this process only processes that it may trace (``hidepid`` in proc(5)). Root may trace all."""
    if os.geteuid() == 0:
        return False
    # The last mount at a place is the one that is seen.
    for line in reversed((PROC / "self/mountinfo").read_text().splitlines()):
        place, _, source = line.partition(" - ")
        if place.split()[4] == "/proc":
            options = dict(option.partition("=")[::2] for option in source.split()[-1].split(","))
            return options.get("hidepid", "off") not in ("0", "off")
    return False


def forbid_tracing() -> None:
    """Keep other processes of the same user (not root) from the memory and the open files of this one. Raises OSError.

    Where :func:`proc_hides`, other processes of the user no longer see this one at all.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def allow_tracing() -> None:
    """Undo :func:`forbid_tracing`, which a forked process inherits. Raises OSError."""
    _prctl(_PR_SET_DUMPABLE, 1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def kill_descendants(children_left: Callable[[], bool], budget_s: float) -> bool:
    """Kill all descendants of this process, a child subreaper with one thread; returns whether a child is left.

    It takes ``budget_s`` at most. ``children_left`` collects ended children without blocking, and returns whether there are
    others. The children of a process that ends become children of this process. So the loop over the children needs no walk
    through /proc, and is faster than a process that forks and ends at once.
    """
    if not children_left():
        return False
    deadline_s = time.monotonic() + budget_s
    for info in descendants(os.getpid()):
        signal_process(info.id, signal.SIGKILL)
    while children_left():
        if time.monotonic() >= deadline_s:
            return True
        for pid in children(os.getpid()):
            # The number of a child that was not waited for is not used again.
            with contextlib.suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0)
    return False


def children(pid: int) -> list[int]:
    """The numbers of the children of a process; none if there is no such process. O(threads of the process).

    A child that is started or ended meanwhile may be missing.
    """
    found: list[int] = []
    try:
        for thread in os.listdir(PROC / str(pid) / "task"):  # noqa: PTH208 names only, no paths
            found += [int(child) for child in (PROC / str(pid) / "task" / thread / "children").read_bytes().split()]
    except OSError:
        if not (PROC / "self/task" / str(os.getpid()) / "children").exists():  # a kernel without CONFIG_PROC_CHILDREN
            return [info.id.pid for info in all_processes() if info.parent == pid]
    return found


def prefer_as_victim() -> None:
    """Let the kernel kill this process before the one that started it when memory is short."""
    with contextlib.suppress(OSError):
        file = PROC / "self/oom_score_adj"
        file.write_text(str(min(_OOM_SCORE_MAX, max(_OOM_SCORE_JOB, int(file.read_text()) + _OOM_SCORE_STEP))))


def spare_as_victim() -> None:
    """Let the kernel kill other processes before this one when memory is short. No effect without CAP_SYS_RESOURCE."""
    with contextlib.suppress(OSError):
        (PROC / "self/oom_score_adj").write_text(str(-_OOM_SCORE_JOB))
