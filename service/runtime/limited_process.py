"""A child process with limits of wall time, processor time and memory. It never outlives its parent.

The limits are set by the process itself before it becomes the program (:func:`main`): nothing has to run between fork and exec in
a service with many threads.
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

from service.runtime.processes import die_with_parent

NICENESS = 10
"""Scheduling and the jobs on this machine come first."""

_CPU_GRACE_S = 5
"""Between the warning at the processor limit (which ends a Python process) and the kernel's last word."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """``wall_s`` of real time, ``cpu_s`` of processor time, ``memory_bytes`` of address space (a library's code counts too)."""

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
        """Whether it took too long, of real or of processor time."""
        return self.limit != "" and self.code in (-signal.SIGKILL, -signal.SIGXCPU)

    @property
    def last_line(self) -> str:
        """The last line of its standard error; without one, how it ended."""
        lines = self.stderr.strip().splitlines()
        if lines:
            return lines[-1]
        return f"exit code {self.code}" if self.code >= 0 else f"ended by signal {-self.code}"


class Closed(RuntimeError):
    """No process starts, or goes on, any more."""


class LimitedRunner:
    """Runs one limited program at a time, for one thread; :meth:`close` may come from any."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._launching = threading.Lock()
        self._closing = threading.Event()

    def start(self, module: str, arguments: Sequence[str], limits: ResourceLimits) -> int:
        """Start ``python -m module arguments``; returns its process id. Raises :class:`Closed`."""
        command = limited_command(module, *arguments, cpu_s=ceil(limits.cpu_s), memory_bytes=limits.memory_bytes)
        with self._launching:
            # Either the close that comes now sees the process, or the process is never made.
            if self._closing.is_set():
                raise Closed
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                # It needs nothing of the service's settings, and nobody should take it for a job of this service.
                env={name: value for name, value in os.environ.items() if not name.startswith("SOONER_")},
                start_new_session=True,
            )
            return self._process.pid

    def wait(self, wall_s: float) -> Finished:
        """Its end, or, after ``wall_s``, the end that it is given. Raises :class:`Closed` where :meth:`close` ended it."""
        process = self._process
        assert process is not None, "started before"
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
        """Kill what runs; nothing starts afterwards."""
        with self._launching:
            self._closing.set()
            if self._process is not None:
                self._process.kill()


def _limit(code: int, stderr: str) -> str:
    if code == -signal.SIGXCPU:
        return "it took more processor time than it may (retrain_timeout_s)"
    # A library in C says what Python raises as MemoryError in words of its own.
    if code != 0 and ("MemoryError" in stderr or "bad_alloc" in stderr or "Cannot allocate memory" in stderr):
        return "it took more memory than it may (retrain_memory_bytes_max)"
    return ""


def limited_command(module: str, *arguments: str, memory_bytes: int, cpu_s: int = resource.RLIM_INFINITY) -> list[str]:
    """The command that runs ``python -m module arguments`` within limits, as a child of this process and thread."""
    return [sys.executable, "-m", __name__, str(os.getpid()), str(cpu_s), str(memory_bytes), module, *arguments]


def main(arguments: Sequence[str]) -> None:
    """Limit this process, then become the program: ``PARENT_PID CPU_S MEMORY_BYTES MODULE [ARGUMENT ...]``."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("parent", "cpu_s", "memory_bytes"):
        parser.add_argument(name, type=int)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    die_with_parent()
    if os.getppid() != options.parent:
        sys.exit("the parent process has ended")
    os.nice(NICENESS)
    if options.cpu_s != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (options.cpu_s, options.cpu_s + _CPU_GRACE_S))
    resource.setrlimit(resource.RLIMIT_AS, (options.memory_bytes, options.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(_ONE_THREAD)
    os.execv(sys.executable, [sys.executable, "-m", *options.program])  # noqa: S606 (our own program)


if __name__ == "__main__":
    main(sys.argv[1:])
