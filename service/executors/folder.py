"""The files in an attempt's folder, and its creation: complete, locked, and only once.

``attempts/<attempt id>/`` is made by its supervisor under another name, locked and filled, and then given its name by one
rename, which fails if the name is taken. So every folder has its lock and its first record, two launches of one attempt cannot
both succeed, and a Stop that comes first takes the name with a tombstone, so that the attempt never runs.

| file | written by | when |
|---|---|---|
| ``lock`` | supervisor | held (flock) as long as the supervisor lives |
| ``supervisor.json`` | supervisor | before the folder has its name: pid, start ticks, boot id |
| ``ranks.json`` | supervisor | before any command is executed: pid, start ticks and output (a pipe's inode) of each rank |
| ``started.json`` | supervisor | all commands were executed |
| ``stop.json`` | executor | a stop is wanted; ``wake`` (a FIFO) rings the supervisor |
| ``signalled`` | supervisor | before the first stop signal is sent |
| ``exit.json`` | supervisor, or the executor for a dead one | nothing runs any more |
| ``acknowledged.json`` | executor | ``exit.json``, renamed when the service has committed the report |
| ``progress.jsonl`` | the program, and the service for progress that came over HTTP | any time |
| ``reserved`` | supervisor | room on the disk for ``exit.json``, taken before the start |
| ``output/`` | supervisor | standard output and error, see :mod:`service.executors.logs` |

The records (``.json``) carry a seal (:mod:`service.executors.seal`): a job that runs as the service's user can write here. One
without the right seal counts as absent, and the end is believed only while the lock is free.
"""

import contextlib
import errno
import fcntl
import math
import os
import stat
import time
from pathlib import Path
from typing import Any

from service.executors.deletion import delete_path
from service.executors.files import read_json, sync_folder, write_json
from service.executors.seal import Seal
from service.runtime.untrusted import PRIVATE_FILE, PRIVATE_FOLDER, open_below, open_file, open_folder, read_small

LOCK = "lock"
SUPERVISOR = "supervisor.json"
RANKS = "ranks.json"
STARTED = "started.json"
STOP = "stop.json"
SIGNALLED = "signalled"
EXIT = "exit.json"
ACKNOWLEDGED = "acknowledged.json"
PROGRESS = "progress.jsonl"
OUTPUT = "output"
RESERVED = "reserved"
WAKE = "wake"
WORK = "work"
DELIVERED = "delivered"
NOT_DELIVERED = "not_delivered"
UNNAMED = ".new-"
_NO_LOCK = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL})
"""There is no lock file, or a job has replaced it by something that is no file."""
_LEASE_BYTES_MAX = 64
_DETAIL_CHARS = 1000
_OUTCOMES = ("exited", "launch_failed", "lost")
_EXIT_CODE_MAX = 255
_SECONDS_MAX = 1e12
"""Beyond any time of day and any duration (32,000 years)."""


START_SLACK_S = 5.0
"""Time after the end of the service's lease in which an attempt may still start: a busy machine starts slowly."""

STOPPED_FIRST = "stopped before it started"


class Taken(Exception):
    """The attempt's folder exists already: it runs, has run, or was stopped before it started."""


def end_record(
    outcome: str,
    at_s: float,
    *,
    exit_code: int | None = None,
    reason: str | None = None,
    detail: str = "",
    stop_signalled: bool = False,
    warning: str | None = None,
    server: int | str | None = None,
) -> dict[str, Any]:
    """What ``exit.json`` holds: ``outcome`` is ``exited``, ``launch_failed`` or ``lost``, ``reason`` a word of the reasons.

    ``warning``: ``delivered`` if a process has taken the warning of a stop, ``not_delivered`` if none has, None without one.
    ``server``: the one that was lost with the attempt, by its position or, on an engine, by its name; None if it went on.
    """
    return {
        "outcome": outcome,
        "at_s": at_s,
        "exit_code": exit_code,
        "reason": reason,
        "detail": detail[:_DETAIL_CHARS],
        "stop_signalled": stop_signalled,
        "warning": warning,
        "server": server,
    }


