"""Starting and ending the processes of one attempt. Used by the supervisor alone; standard library only.

A rank is forked first and executed later. In between its process number and start time become durable, so a running command
can always be found again. Each rank leads a session of its own and dies with the supervisor.
"""

import contextlib
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from service.runtime.processes import (
    ProcessId,
    allow_tracing,
    die_with_parent,
    prefer_as_victim,
    process_info,
    set_mark,
)

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the supervisor and its keeper ignore."""
_RESETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that a rank could inherit as ignored from the supervisor, from Python or from the service's parent."""
NOT_EXECUTABLE = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Errors of execve for a command that does not exist or cannot be run."""


class Rank:
    """One process that Sooner started. ``code`` is its exit code, 128 + n after signal n; None while it lives.

    ``output`` and ``failure`` are the reading ends of its pipes, ``line`` is what it wrote of an unfinished line.
    """

    def __init__(self, index: int, process: ProcessId, output: int, failure: int) -> None:
        self.index = index
        self.id = process
        self.output = output
        self.failure = failure
        self.line = b""
        self.code: int | None = None


class Program(NamedTuple):
    """The command of a rank, its environment, working folder, umask, and the number by which its processes are found.

    ``account``: the user that it runs as, as :class:`service.runtime.accounts.Account` has it; None for this process' own.
    """

    command: list[str]
    env: dict[str, str]
    working_dir: Path
    umask: int
    mark: int
    account: dict[str, Any] | None


def fork_rank(index: int, program: Program, gate: tuple[int, int]) -> Rank:
    """Fork a rank that waits at the gate (a pipe) for one byte, and then executes the command.

    It never executes if the gate closes instead. An error before the command runs can be read from ``failure`` as an errno.
    """
    supervisor = os.getpid()
    output_read, output_write = os.pipe()
    failure_read, failure_write = os.pipe()
    if program.account is not None:
        # Else the program could write to its output, but not open /dev/stdout.
        os.fchown(output_write, program.account["uid"], program.account["gid"])
    pid = os.fork()
    if pid == 0:
        _become(program, gate, (output_write, failure_write), supervisor)
    os.close(output_write)
    os.close(failure_write)
    os.set_blocking(output_read, False)
    info = process_info(pid)
    assert info is not None, "a child that was not waited for has an entry in /proc"
    return Rank(index, info.id, output_read, failure_read)


def _become(program: Program, gate: tuple[int, int], pipes: tuple[int, int], supervisor: int) -> None:
    output, failure = pipes
    try:
        # Only the supervisor may hold the gate's writing end, or its death would not close the gate.
        os.close(gate[1])
        os.setsid()
        die_with_parent()
        if os.getppid() != supervisor or os.read(gate[0], 1) != b"!":
            os._exit(1)
        for signum in _RESETTABLE:
            signal.signal(signum, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        allow_tracing()
        set_mark(program.mark)
        prefer_as_victim()
        os.umask(program.umask)
        if program.account is not None:
            become_user(program.account)
            die_with_parent()  # ended by the change of the user
            if os.getppid() != supervisor:
                os._exit(1)
        os.chdir(program.working_dir)
        os.execvpe(program.command[0], program.command, program.env)  # noqa: S606 no shell is the point
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    except BaseException:  # whatever it is, this copy of the supervisor must not run on
        os.write(failure, str(errno.EINVAL).encode())
    finally:
        os._exit(127)


def become_user(account: dict[str, Any]) -> None:
    """Give up all rights but those of a user and its groups. Raises OSError."""
    os.setgroups(account["groups"])
    os.setresgid(account["gid"], account["gid"], account["gid"])
    os.setresuid(account["uid"], account["uid"], account["uid"])


def can_enter(folder: Path, account: dict[str, Any]) -> bool:
    """Whether a user can enter a folder, found out by a process of this user. Raises OSError."""
    pid = os.fork()
    if pid == 0:
        try:
            become_user(account)
            os.chdir(folder)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def exists(program: Program) -> bool:
    """Whether there is a file of the command, wherever execve looks for it."""
    command = program.command[0]
    folders = [""] if "/" in command else os.get_exec_path(program.env)
    return any(os.access(program.working_dir / folder / command, os.F_OK) for folder in folders)


def open_gate(gate: tuple[int, int], ranks: list[Rank]) -> int:
    """Let all ranks execute; returns 0, or the errno of the first that could not."""
    os.write(gate[1], b"!" * len(ranks))
    os.close(gate[0])
    os.close(gate[1])
    first = 0
    for rank in ranks:
        answer = b""
        while part := os.read(rank.failure, 64):
            answer += part
        os.close(rank.failure)
        first = first or int(answer or b"0")
    return first


def reap(ranks: dict[int, Rank]) -> tuple[list[Rank], bool]:
    """Collect ended children: returns the ranks among them in order, and whether any child is left."""
    ended: list[Rank] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        rank = ranks.get(pid)
        if rank is not None and rank.code is None:
            code = os.waitstatus_to_exitcode(status)
            rank.code = code if code >= 0 else 128 - code
            ended.append(rank)


def attempt_exit_code(codes: list[int]) -> int:
    """The attempt's code from its ranks' codes *in the order they ended*.

    0 if all are 0; 75 if each is 0 or 75 and one is 75; else the first other code.
    """
    other = [code for code in codes if code not in (0, 75)]
    if other:
        return other[0]
    return 75 if 75 in codes else 0


def prepare_signals() -> int:
    """Ignore the signals that a terminal or a service manager may send to a whole group, except SIGTERM.

    Returns the reading end of a pipe that gets one byte a signal (SIGCHLD, SIGTERM).
    """
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read


def redirect_standard_streams(errors: Path) -> None:
    """Detach from the service's standard streams: no input, and errors go to a file."""
    nothing = os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(OSError):
        target = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, 2)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    sys.stdout = sys.stderr
