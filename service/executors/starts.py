"""Starts supervisors as processes of their own, and learns how the keepers ended that they are under."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from service.executors.starter import SEVERAL, argument_for, head_of

TOGETHER_MAX = 100
"""Attempts that one process starts. It lives as long as any of them, and what it has not begun when it is killed fails."""

UNKNOWN = -1000
"""Instead of an exit code: the keeper may live, because the process that started it was killed and could not tell."""

_PROGRAM = str(Path(__file__).with_name("_supervise.py"))
_READ_BYTES = 64 * 1024


class Starter:
    """A process of this one that was started for some attempts, each known by its position.

    ``codes``: the descriptor on which it tells how their keepers ended. Without, it is itself the keeper of its only attempt.
    """

    def __init__(self, pid: int, codes: int | None = None) -> None:
        self._pid = pid
        self._pipe = codes
        self._unfinished = b""
        self._told: dict[int, int] = {}
        self._ended: int | None = None

    def look(self) -> bool:
        """Learn what there is to learn; returns whether there will be more."""
        code = UNKNOWN
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pid = self._pid  # somebody else has waited for it
        else:
            if self._pipe is None:
                code = os.waitstatus_to_exitcode(status)
        if self._pipe is not None:
            # After the look at the process: what a process that has ended has told is all there.
            self._read(self._pipe)
        if pid == 0:
            return True
        self._ended = code
        self.close()
        return False

    def exit_code(self, position: int) -> int | None:
        """The exit code of the keeper of the attempt at ``position``, or :data:`UNKNOWN`; None if none was seen yet."""
        return self._told.get(position, self._ended)

    def resume(self) -> None:
        """Continue the process: a job may have suspended it before it had started all attempts."""
        if self._ended is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        """Listen no longer."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _read(self, pipe: int) -> None:
        with suppress(BlockingIOError):
            while part := os.read(pipe, _READ_BYTES):
                self._unfinished += part
        *lines, self._unfinished = self._unfinished.split(b"\n")
        for line in lines:
            position, code = line.split()
            self._told[int(position)] = int(code)


class Child(NamedTuple):
    """The keeper of one attempt."""

    starter: Starter
    position: int

    def exit_code(self) -> int | None:
        """Its exit code, or :data:`UNKNOWN`; None if it was not seen to end."""
        return self.starter.exit_code(self.position)


def start(plans: Sequence[dict[str, Any]]) -> Starter:
    """Start supervisors that read their ``plans`` from memory; returns at once. Raises OSError."""
    documents = [json.dumps(plan).encode() for plan in plans]
    if len(plans) == 1:
        # The arguments show the folder of the attempt in process lists. The plan, which may hold secrets, is not among them, and
        # the environment of the supervisor is empty.
        return Starter(_spawn([f"{plans[0]['attempts_dir']}/{plans[0]['attempt']}"], documents[0]))
    argument = argument_for(plans[0]["attempts_dir"], [plan["attempt"] for plan in plans])
    codes, told = os.pipe()
    try:
        os.set_blocking(codes, False)
        pid = _spawn([SEVERAL, argument], b"".join((head_of(documents), *documents)), told)
    except BaseException:
        os.close(codes)
        raise
    finally:
        os.close(told)
    return Starter(pid, codes)


def _spawn(arguments: Sequence[str], given: bytes, output: int | None = None) -> int:
    """Start the program with ``given`` as its input; returns its process number. Raises OSError."""
    file = os.memfd_create("sooner-plan")
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(given)
        os.lseek(file, 0, os.SEEK_SET)
        streams = [(os.POSIX_SPAWN_DUP2, file, 0)]
        if output is not None:
            streams.append((os.POSIX_SPAWN_DUP2, output, 1))
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _PROGRAM, *arguments],
            {},
            file_actions=streams,
            setsigmask=(),
        )
    finally:
        os.close(file)