def read_record(folder: Path, name: str, seal: Seal, *, strict: bool = False) -> dict[str, Any] | None:
    """The record in the file ``name``; None if there is none or its seal is wrong. ``strict``: see :func:`read_json`."""
    return seal.opened(name, read_json(folder / name, strict))


def read_end(folder: Path, seal: Seal, name: str = EXIT) -> dict[str, Any] | None:
    """The record of the end in ``name``; None if there is none or it is invalid.

    It counts only while the lock of the folder is free (:func:`is_supervised`). Raises OSError for an error that may pass: an end
    that cannot be read now must not become another end.
    """
    record = seal.opened(EXIT, read_json(folder / name, strict=True))
    if record is None:
        return None
    sound = (
        {"outcome", "at_s", "exit_code", "reason", "detail", "stop_signalled"} <= record.keys()
        and record["outcome"] in _OUTCOMES
        and seconds(record["at_s"]) is not None
        and (record["exit_code"] is None or type(record["exit_code"]) is int)
        and (record["exit_code"] or 0) in range(_EXIT_CODE_MAX + 1)
        and isinstance(record["reason"], str | None)
        and isinstance(record["detail"], str)
        and isinstance(record["stop_signalled"], bool)
        # Release 0.1 wrote none.
        and record.get("warning") in (None, DELIVERED, NOT_DELIVERED)
        and (isinstance(record.get("server"), str | None) or position(record["server"]) is not None)
    )
    return record if sound else None


def seconds(value: object) -> float | None:
    """A time or a duration from a file; None if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        return None
    return float(value)


def position(value: object) -> int | None:
    """The position of a server from a file; None if it is invalid."""
    return value if type(value) is int and value >= 0 else None


def read_ranks(folder: Path, seal: Seal) -> list[tuple[int, int]]:
    """Process number and start ticks of each rank, as far as the file has them. Raises OSError for an error that may pass."""
    ranks = (read_record(folder, RANKS, seal, strict=True) or {}).get("ranks")
    return [
        (rank[0], rank[1])
        for rank in (ranks if isinstance(ranks, list) else ())
        if isinstance(rank, list) and len(rank) == len(("pid", "start_ticks")) and all(type(n) is int for n in rank)
    ]


def read_pipes(folder: Path, seal: Seal) -> set[int]:
    """The inodes of the pipes that the ranks write into, as far as the file has them. Raises OSError as :func:`read_ranks`."""
    pipes = (read_record(folder, RANKS, seal, strict=True) or {}).get("pipes")
    return {pipe for pipe in (pipes if isinstance(pipes, list) else ()) if type(pipe) is int}


def read_stop(folder: Path, seal: Seal) -> tuple[str | None, float] | None:
    """The warning signal and the grace period of the requested stop; None if there is none."""
    request = read_record(folder, STOP, seal)
    if request is None:
        return None
    warning, grace_s = request.get("warning_signal"), seconds(request.get("grace_s"))
    return (warning if isinstance(warning, str) else None), (grace_s if grace_s is not None else 0.0)


def draft(attempts: Path, attempt: str) -> tuple[Path, int]:
    """A new folder without its name yet, and the descriptor that holds its lock. Raises OSError."""
    folder = attempts / f"{UNNAMED}{attempt}-{os.urandom(8).hex()}"
    folder.mkdir(mode=PRIVATE_FOLDER)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def publish(drafted: Path, attempt: str) -> Path:
    """Rename a draft to its final name. Raises :class:`Taken` after deleting the draft."""
    folder = drafted.parent / attempt
    try:
        # A folder that holds files is never replaced (POSIX rename), and no attempt's folder is ever empty.
        with contextlib.suppress(IsADirectoryError, FileNotFoundError):
            folder.unlink()  # a link or a file that a job has put there
        drafted.rename(folder)
    except OSError:
        delete_draft(drafted)
        if exists(folder):
            raise Taken(attempt) from None
        raise
    sync_folder(folder.parent)
    return folder


def exists(folder: Path) -> bool:
    """Whether there is a folder, and not something else in its place. Raises OSError if the disk does not answer."""
    try:
        return stat.S_ISDIR(folder.lstat().st_mode)
    except FileNotFoundError:
        return False


def has(folder: Path, name: str) -> bool:
    """Whether a folder of an attempt has a regular file of this name."""
    try:
        return stat.S_ISREG((folder / name).lstat().st_mode)
    except OSError:
        return False


def write_tombstone(attempts: Path, attempt: str, record: dict[str, Any], seal: Seal) -> None:
    """Create the folder of an attempt that ended before it started. Raises :class:`Taken` or OSError."""
    drafted, lock = draft(attempts, attempt)
    try:
        write_json(drafted / EXIT, seal.sealed(EXIT, record))
        publish(drafted, attempt)
    finally:
        os.close(lock)
        delete_draft(drafted)


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor holds the folder's lock. The test is a shared lock, so that two observers do not conflict."""
    try:
        descriptor = open_below(folder, LOCK)
    except OSError as error:
        if error.errno in _NO_LOCK:
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_number(folder: Path) -> int:
    """The inode of the folder's lock; 0 if there is none. Raises OSError if the disk does not answer."""
    try:
        return (folder / LOCK).lstat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def is_gone(folder: Path, lock: int = 0) -> bool:
    """Whether a folder has been deleted, or its lock is another file than ``lock``; False if the disk does not answer."""
    try:
        found = lock_number(folder)
    except OSError:
        return False
    return found == 0 or lock not in (0, found)


