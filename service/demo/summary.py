"""Results of the demo's jobs: completion times beside simulated ones, errors of predictions, and the cost of preemption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from policies.registry import make_policy
from service.client import Client
from service.config.cluster_file import load_cluster
from service.db.session import open_database
from service.db.tables import JOBS
from service.demo.server import RESTART_S
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Result
from service.sim.workloads.model import Workload, WorkloadJob

if TYPE_CHECKING:
    from service.wire.jobs import AttemptDocument, JobDocument, PredictionDocument


_SERVICE_S_MIN = 1e-3
"""Least duration of a job. A workload's durations are positive, but the measured one may be 0."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished job as the service measured it. Times are seconds since the Unix epoch, ``*_gpu_s`` GPU-seconds.

    ``service_s`` is productive running time over all attempts, ``wasted_gpu_s`` the held time without progress that counts.
    """

    id: int
    name: str
    gpus: int
    submitted_at_s: float
    finished_at_s: float
    service_s: float
    iterations: float
    held_gpu_s: float
    wasted_gpu_s: float
    preemptions: int

    @property
    def jct_s(self) -> float:
        """Submission to finish."""
        return self.finished_at_s - self.submitted_at_s


def measured(database_url: str, ids: Sequence[int]) -> list[Measured]:
    """The finished ones of these jobs, from the service's own records."""
    columns: list[Any] = [
        JOBS.c[name]
        for name in (
            *("id", "name", "gpus", "submitted_at_s", "finished_at_s", "service_s"),
            *("iterations", "held_gpu_s", "wasted_gpu_s", "preemptions"),
        )
    ]
    statement = select(*columns).where(JOBS.c.id.in_(ids), JOBS.c.finished_at_s.is_not(None)).order_by(JOBS.c.id)
    with closing(open_database(database_url)) as database, database.reading() as session:
        return [Measured(*row) for row in session.connection().execute(statement)]


def replay(jobs: Sequence[Measured], cluster_file: Path, policy: str) -> Result:
    """The same jobs (submit times, GPUs, measured service) in the simulator under another policy with known sizes."""
    first_s = min(job.submitted_at_s for job in jobs)
    rows = tuple(
        WorkloadJob(
            job_id=str(job.id),
            submit_time_s=job.submitted_at_s - first_s,
            gpus=job.gpus,
            duration_s=max(job.service_s, _SERVICE_S_MIN),
            name=job.name,
        )
        for job in sorted(jobs, key=lambda job: (job.submitted_at_s, job.id))
    )
    options = SimulationOptions(restart_s=RESTART_S)
    return run(Workload("demo", rows), load_cluster(cluster_file), make_policy(policy), "oracle", options).result


@dataclass(frozen=True, slots=True)
class FamilyError:
    """The prediction errors of a family. ``factor`` 1.2 = the median job was off by 1.2x."""

    name: str
    jobs: int
    factor: float
    inside: int


def prediction_errors(client: Client, jobs: Sequence[JobDocument]) -> list[FamilyError]:
    """The errors by family, of the scored first predictions, which ranked the jobs."""
    scored: dict[str, list[PredictionDocument]] = {}
    for job in jobs:
        first = client.predictions.list(job["id"])[-1:]
        scored.setdefault(job["name"], []).extend(each for each in first if each["log_error"] is not None)
    return [
        FamilyError(
            name,
            len(predictions),
            median(math.exp(abs(each["log_error"] or 0.0)) for each in predictions),
            sum(each["p10"] <= (each["actual"] or 0.0) <= each["p90"] for each in predictions),
        )
        for name, predictions in sorted(scored.items())
        if predictions
    ]


@dataclass(frozen=True, slots=True)
class Resumption:
    """A preempted attempt and the next one: the iterations at which the job stopped and resumed."""

    job: int
    stopped_at: float
    resumed_at: float

    @property
    def lost_iterations(self) -> float:
        """Work that was done twice."""
        return max(0.0, self.stopped_at - self.resumed_at)


def resumptions(attempts: Sequence[AttemptDocument]) -> list[Resumption]:
    """The preemptions of one job that were followed by another attempt."""
    return [
        Resumption(before["job_id"], before["last_iteration"] or before["resume_iteration"], after["resume_iteration"])
        for before, after in pairwise(attempts)
        if before["state"] == "preempted"
    ]
