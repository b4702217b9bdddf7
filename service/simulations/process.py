"""A what-if run in a process of its own: at low CPU priority, within limits of time and memory, and never longer than its parent.

The kernel kills the process when the thread that started it ends, and its workers with it, so that no run outlives its service.
"""

import json
import os
import pickle
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

from service.runtime.child import read_message, write_message
from service.runtime.limited_process import limited_command
from service.simulations.worker import Question

WALL_S = 3600.0
"""Time limit of a run. 3,000 jobs under three policies took 14 s of a busy core."""

MEMORY_BYTES = 4 << 30
"""Address space of the process of a run, and of each of its workers. A period of 3,000 jobs took 100 MB of memory."""

_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "Memory allocation")


class Progress(NamedTuple):
    """``done`` of ``total``: jobs of all policies together, or sampled futures."""

    done: int
    total: int


class Ended(NamedTuple):
    """How a run ended: with a ``report``, or with the reason why there is none."""

    report: dict[str, object] | None
    reason: str = ""
    unexpected: str = ""
    """The standard error of a process that failed as it never should; for the log."""


@contextmanager
def simulating(
    question: Question, wall_s: float = WALL_S, memory_bytes: int = MEMORY_BYTES
) -> Iterator["SimulationProcess"]:
    """A run, from its start to the end of its process, which comes at the latest at the end of this context."""
    with tempfile.TemporaryFile() as stderr:
        process = SimulationProcess(question, stderr, wall_s, memory_bytes)
        try:
            yield process
        finally:
            process.close()


class SimulationProcess:
    """The process of one run. The thread that started it calls the methods."""

    def __init__(self, question: Question, stderr: IO[bytes], wall_s: float, memory_bytes: int) -> None:
        self._deadline_s = time.monotonic() + wall_s
        self._too_long = f"exceeded its time limit of {wall_s:g} s; choose a shorter period or fewer policies"
        self._too_large = f"needed more than {memory_bytes >> 20} MiB of memory; choose a shorter period"
        self._messages: queue.Queue[bytes | None] = queue.Queue()
        self._stderr = stderr
        self._process = subprocess.Popen(
            limited_command("service.simulations.worker", cpu_s=int(wall_s) + 1, memory_bytes=memory_bytes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # The process reads no settings, and a job's variables must not mark it as a process of a job.
            env={name: value for name, value in os.environ.items() if not name.startswith("SOONER_")},
            start_new_session=True,
        )
        self._feeder = threading.Thread(target=self._talk, args=(question,), name="simulation pipe", daemon=True)
        self._feeder.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def next(self, wait_s: float) -> Progress | Ended | None:
        """What the process said next; None if it says nothing for ``wait_s``. After :class:`Ended` nothing follows."""
        if time.monotonic() > self._deadline_s:
            self._process.kill()
            return Ended(None, self._too_long)
        try:
            message = self._messages.get(timeout=wait_s)
        except queue.Empty:
            return None
        if message is None:
            return self._silent()
        said = json.loads(message)
        if "done" in said:
            return Progress(said["done"], said["total"])
        if "report" in said:
            return Ended(said["report"])
        return Ended(None, self._too_large if said["failed"] == "out of memory" else said["failed"])

    def close(self) -> None:
        """Kill the process, if it has not ended, and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._feeder.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # closing flushes unsent bytes into a broken pipe
                pipe.close()

    def _talk(self, question: Question) -> None:
        """Send the question, then pass on all messages, and None at the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # the process has ended
            write_message(self._process.stdin, pickle.dumps(question))
        while (message := read_message(self._process.stdout)) is not None:
            self._messages.put(message)
        self._messages.put(None)

    def _silent(self) -> Ended:
        """The process has ended without an answer."""
        code = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")
        if code == -signal.SIGXCPU:
            return Ended(None, self._too_long)
        # C and C++ libraries report what Python raises as MemoryError with texts of their own.
        if any(text in said for text in _OUT_OF_MEMORY):
            return Ended(None, self._too_large)
        if code == -signal.SIGKILL:
            return Ended(None, "its process was killed, probably for lack of memory")
        return Ended(None, f"its process ended with exit code {code}; the log of the service has the cause", said)