def write_stop(folder: Path, warning_signal: str | None, grace_s: float, seal: Seal, mode: int | None = None) -> None:
    """Ask the supervisor to stop its attempt. A request never weakens an earlier one. ``mode``: of its file. Raises OSError."""
    earlier = read_stop(folder, seal)
    if earlier is not None and (earlier[0] is None or warning_signal is not None):
        return
    request = {"warning_signal": warning_signal, "grace_s": grace_s}
    write_json(folder / STOP, seal.sealed(STOP, request), mode=mode)
    ring(folder)


def boot_time_s() -> float:
    """Seconds since the machine was started, including those in which it slept: one clock for all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_lease(file: Path, until_s: float) -> None:
    """Write until when (:func:`boot_time_s`) attempts may start. The write also keeps running attempts alive. Raises OSError."""
    descriptor = open_file(file, os.O_WRONLY | os.O_CREAT)
    try:
        os.utime(descriptor)  # needs no room on the disk
        os.pwrite(descriptor, b"%-31.3f\n" % until_s, 0)
    finally:
        os.close(descriptor)


def lease_is_over(file: Path) -> bool:
    """Whether the time to start attempts ended some seconds ago. False if the file is missing or invalid."""
    return _lease_left_s(file) < -START_SLACK_S


def lease_used_s(file: Path, lease_s: float) -> float:
    """Seconds of a lease that have passed since its renewal, in [0, ``lease_s``]; 0 if the file is missing or invalid."""
    return min(max(lease_s - _lease_left_s(file), 0.0), lease_s)


def _lease_left_s(file: Path) -> float:
    try:
        until_s = float(read_small(open_file(file), _LEASE_BYTES_MAX))
    except (OSError, ValueError):
        return math.inf
    return math.inf if math.isnan(until_s) else until_s - boot_time_s()


def ring(folder: Path) -> None:
    """Wake the supervisor, if there is one."""
    with contextlib.suppress(OSError):
        place = open_folder(folder)
        try:
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(WAKE, flags, dir_fd=place)
        finally:
            os.close(place)
        try:
            # Never write into a file that a job has put there.
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"!")
        finally:
            os.close(descriptor)


def mark_signalled(folder: Path) -> None:
    """Leave the mark that a stop signal is about to be sent. Needs no room on the disk. Raises OSError."""
    os.close(open_below(folder, SIGNALLED, flags=os.O_WRONLY | os.O_CREAT))


def delete_draft(drafted: Path) -> None:
    """Delete a draft, if it exists; what cannot be deleted now is swept later."""
    with contextlib.suppress(OSError):
        delete_path(drafted)


def sweep_drafts(attempts: Path, before_s: float) -> None:
    """Delete drafts made before ``before_s`` (Unix time) whose supervisor died before it could rename them."""
    for path in attempts.glob(f"{UNNAMED}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before_s and not is_supervised(path):
                delete_path(path)


def make_private(folder: Path) -> Path:
    """Create a folder, unless it exists, that only its owner can read; returns it."""
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    return folder
