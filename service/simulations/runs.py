"""One run of a comparison: a policy with its options and a predictor, on the jobs and servers that all its runs share."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from policies.model.cluster import Cluster
from policies.registry import make_policy
from service.runtime.garbage import frozen
from service.sim.experiment import SimulationOptions, run, run_jobs
from service.sim.faults import FaultCounts
from service.sim.jobs import SimJobs
from service.sim.predictors import PredictorNameError
from service.sim.results import Result, Simulation, Unfinished
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload

if TYPE_CHECKING:
    from service.reports.comparison_data import RunFigures

_ALLOCATIONS_A_COLLECTION = 200_000

Progress = Callable[[int, int], None]
"""(finished jobs, jobs), called as a run goes on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. ``label`` is what its result calls the policy; ``folder`` is where its files go (None: nowhere).

    ``jobs`` stand for those of the setting, of which other things were predicted. ``seed``: None for that of the setting.
    """

    label: str
    policy: str
    options: Mapping[str, str]
    predictor: str
    folder: Path | None = None
    jobs: SimJobs | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison share. ``draw``: condense each run into the figures of a report; one of another seed is not.

    ``prepared`` stands for jobs of which more is known than ``workload`` says.
    """

    workload: Workload
    cluster: Cluster
    options: SimulationOptions
    draw: bool = False
    prepared: SimJobs | None = None

    def draws(self, plan: Plan) -> bool:
        """Whether the run of this plan is condensed into figures."""
        return self.draw and seed_of(self, plan) == self.options.seed


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a run; ``figures`` is None unless they are drawn, ``faults`` in a run without faults."""

    result: Result
    figures: "RunFigures | None"
    unfinished: Sequence[Unfinished] = ()
    faults: FaultCounts | None = None


def seed_of(setting: Setting, plan: Plan) -> int:
    """The seed of a run."""
    return setting.options.seed if plan.seed is None else plan.seed


def finish(setting: Setting, plan: Plan, on_progress: Progress | None = None) -> tuple[Simulation, Finished]:
    """Run and condense, in the process that holds the run's jobs. An unexpected exception gets a note that names the run."""
    try:
        simulation = simulate(setting, plan, on_progress)
    except (PredictorNameError, WorkloadError):
        raise
    except Exception as error:
        error.add_note(f"in the run of {plan.label} with predictor {plan.predictor}")
        raise
    drawn = None
    if setting.draws(plan):
        from service.reports.comparison_data import figures

        drawn = figures(simulation, plan.label)
    return simulation, Finished(simulation.result, drawn, simulation.unfinished, simulation.faults)


def simulate(setting: Setting, plan: Plan, on_progress: Progress | None = None) -> Simulation:
    """One run with the time it took. Raises what :func:`service.sim.experiment.run` raises."""
    started_s = time.perf_counter()
    policy = make_policy(plan.policy, plan.options)
    seed = seed_of(setting, plan)
    options = replace(
        setting.options, seed=seed, keep_spans=setting.options.keep_spans and seed == setting.options.seed
    )
    with _rare_collections():
        prepared = setting.prepared if plan.jobs is None else plan.jobs
        if prepared is not None:
            simulation = run_jobs(prepared, setting.cluster, policy, plan.predictor, options, on_progress)
        else:
            simulation = run(setting.workload, setting.cluster, policy, plan.predictor, options, on_progress)
    wall_s = round(time.perf_counter() - started_s, 3)
    return replace(simulation, result=replace(simulation.result, policy=plan.label, wall_s=wall_s))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A simulation makes hardly any cyclic garbage, and looking for it again and again costs a tenth of the time."""
    before = gc.get_threshold()
    with frozen():
        gc.set_threshold(_ALLOCATIONS_A_COLLECTION, *before[1:])
        try:
            yield
        finally:
            gc.set_threshold(*before)
