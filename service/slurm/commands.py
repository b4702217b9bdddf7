"""Calls of Slurm's commands: argument lists, a timeout each, an environment of their own, and errors by kind.

No shell reads an argument. Variables such as ``SBATCH_PARTITION`` or ``SQUEUE_FORMAT`` of the caller change no answer.
"""

import contextlib
import os
import pwd
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

OUTPUT_BYTES_MAX: Final = 256 * 1024**2
"""Of one answer: ``squeue --json`` takes about 3 KiB a job, so this is far above Slurm's own limit on jobs in its memory."""
TIMEOUT_S: Final = 20.0
"""Above Slurm's own timeout of a message (MessageTimeout, 10 s), so that its own error is seen first."""
_ERROR_CHARACTERS_MAX: Final = 500
_INHERITED: Final = ("PATH", "TZ", "SLURM_CONF")
_CHUNK_BYTES: Final = 1 << 16
_KILLED_S: Final = 1.0
"""Longest wait for the end of a killed process."""

_AWAY: Final = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "zero bytes were transmitted or received",
    "unable to establish controller machine",
    "unable to establish configuration source",
    "could not establish a configuration source",
    "failed while looking for",
    "slurm backup controller in standby mode",
    "resource temporarily unavailable",
    "unable to create tcp connection",
    "persistent connection",
    "problem talking to the database",
    "failed to connect to",
    "munge encode failed",
    "authentication credential",
    "protocol authentication error",
)
"""Parts of messages about a daemon that does not answer; all others are refusals."""
_PASSING: Final = (
    "required partition not available",
    "requested partition configuration not available now",
    "partition in down state",
    "required node not available",
    "requested nodes are busy",
    "requested reservation is in use",
    "requested reservation not usable now",
    "requested operation is presently disabled",
    "system submissions disabled",
    "licenses currently unavailable",
    "breached requested qos usage threshold",
    "maxjobcount limit reached",
    "unable to create job record, try again",
    "max powered up nodes reached",
    "rate limit exceeded",
    "i/o error writing script/environment to file",
    "unable to connect to database",
)
"""Parts of messages about a state of Slurm that passes."""
_LIMITED: Final = "job violates accounting/qos policy"
_LIMIT: Final = re.compile(r"\b(?:Assoc|QOS|Max)(?=[A-Z])\w+")
"""The name of a limit, in a line of its own before the message."""


class SlurmError(Exception):
    """A call of one of Slurm's commands failed. The message names the command."""


class SlurmMissing(SlurmError):
    """The command is not installed, or may not be executed."""


class SlurmTimeout(SlurmError):
    """The command did not end in time and was killed. Whether it had an effect is unknown."""


class SlurmAway(SlurmError):
    """One of Slurm's daemons did not answer, or a signal ended the command. Whether it had an effect is unknown."""


class SlurmRefused(SlurmError):
    """Slurm refused the call, which had no effect. The message is Slurm's."""


class SlurmNotNow(SlurmRefused):
    """A refusal that may pass: the same call may succeed later."""


class SlurmUnreadable(SlurmError):
    """The answer is too large or does not have the expected form."""


