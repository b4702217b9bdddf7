"""Child processes with limits on wall time, processor time and memory. The kernel kills such a process when its parent ends.

The process sets its own limits before it executes the program (:func:`main`). So no code has to run between fork and exec in a
service with many threads.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from service.runtime.processes import die_with_parent, prefer_as_victim

NICENESS = 10
"""The scheduler, and jobs that run on this machine, have a higher priority."""

_CPU_GRACE_S = 5
"""Time from SIGXCPU at the soft limit, which ends a Python process, to SIGKILL at the hard limit."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment in which libraries for numbers start no threads."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """``wall_s`` of real time, ``cpu_s`` of processor time, ``memory_bytes`` of address space (code of libraries included)."""

    wall_s: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended: ``limit`` names the limit that ended it ("" for none), ``stderr`` is its standard error."""

    code: int
    stderr: str = ""
    limit: str = ""

    @property
    def timed_out(self) -> bool:
        """Whether it exceeded its real or its processor time."""
        return self.limit != "" and self.code in (-signal.SIGKILL, -signal.SIGXCPU)

    @property
    def last_line(self) -> str:
        """The last line of standard error; without one, the exit code or the signal."""
        lines = self.stderr.strip().splitlines()
        if lines:
            return lines[-1]
        return f"exit code {self.code}" if self.code >= 0 else f"ended by signal {-self.code}"


class Closed(RuntimeError):
    """The runner is closed: it starts no process, and the running one was killed."""


class LimitedRunner:
    """Runs one process at a time. One thread may use it; any thread may call :meth:`close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._launching = threading.Lock()
        self._closing = threading.Event()

    def start(self, module: str, arguments: Sequence[str], limits: ResourceLimits) -> int:
        """Start ``python -m module arguments``; returns its process id. Raises :class:`Closed`."""
        command = limited_command(module, *arguments, cpu_s=ceil(limits.cpu_s), memory_bytes=limits.memory_bytes)
        with self._launching:
            # Under the lock a concurrent close either sees the process or prevents its start.
            if self._closing.is_set():
                raise Closed
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                # The process reads no settings, and a job's variables must not mark it as a process of a job.
                env={name: value for name, value in os.environ.items() if not name.startswith("SOONER_")},
                start_new_session=True,
            )
            return self._process.pid

    def wait(self, wall_s: float) -> Finished:
        """Wait for the end; kill the process after ``wall_s``. Raises :class:`Closed` if :meth:`close` ended it."""
        process = self._process
        assert process is not None, "start() comes first"
        try:
            _, stderr = process.communicate(timeout=wall_s)
        except subprocess.TimeoutExpired:
            process.kill()
            _, stderr = process.communicate()
            return Finished(process.returncode, stderr, f"stopped after {wall_s:.0f} s (retrain_timeout_s)")
        finally:
            self._process = None
        if self._closing.is_set():
            raise Closed
        return Finished(process.returncode, stderr, _limit(process.returncode, stderr))

    def run(self, module: str, arguments: Sequence[str], limits: ResourceLimits) -> Finished:
        """:meth:`start`, then :meth:`wait`."""
        self.start(module, arguments, limits)
        return self.wait(limits.wall_s)

    def close(self) -> None:
        """Kill the running process. No process starts afterwards."""
        with self._launching:
            self._closing.set()
            if self._process is not None:
                self._process.kill()


def _limit(code: int, stderr: str) -> str:
    if code == -signal.SIGXCPU:
        return "exceeded its processor time (retrain_timeout_s)"
    # C and C++ libraries report what Python raises as MemoryError with texts of their own.
    if code != 0 and ("MemoryError" in stderr or "bad_alloc" in stderr or "Cannot allocate memory" in stderr):
        return "exceeded its memory (retrain_memory_bytes_max)"
    return ""


def limited_command(module: str, *arguments: str, memory_bytes: int, cpu_s: int = resource.RLIM_INFINITY) -> list[str]:
    """The command that runs ``python -m module arguments`` within limits, as a child of this process and thread."""
    return [sys.executable, "-m", __name__, str(os.getpid()), str(cpu_s), str(memory_bytes), module, *arguments]


def main(arguments: Sequence[str]) -> None:
    """Limit this process, then execute the program: ``PARENT_PID CPU_S MEMORY_BYTES MODULE [ARGUMENT ...]``."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("parent", "cpu_s", "memory_bytes"):
        parser.add_argument(name, type=int)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    limit_this_process(options.parent, options.cpu_s, options.memory_bytes)
    os.execv(sys.executable, [sys.executable, "-m", *options.program])  # noqa: S606 (our own program)


def limit_this_process(parent: int, cpu_s: int, memory_bytes: int) -> None:
    """Let this process end with its parent, step back for others, and stay within limits, after an exec too."""
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
    os.nice(NICENESS)
    prefer_as_victim()
    if cpu_s != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + _CPU_GRACE_S))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(ONE_THREAD)


if __name__ == "__main__":
    main(sys.argv[1:])
