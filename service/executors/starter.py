"""Starts several attempts from one interpreter: it loads its modules once, and forks a keeper for each attempt.

Most of the processor time of a start goes into a new interpreter and its modules, and a service that starts a process waits until
that gets its turn, behind all those that were started before. So a service that starts many attempts at once starts one process,
which does the rest. Nothing depends on that process once it has forked: it waits for the keepers, and tells the service the exit
codes of those that failed before their attempt had a folder. Standard library only.

Its input is a file in memory: the number of plans, their lengths, and the plans. The process itself reads only the numbers, so
that no attempt's process holds the secrets of another one.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from service.executors.ranks import IGNORED, redirect_standard_streams
from service.executors.supervisor import begin, separate
from service.runtime.processes import PROC

SEVERAL = "--several"
_PLANS = 0
_CODES = 1
_NUMBER_BYTES = 8


def main() -> int:
    """Start the attempts, and write ``position code`` to standard output when one's keeper ends. Returns the exit code."""
    os.setsid()
    umask = separate()
    # A collection in a fork would write to, and so copy, all that they share.
    gc.freeze()
    keepers: dict[int, int] = {}
    for position, (offset, length) in enumerate(_places()):
        try:
            pid = os.fork()
        except OSError:
            _tell(_CODES, position, 1)
            continue
        if pid == 0:
            return _begin(os.pread(_PLANS, length, offset), umask)
        keepers[pid] = position
    codes = os.dup(_CODES)
    redirect_standard_streams(Path(os.devnull))
    for signum in (*IGNORED, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    while keepers:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        _tell(codes, keepers.pop(pid), code)
    return 0


def _begin(document: bytes, umask: int) -> int:
    plan = json.loads(document)
    folder = f"{plan['attempts_dir']}/{plan['attempt']}"
    try:
        name_attempt(folder)
    except OSError as error:
        # On a kernel that is not quite Linux. A new interpreter costs more time, and gets its arguments as usual.
        print(error, file=sys.stderr)
        file = os.memfd_create("sooner-plan")
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(document)
        os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, _PLANS)
        os.umask(umask)
        os.execve(sys.executable, [sys.executable, "-I", "-S", sys.argv[0], folder], {})  # noqa: S606 ourselves
    os.setsid()
    return begin(plan | {"umask": umask})


def head_of(plans: list[bytes]) -> bytes:
    """What precedes the plans in the input."""
    return b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in (len(plans), *map(len, plans)))


def argument_for(attempts_dir: str, attempts: list[str]) -> str:
    """The folder that is the last argument of this process, padded so that the folder of each of the attempts has room there."""
    return attempts_dir + "/" * (1 + max(map(len, attempts)))


def name_attempt(folder: str) -> None:
    """Show the folder of an attempt as the only argument of this process: a keeper and its supervisor are known by it.

    The arguments of a process are a part of its memory, which /proc shows. Raises OSError if they are somewhere else.
    """
    shown = (PROC / "self/cmdline").read_bytes()
    fields = (PROC / "self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    at = shown.rindex(f"\0{SEVERAL}\0".encode()) + 1
    new = os.fsencode(folder)
    if start == 0 or end - start != len(shown) or len(new) >= len(shown) - at:
        raise OSError(f"the arguments of this process cannot be replaced by {folder}")
    ctypes.memmove(start + at, new.ljust(len(shown) - at, b"\0"), len(shown) - at)


def _places() -> Iterator[tuple[int, int]]:
    """Where each plan begins in the input, and its length."""
    count = _number(0)
    offset = _NUMBER_BYTES * (1 + count)
    for position in range(count):
        length = _number(1 + position)
        yield offset, length
        offset += length


def _number(position: int) -> int:
    return int.from_bytes(os.pread(_PLANS, _NUMBER_BYTES, _NUMBER_BYTES * position), "big")


def _tell(codes: int, position: int, code: int) -> None:
    with contextlib.suppress(OSError):  # the service has ended
        os.write(codes, b"%d %d\n" % (position, code))