class SlurmCommands:
    """Runs Slurm's commands. Safe to call from several threads.

    ``conf``: the file for ``SLURM_CONF`` (None: that of the environment, if any). ``environ``: in place of this process' one.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        conf: Path | None = None,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        given = os.environ if environ is None else environ
        self._timeout_s = timeout_s
        self._output_bytes_max = output_bytes_max
        self._environ = {name: given[name] for name in _INHERITED if name in given}
        # Times as seconds since 1970, messages in English, and lists of array tasks in full.
        self._environ |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        if conf is not None:
            self._environ["SLURM_CONF"] = str(conf)

    def path(self, command: str) -> str:
        """The path of a command. Raises :class:`SlurmMissing`."""
        found = shutil.which(command, path=self._environ.get("PATH", os.defpath))
        if found is None:
            raise SlurmMissing(f"{command} is not installed on this machine, or is not in PATH")
        return found

    def run(
        self,
        command: str,
        *arguments: str,
        input: bytes = b"",
        timeout_s: float | None = None,
        user: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run ``command`` and return its standard output. Raises :class:`SlurmError`.

        ``input`` is its standard input. ``user``: the system user that it runs as (None: that of this process), see
        :func:`as_user`. ``variables`` of its environment are not visible to other users, as its arguments are.
        """
        argv = [*as_user(user), self.path(command), *arguments]
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
            stdin.write(input)
            stdin.seek(0)
            process = _start(command, argv, {**self._environ, **(variables or {})}, stdin, stderr)
            try:
                stdout = self._read(command, process, time.monotonic() + limit_s, limit_s)
            finally:
                _end(process)
            stderr.seek(0)
            message = stderr.read(_CHUNK_BYTES).decode(errors="replace")
        if process.returncode != 0:
            raise _failure(command, process.returncode, message or stdout.decode(errors="replace"))
        return stdout.decode(errors="replace")

    def _read(self, command: str, process: "subprocess.Popen[bytes]", deadline_s: float, limit_s: float) -> bytes:
        """The whole output; the process has ended afterwards."""
        assert process.stdout is not None
        parts, size = [], 0
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise SlurmTimeout(f"{command} did not end within {limit_s:g} s")
                part = os.read(process.stdout.fileno(), _CHUNK_BYTES)
                if not part:
                    break
                parts.append(part)
                size += len(part)
                if size > self._output_bytes_max:
                    raise SlurmUnreadable(f"{command} wrote more than {self._output_bytes_max} bytes")
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SlurmTimeout(f"{command} did not end within {limit_s:g} s") from None
        return b"".join(parts)


def own_user() -> str:
    """The system user of this process, by its user id: variables such as LOGNAME may name another one."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # as a container with a user id of its own may have it


def as_user(user: str | None) -> Sequence[str]:
    """What stands before a command that runs as ``user``: root changes to the user, others need a rule for sudo."""
    if user is None or user == own_user():
        return ()
    if os.geteuid() == 0:
        return ("runuser", "-u", user, "--")
    return ("sudo", "-n", "-u", user, "--")


def _start(
    command: str, argv: Sequence[str], environ: Mapping[str, str], stdin: IO[bytes], stderr: IO[bytes]
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=environ, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise SlurmMissing(f"{command} cannot be started: {error.strerror}: {argv[0]}") from error


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill what still runs of the call: sudo runs the command as a child of its own. Waits for at most a second."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()
    try:
        process.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        # A process of another user, such as sudo, cannot be killed. It is reaped whenever it ends.
        threading.Thread(target=process.wait, name="slurm-reaper", daemon=True).start()


def _failure(command: str, code: int, message: str) -> SlurmError:
    # A command that sudo or runuser started: they report its signal by their own exit code.
    signalled = -code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else 0
    if signalled:
        text = _short(message)
        return SlurmAway(f"{command}: ended by signal {signalled}" + (f": {text}" if text else ""))
    return failure(command, _short(message) or f"exit code {code}")


def failure(command: str, message: str) -> SlurmError:
    """The error for a message of a command.

    :class:`SlurmAway` if a daemon did not answer, :class:`SlurmNotNow` for a refusal that may pass, else :class:`SlurmRefused`.
    """
    text = message.lower()
    if any(part in text for part in _AWAY):
        kind: type[SlurmError] = SlurmAway
    elif any(part in text for part in _PASSING) or (_LIMITED in text and _may_pass(message)):
        kind = SlurmNotNow
    else:
        kind = SlurmRefused
    return kind(f"{command}: {message}")


def _may_pass(message: str) -> bool:
    """Whether a limit on how much an account or a QOS may use admits the job later.

    One on the number of submitted jobs does when others have ended. Every other one that is checked at the submission is exceeded
    by the job alone. Old versions do not name the limit.
    """
    named = _LIMIT.findall(message)
    return not named or any("Submit" in limit for limit in named)


def _short(message: str) -> str:
    """The message in one line, without the names of the commands that stand before each of its lines."""
    lines = [line.partition(": error: ")[2] or line for line in message.splitlines() if line.strip()]
    text = "; ".join(dict.fromkeys(line.strip() for line in lines))
    return text if len(text) <= _ERROR_CHARACTERS_MAX else text[:_ERROR_CHARACTERS_MAX] + "..."
