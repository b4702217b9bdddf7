"""A child process that answers pickled requests, one at a time, until its input ends.

Parent and child run the same version of the program, so the messages are not a stable format. The parent limits the time of each
request and kills a child that exceeds it. The next request starts a new child.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from service.runtime.processes import prefer_as_victim

_LENGTH_BYTES = 8

START_S = 60.0
"""Time limit, on a busy machine, from the start of a process until it reads its first request."""


class ChildLost(Exception):
    """The child ended, or was killed, before it answered."""


class ChildTimeout(ChildLost):
    """The child was killed because it took too long."""


class ChildClosed(Exception):
    """The :class:`Child` is closed and starts no process."""


class Child:
    """One child process, started with the first request and again after it was lost. Safe to call from several threads.

    ``command`` starts it, in this process's environment with ``more``; its program calls :func:`serve`.
    """

    def __init__(self, command: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._more = dict(more or {})
        self._turn = threading.Lock()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, message: bytes, timeout_s: float) -> Any:
        """Send a pickled request and return the answer, or raise the exception that the child answered with.

        Raises ChildLost, ChildTimeout and ChildClosed too.
        """
        with self._turn:
            process, is_new = self._running()
            expired = threading.Event()

            def expire() -> None:
                expired.set()
                process.kill()

            watchdog = threading.Timer(timeout_s + (START_S if is_new else 0.0), expire)
            watchdog.daemon = True
            watchdog.start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                write_message(process.stdin, message)
                answer = read_message(process.stdout)
            except (OSError, ValueError):
                answer = None
            finally:
                watchdog.cancel()
            if answer is None:
                with suppress(subprocess.TimeoutExpired):  # prefer the child's own exit code to that of the kill
                    process.wait(1.0)
                _end(process)
                raise ChildTimeout if expired.is_set() else ChildLost(f"exit code {process.returncode}")
        found = pickle.loads(answer)  # noqa: S301 (our own child)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Kill the process. A request in progress is lost, and no process starts afterwards."""
        with self._starting:
            self._closed = True
            process = self._process
        if process is not None:
            _end(process)

    def _running(self) -> tuple[subprocess.Popen[bytes], bool]:
        """Return the process, and whether this call started it."""
        with self._starting:
            if self._closed:
                raise ChildClosed
            if self._process is not None and self._process.poll() is None:
                return self._process, False
            if self._process is not None:
                _end(self._process)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # The child reads no settings, and a job's variables must not mark it as a process of a job.
                env={name: value for name, value in os.environ.items() if not name.startswith("SOONER_")} | self._more,
                start_new_session=True,
            )
            return self._process, True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, then close both pipes. A reader in another thread sees the end of the pipe first."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # closing flushes unsent bytes into a broken pipe
                pipe.close()


def serve(answer: Callable[[Any], Any], answered: type[Exception]) -> None:
    """Run in the child: answer the requests on standard input until it ends.

    Exceptions of the type ``answered`` are sent as answers; others end the child. What anything else writes to standard output
    goes to standard error: between the answers it would break the stream.
    """
    prefer_as_victim()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (message := read_message(sys.stdin.buffer)) is not None:
        try:
            found = answer(pickle.loads(message))  # noqa: S301 (our own parent)
        except answered as error:
            found = error
        try:
            write_message(answers, pickle.dumps(found))
        except BrokenPipeError:
            # The parent has ended. Closing drops the rest of the answer, which would be flushed at the exit.
            with suppress(BrokenPipeError):
                answers.close()
            return


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Write the length of the message, then the message."""
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(message)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """Read the next message. None at the end of the stream, also in the middle of a message."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "big")
    message = stream.read(size)
    return message if len(message) == size else None
