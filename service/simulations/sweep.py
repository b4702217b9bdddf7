"""Many runs of one workload on all cores: the same results whatever the number of workers, in the order of the plans."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from service.runtime.workers import Watch, cores, run_each
from service.sim.predictors import PredictorNameError
from service.sim.workloads.files import WorkloadError
from service.simulations.course import Course, Kind, rough_cost
from service.simulations.kept import keys_of, read_kept, write_kept, write_unkept, writing_into
from service.simulations.runs import Finished, Plan, Setting, finish

JOBS_WORTH_A_PROCESS = 500
"""Below this many jobs in all, starting processes takes longer than the runs."""

ENDS_ALL = (PredictorNameError, WorkloadError, OSError)
"""Errors that end all runs: the others would fail in the same way."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A run without a result. ``trace``: the traceback of an error that nobody foresaw, else ""."""

    plan: Plan
    error: Exception
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Keeping:
    """The folder in which finished runs are kept, below which ``Plan.folder`` lies. ``again``: make all of them anew."""

    folder: Path
    again: bool = False


Show = Callable[[Course], None]
"""Shows how far the runs are; called often."""


def sweep(
    setting: Setting,
    plans: Sequence[Plan],
    workers: int | None = None,
    keeping: Keeping | None = None,
    show: Show = lambda course: None,
    taken_over: Callable[[int], None] = lambda runs: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Finished | Failed]:
    """Make the runs, but those that ``keeping`` has, and return what became of each.

    ``workers``: None for one per core, or for this process alone where starting workers takes longer. ``taken_over`` is called
    with the number of runs that need not be made, before any is. Raises WorkloadError, PredictorNameError, OSError for files that
    cannot be written, and InUse; a run that fails otherwise is :class:`Failed`, and the others go on.
    """
    found: dict[int, Finished | Failed] = {}
    with writing_into(keeping.folder) if keeping is not None else nullcontext():
        keys = None if keeping is None else keys_of(setting, plans)
        if keys is not None and keeping is not None and not keeping.again:
            for run, (plan, key) in enumerate(zip(plans, keys, strict=True)):
                assert plan.folder is not None
                kept = read_kept(plan.folder, key, draw=setting.draws(plan))
                if kept is not None:
                    found[run] = kept
        waiting = [run for run in range(len(plans)) if run not in found]
        if workers is None:
            small = len(setting.workload.jobs) * len(waiting) < JOBS_WORTH_A_PROCESS
            workers = 1 if small else cores()
        workers = max(1, min(workers, len(waiting)))
        course = Course([_kind(plan) for plan in plans], workers, clock)
        for run, each in found.items():
            assert isinstance(each, Finished)
            course.taken_over(run, each.result.wall_s)
        taken_over(len(found))
        task = partial(_make, setting, list(plans), keys, keeping.folder if keeping is not None else None)
        show(course)
        run_each(task, waiting, workers, _Sweep(plans, course, found, show))
    return [found[run] for run in range(len(plans))]


def _kind(plan: Plan) -> Kind:
    name = (plan.policy, tuple(sorted(plan.options.items())), plan.predictor)
    return Kind(name, rough_cost(plan.policy, plan.options, plan.predictor))


def _make(
    setting: Setting,
    plans: Sequence[Plan],
    keys: Sequence[str] | None,
    root: Path | None,
    run: int,
    note: Callable[[float], None],
) -> Finished:
    """One run, in a worker."""
    plan = plans[run]
    simulation, finished = finish(setting, plan, lambda done, jobs: note(done / jobs))
    if keys is not None and root is not None:
        write_kept(finished, simulation, plan, keys[run], setting.workload.name, root)
    elif plan.folder is not None:
        write_unkept(simulation, plan.folder, setting.workload.name)
    return finished


class _Sweep(Watch[Finished]):
    def __init__(self, plans: Sequence[Plan], course: Course, found: dict[int, Finished | Failed], show: Show) -> None:
        self._plans = plans
        self._course = course
        self._found = found
        self._show = show

    def next_of(self, waiting: Sequence[int]) -> int:
        return self._course.longest(waiting)

    def began(self, run: int) -> None:
        self._course.began(run)

    def moved(self, run: int, share: float) -> None:
        self._course.moved(run, share)
        self.tick()

    def ended(self, run: int, value: Finished) -> None:
        self._found[run] = value
        self._course.ended(run)
        self.tick()

    def failed(self, run: int, error: Exception, trace: str) -> None:
        if isinstance(error, ENDS_ALL):
            raise error
        self._found[run] = Failed(self._plans[run], error, trace)
        self._course.failed(run)
        self.tick()

    def tick(self) -> None:
        self._show(self._course)
