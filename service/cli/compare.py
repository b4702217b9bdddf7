"""Several simulations of one workload side by side: one worker process a core, results in the order of the plans."""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from service.sim.faults import FaultCounts
from service.sim.predictors import PredictorNameError
from service.sim.results import Result, Unfinished, write_simulation
from service.sim.workloads.files import WorkloadError
from service.simulations.runs import Plan, Progress, Setting, simulate

if TYPE_CHECKING:
    from service.reports.comparison_data import RunFigures

JOBS_WORTH_A_PROCESS = 2000
"""Below this many jobs in all, starting processes takes longer than the runs."""
_POLL_S = 0.2
"""How often the progress bar looks at what the workers have done."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a run; ``figures`` is None unless they are drawn, ``faults`` in a run without faults."""

    result: Result
    figures: "RunFigures | None"
    unfinished: Sequence[Unfinished] = ()
    faults: FaultCounts | None = None


class _Counts(Protocol):
    """An array that processes share: finished jobs of each run."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def compare(setting: Setting, plans: Sequence[Plan], workers: int | None = None) -> list[Finished]:
    """Run the plans and return their results in the order of the plans, however many ``workers`` there are.

    None: one worker per core, or this process alone where starting workers takes longer. Raises what :func:`simulate`
    raises, OSError for files that cannot be written, and BrokenProcessPool if a worker was killed.
    """
    jobs = len(setting.workload.jobs)
    if workers is None:
        workers = 1 if jobs * len(plans) < JOBS_WORTH_A_PROCESS else _cores()
    workers = min(workers, len(plans))
    with progress_bars([_name(plan, plans) for plan in plans], jobs) as show:
        if workers > 1:
            return _in_processes(setting, plans, workers, show)
        return [_finish(setting, plan, _reporter(show, index)) for index, plan in enumerate(plans)]


def _reporter(show: Callable[[int, int], None] | None, index: int) -> Progress | None:
    if show is None:
        return None
    return lambda finished, jobs: show(index, finished)


def _finish(setting: Setting, plan: Plan, on_progress: Progress | None) -> Finished:
    """Run, write the files and condense, in the process that holds the run's jobs.

    An unexpected exception gets a note that names the run.
    """
    try:
        simulation = simulate(setting, plan, on_progress)
    except (PredictorNameError, WorkloadError):
        raise
    except Exception as error:
        error.add_note(f"in the run of {plan.label} with predictor {plan.predictor}")
        raise
    if plan.folder is not None:
        write_simulation(simulation, plan.folder, setting.workload.name)
    drawn = None
    if setting.draw:
        from service.reports.comparison_data import figures

        drawn = figures(simulation, plan.label)
    return Finished(simulation.result, drawn, simulation.unfinished, simulation.faults)


def _in_processes(
    setting: Setting, plans: Sequence[Plan], workers: int, show: Callable[[int, int], None] | None
) -> list[Finished]:
    context = get_context("spawn")
    counts: Any = context.Array("q", len(plans), lock=False)
    with TemporaryDirectory(prefix="sooner-compare-") as folder:
        # As an argument it would go through a pipe that a worker empties only when it is up: they would start in turn.
        shared = Path(folder) / "setting"
        shared.write_bytes(pickle.dumps(setting))
        pool = ProcessPoolExecutor(workers, context, _begin, (shared, counts))
        try:
            with _sigterm_ends():
                with _signals_later():
                    futures = [pool.submit(_work, index, plan) for index, plan in enumerate(plans)]
                _watch(futures, counts, show)
                return [future.result() for future in futures]
        except BaseException:
            # The comparison failed or was interrupted, so its other runs are of no use.
            for child in active_children():
                child.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Delay signals, and start processes with SIGINT and SIGTERM blocked: the parent handles Ctrl-C and ends them.

    They inherit the mask of this thread. Other threads of this process may block nothing, so a handler records the signal.
    """
    if current_thread() is not main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


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


def _watch(futures: Sequence[Future[Finished]], counts: _Counts, show: Callable[[int, int], None] | None) -> None:
    """Until all are done or one has failed."""
    pending = set(futures)
    while pending and not any(future.done() and future.exception() is not None for future in futures):
        _, pending = wait(pending, _POLL_S if show is not None else None, "FIRST_EXCEPTION")
        if show is not None:
            for index in range(len(futures)):
                show(index, counts[index])


_shared: tuple[Setting, _Counts] | None = None
"""In a worker process: the data that its runs share, sent once instead of with each run."""


def _begin(shared: Path, counts: _Counts) -> None:
    """Start of a worker. It ends with its parent, also with one that was killed and could not end it."""
    global _shared
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    Thread(target=_end_with_parent, daemon=True).start()
    _shared = (pickle.loads(shared.read_bytes()), counts)  # noqa: S301 (our own parent)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _work(index: int, plan: Plan) -> Finished:
    assert _shared is not None
    setting, counts = _shared

    def note(finished: int, jobs: int) -> None:
        counts[index] = finished

    return _finish(setting, plan, note)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _name(plan: Plan, plans: Sequence[Plan]) -> str:
    several = len({each.predictor for each in plans}) > 1
    return f"{plan.label} ({plan.predictor})" if several else plan.label


@contextmanager
def progress_bars(names: Sequence[str], jobs: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar a run on standard error; None, and nothing is drawn, where that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = [bars.add_task(name, total=max(1, jobs)) for name in names]
        yield lambda index, finished: bars.update(tasks[index], completed=finished)
