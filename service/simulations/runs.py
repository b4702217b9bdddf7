"""One run of a comparison: a policy with its options and a predictor, on the jobs and servers that all its runs share."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from policies.model.cluster import Cluster
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run, run_jobs
from service.sim.jobs import SimJobs
from service.sim.results import Simulation
from service.sim.workloads.model import Workload

_ALLOCATIONS_A_COLLECTION = 200_000

Progress = Callable[[int, int], None]
"""(finished jobs, jobs), called as a run goes on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. ``label`` is what its result calls the policy; ``folder`` is where its files go (None: nowhere).

    ``jobs`` stand for those of the setting, of which other things were predicted.
    """

    label: str
    policy: str
    options: Mapping[str, str]
    predictor: str
    folder: Path | None = None
    jobs: SimJobs | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison share. ``draw``: condense each run into the figures of a report.

    ``prepared`` stands for jobs of which more is known than ``workload`` says.
    """

    workload: Workload
    cluster: Cluster
    options: SimulationOptions
    draw: bool = False
    prepared: SimJobs | None = None


def simulate(setting: Setting, plan: Plan, on_progress: Progress | None = None) -> Simulation:
    """One run with the time it took. Raises what :func:`service.sim.experiment.run` raises."""
    started_s = time.perf_counter()
    policy = make_policy(plan.policy, plan.options)
    with _rare_collections():
        prepared = setting.prepared if plan.jobs is None else plan.jobs
        if prepared is not None:
            simulation = run_jobs(prepared, setting.cluster, policy, plan.predictor, setting.options, on_progress)
        else:
            simulation = run(setting.workload, setting.cluster, policy, plan.predictor, setting.options, on_progress)
    wall_s = round(time.perf_counter() - started_s, 3)
    return replace(simulation, result=replace(simulation.result, policy=plan.label, wall_s=wall_s))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A simulation makes hardly any cyclic garbage, and looking for it again and again costs a tenth of the time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
