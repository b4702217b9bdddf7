"""Replays the service's newest jobs in the simulator with the predictions of each candidate, to compare completion times.

Cluster, policy and costs are the service's own. The criterion is the mean completion time; the accuracy of the predictions was
judged before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from predictor.replay_sheet import SheetJob
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJob, SimJobs, prepare
from service.sim.workloads.model import Workload, WorkloadJob

Make = Callable[[], Policy[Any]]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Mean completion time in seconds per arm, over the same ``jobs`` jobs; ``skipped`` could not run on this cluster.

    ``over_run_mean_jct_s`` is that of the best arm under other rules for jobs that outlive their estimates.
    """

    policy: str
    jobs: int
    skipped: int
    mean_jct_s: Mapping[str, float]
    over_run_mean_jct_s: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "policy": self.policy,
            "jobs": self.jobs,
            "skipped": self.skipped,
            "mean_jct_s": {arm: round(value, 3) for arm, value in self.mean_jct_s.items()},
            "over_run_mean_jct_s": {rule: round(value, 3) for rule, value in self.over_run_mean_jct_s.items()},
        }


def rehearse(
    sheet: Sequence[SheetJob],
    cluster: Cluster,
    make: Make,
    options: SimulationOptions,
    other_rules: Mapping[str, Make] | None = None,
) -> Rehearsal:
    """Replay the jobs of a sheet once for each of its arms, and the best arm once more under each of ``other_rules``.

    Deterministic. Raises ValueError for a sheet without jobs.
    """
    if not sheet:
        raise ValueError("there are no jobs to replay")
    start_s = min(job.row.submission.submitted_at_s for job in sheet)
    rows = Workload("replay", tuple(_row(job, start_s) for job in sheet))
    # A job may have run on servers that no longer exist.
    prepared = prepare(rows, cluster, checkpoint_period_s=options.checkpoint_period_s, skip_invalid=True)
    if not prepared.jobs:
        raise ValueError("no job of the replay fits the cluster as it is now")
    by_id = {str(job.row.submission.job): job for job in sheet}

    def mean_jct_s(arm: str, policy: Policy[Any]) -> float:
        jobs = [_predicted(job, by_id[job.row.job_id], arm) for job in prepared.jobs]
        run = run_jobs(SimJobs(jobs, prepared.skipped), cluster, policy, "recorded", options)
        return sum(outcome.finish_time_s - outcome.submit_time_s for outcome in run.outcomes) / len(run.outcomes)

    found = {arm: mean_jct_s(arm, make()) for arm in sheet[0].points}
    best = min(found, key=lambda arm: (found[arm], arm))
    ruled = {rule: mean_jct_s(best, other()) for rule, other in (other_rules or {}).items()}
    return Rehearsal(make().name, len(prepared.jobs), prepared.skipped, found, ruled)


def _row(job: SheetJob, start_s: float) -> WorkloadJob:
    of = job.row.submission
    return WorkloadJob(
        job_id=str(of.job),
        submit_time_s=of.submitted_at_s - start_s,
        gpus=of.gpus,
        duration_s=job.row.service_s,
        user=of.user,
        project=of.project,
        name=of.name,
        iterations=max(1, round(job.row.iterations)) if job.row.iterations is not None else None,
        walltime_s=of.walltime_s,
        gpu_type=of.gpu_type,
    )


def _predicted(job: SimJob, tested: SheetJob, arm: str) -> SimJob:
    per_unit_s = 1.0
    if tested.unit is Unit.ITERATIONS and job.iterations is not None:
        # Its speed is known from its first reports; the replay compares predictions of the total.
        per_unit_s = job.row.duration_s / job.iterations
    estimate = Estimate(tuple(tested.points[arm]), tested.unit, arm, seconds_per_unit=per_unit_s)
    return replace(job, predicted=estimate)
