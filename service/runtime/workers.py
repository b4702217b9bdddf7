"""Runs on all cores: worker processes that share what all runs read, each with one run at a time.

Where it can, the process forks: a worker then begins with all that its parent has read, and copies a page of memory only when one
of the two writes to it. A fork copies no thread, so a lock that another thread holds would stay locked for ever in the copy. A
process with other threads, be they of a library, starts new interpreters instead and passes what they need once to each.
"""

import math
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Generic, Literal, TypeVar

from service.runtime.garbage import frozen
from service.runtime.processes import die_with_parent
from service.runtime.signals import signals_later

_TICK_S = 0.2
"""Longest time between two calls of :meth:`Watch.tick` while processes run, and shortest between two messages of progress."""

_CGROUPS = Path("/sys/fs/cgroup")

Value = TypeVar("Value")
Method = Literal["fork", "spawn"]

Task = Callable[[int, Callable[[float], None]], Value]
"""Makes the run of a number. Its second argument takes the share of the run that is done, from 0 to 1."""


class WorkerLost(Exception):
    """The process of a run was killed or ended by itself."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        if self.exit_code == -signal.SIGKILL:
            return "its worker process was killed, probably for lack of memory"
        return f"its worker process ended with exit code {self.exit_code}"


class Watch(Generic[Value]):
    """What is done at each event, in the process that called :func:`run_each`. What a method raises ends all runs."""

    def next_of(self, waiting: Sequence[int]) -> int:
        """The run to begin next, one of ``waiting``."""
        return waiting[0]

    def began(self, run: int) -> None:
        """A run begins."""

    def moved(self, run: int, share: float) -> None:
        """The share of a run that is done."""

    def ended(self, run: int, value: Value) -> None:
        """A run has ended with this value."""

    def failed(self, run: int, error: Exception, trace: str) -> None:
        """A run has failed, or its process was :class:`WorkerLost`. ``trace`` is the traceback, "" without one."""
        raise with_trace(error, trace)

    def tick(self) -> None:
        """Time has passed."""


def with_trace(error: Exception, trace: str) -> Exception:
    """The error with a note of its traceback, where that stayed in a worker."""
    if trace and error.__traceback__ is None:
        error.add_note(trace)
    return error


def cores(proc: Path = Path("/proc/self"), cgroups: Path = _CGROUPS) -> int:
    """The cores that this process may use: those of its affinity, within the CPU limits of its control groups (v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        group = next(line for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::"))[3:]
        folder = cgroups / group.strip("/")
        for each in (folder, *folder.parents):
            if not each.is_relative_to(cgroups):
                break
            with suppress(OSError, ValueError):
                quota, period = (each / "cpu.max").read_text().split()
                if quota != "max":
                    allowed = min(allowed, max(1, math.ceil(int(quota) / int(period))))
    return allowed


def best_method() -> Method:
    """How this process starts workers: by a fork where it is Linux and has no other thread."""
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208 names only, no paths
        return "fork"
    return "spawn"


def run_each(
    task: Task[Value], runs: Sequence[int], workers: int, watch: Watch[Value], method: Method | None = None
) -> None:
    """Make the runs, as many at a time as there are ``workers``, and tell ``watch``; one worker is this process.

    A run that raises an Exception, or whose process is lost, has failed; the others go on. When this function raises, no worker
    is left. Where workers are started by "spawn", the task must be one that can be pickled.
    """
    workers = min(workers, len(runs))
    if workers <= 1:
        _run_here(task, runs, watch)
        return
    method = method or best_method()
    with ExitStack() as stack:
        stack.enter_context(_sigterm_ends())
        team = stack.enter_context(_Team(task, method, watch))
        waiting = list(runs)
        while waiting or team.busy:
            while waiting and team.busy < workers:
                run = watch.next_of(waiting)
                waiting.remove(run)
                team.give(run)
                watch.began(run)
            team.hear()
            watch.tick()


def _run_here(task: Task[Value], runs: Sequence[int], watch: Watch[Value]) -> None:
    waiting = list(runs)
    while waiting:
        run = watch.next_of(waiting)
        waiting.remove(run)
        watch.began(run)
        try:
            value = task(run, partial(watch.moved, run))
        except Exception as error:
            watch.failed(run, error, traceback.format_exc())
        else:
            watch.ended(run, value)


class _Worker:
    """One process and the pipe to it. ``run``: what it does, None if it waits."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.run: int | None = None


class _Team(Generic[Value]):
    """The worker processes. They are started when they are needed, and killed at the end of the context."""

    def __init__(self, task: Task[Value], method: Method, watch: Watch[Value]) -> None:
        self._task = task
        self._context: Any = get_context(method)
        self._forks = method == "fork"
        self._watch = watch
        self._workers: list[_Worker] = []
        self._stack = ExitStack()
        self._source: Any = None

    def __enter__(self) -> "_Team[Value]":
        with ExitStack() as stack:
            if self._forks:
                # A collection looks at every object and writes to it, and what is written is copied.
                stack.enter_context(frozen())
                self._source = self._task
            else:
                # As an argument it would go through a pipe that a worker empties only when it is up: they would start in turn.
                self._source = Path(stack.enter_context(TemporaryDirectory(prefix="sooner-runs-"))) / "task"
                self._source.write_bytes(pickle.dumps(self._task))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with signals_later(signal.SIGINT, signal.SIGTERM):
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.join()
                worker.process.close()
                worker.pipe.close()
            self._stack.close()

    @property
    def busy(self) -> int:
        """Workers that have a run."""
        return sum(worker.run is not None for worker in self._workers)

    def give(self, run: int) -> None:
        """Begin a run, in a worker that waits or in a new one."""
        idle = [each for each in self._workers if each.run is None]
        for each in idle:
            if not each.process.is_alive():
                self._drop(each)
        worker = next((each for each in idle if each in self._workers), None) or self._start()
        worker.run = run
        with suppress(OSError):  # it has ended meanwhile; hear() will notice
            worker.pipe.send(run)

    def hear(self) -> None:
        """Tell the watch what the workers say, waiting a moment for it."""
        talking = [worker for worker in self._workers if worker.run is not None]
        heard = wait([worker.pipe for worker in talking], _TICK_S)
        for worker in talking:
            if worker.pipe in heard:
                self._hear(worker)

    def _hear(self, worker: _Worker) -> None:
        run = worker.run
        assert run is not None
        try:
            kind, said = worker.pipe.recv()
        except (EOFError, OSError):
            self._watch.failed(run, WorkerLost(self._drop(worker)), "")
            return
        if kind == "moved":
            self._watch.moved(run, said)
            return
        worker.run = None
        if kind == "ended":
            self._watch.ended(run, said)
        else:
            self._watch.failed(run, *said)

    def _drop(self, worker: _Worker) -> int | None:
        """Forget a worker that ends or has ended, and return its exit code."""
        self._workers.remove(worker)
        worker.process.join()
        code: int | None = worker.process.exitcode
        worker.process.close()
        worker.pipe.close()
        return code

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._source, theirs))
        with signals_later(signal.SIGINT, signal.SIGTERM):  # the parent handles Ctrl-C, and ends them
            process.start()
            worker = _Worker(process, ours)
            self._workers.append(worker)
        # The pipe then ends when the worker does.
        theirs.close()
        return worker


@contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Raise SystemExit at SIGTERM, so that no worker is left; the exit code is that of shells."""
    if current_thread() is not main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# In a worker.


def _serve(source: Any, pipe: Connection) -> None:
    """Make the runs whose numbers come through the pipe, until it ends."""
    _belong_to_parent()
    task: Task[Any] = pickle.loads(source.read_bytes()) if isinstance(source, Path) else source  # noqa: S301 (our own parent)
    with suppress(EOFError):
        while True:
            run = pipe.recv()
            try:
                value = task(run, _reporter(pipe))
            except Exception as error:
                pipe.send(("failed", (_portable(error), traceback.format_exc())))
            else:
                pipe.send(("ended", value))


def _belong_to_parent() -> None:
    """Leave Ctrl-C to the parent, and end with it, also when it was killed and could not end this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    parent = parent_process()
    assert parent is not None
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent.pid:
            os._exit(1)
    else:
        Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _reporter(pipe: Connection) -> Callable[[float], None]:
    """Sends the share that is done, at a moderate pace."""
    next_s = time.monotonic() + _TICK_S

    def report(share: float) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + _TICK_S
            pipe.send(("moved", share))

    return report


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (made here)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
