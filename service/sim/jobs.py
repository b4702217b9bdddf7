"""Turns a workload's rows into jobs that the engine can run, with their true totals, and computes the lower bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import overload

from policies.bounds import BoundJob, Bounds, lower_bound
from policies.catalogue import UnknownModel, pipeline
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate
from policies.model.graph import StageGraph
from policies.model.ids import JobId
from policies.model.job import IterationTimes, JobSpec, PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown
from policies.model.value import value
from policies.throughput import NeverFits, iteration_times_over, times_of
from policies.training.gpu_names import meant_by, types_meant
from service.domain.counts import count_of
from service.sim.sensitivity import drawn_iterations, true_slowdown
from service.sim.work import JobTruth
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload, WorkloadJob

RETRIES_MAX = 2**31
"""Simulated programs have no defects, so that every failure is retried."""


@value
class SimJob:
    """One row of the workload: what the engine sees (``id``, ``spec``), and the truth.

    ``predicted`` is the first prediction that a service made, for jobs of its own history. ``slowdown`` is the true one by span
    and ``slowed_times`` what follows from it: both are None for a job with a stage graph, and where no slowdowns are drawn.
    """

    id: JobId
    row: WorkloadJob
    spec: JobSpec
    times: IterationTimes | None
    iterations: float | None
    predicted: Estimate | None = None
    slowdown: Slowdown | None = None
    slowed_times: IterationTimes | None = None

    def truth(self) -> JobTruth:
        """A new truth, without progress."""
        return JobTruth(self.row.duration_s, self.iterations, self.times or self.slowed_times)

    @property
    def floor_duration_s(self) -> float:
        """Run time at alpha_floor: no placement is faster."""
        return (
            self.row.duration_s if self.times is None else self.row.duration_s * self.times.floor_s / self.times.min_s
        )


@dataclass(frozen=True, slots=True)
class SimJobs:
    """The jobs that fit the cluster, and how many rows do not or broke the table."""

    jobs: Sequence[SimJob]
    skipped: int


def prepare(
    workload: Workload,
    cluster: Cluster,
    *,
    checkpoint_period_s: float | None = 300.0,
    skip_invalid: bool = False,
    slowdowns_seed: int | None = None,
) -> SimJobs:
    """Jobs in submission order, numbered from 1.

    ``slowdowns_seed``: draw a hidden slowdown for the jobs without a stage graph; None: they run equally fast anywhere.

    A row that no set of the cluster's servers can hold, or that names an unknown model, is a :class:`WorkloadError` that
    names the job; with ``skip_invalid`` it is left out and counted.
    """
    rows: list[WorkloadJob] = []
    skipped = len(workload.skipped)
    for row in workload.jobs:
        try:
            _check_fit(row, cluster)
            rows.append(row)
        except ValueError as error:
            if not skip_invalid:
                raise WorkloadError(f"job {row.job_id!r} {error}", file=workload.name) from error
            skipped += 1
    return SimJobs(JobsOfRows(rows, cluster, checkpoint_period_s, slowdowns_seed), skipped)


def unfit(workload: Workload, cluster: Cluster) -> list[tuple[WorkloadJob, str]]:
    """The rows that :func:`prepare` leaves out with ``skip_invalid``, each with what follows its name: ``needs 9 GPUs, ...``."""
    found: list[tuple[WorkloadJob, str]] = []
    for row in workload.jobs:
        try:
            _check_fit(row, cluster)
        except ValueError as error:
            found.append((row, str(error)))
    return found


def _check_fit(row: WorkloadJob, cluster: Cluster) -> None:
    """Raise ValueError for a row that cannot be a job of the cluster."""
    _check_size(row, cluster)
    if row.model:
        _pace(row, cluster)


class JobsOfRows(Sequence[SimJob]):
    """The jobs of rows that are known to fit, numbered from 1. Each is made when it is asked for, and not kept: of a million
    jobs few are unfinished at any instant."""

    def __init__(
        self,
        rows: Sequence[WorkloadJob],
        cluster: Cluster,
        checkpoint_period_s: float | None,
        slowdowns_seed: int | None = None,
    ) -> None:
        self.rows = rows
        self._slowdowns_seed = slowdowns_seed
        self._cluster = cluster
        self._checkpoint_period_s = checkpoint_period_s

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> SimJob: ...
    @overload
    def __getitem__(self, index: slice) -> list[SimJob]: ...
    def __getitem__(self, index: int | slice) -> SimJob | list[SimJob]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self.rows)))]
        at = index if index >= 0 else len(self.rows) + index
        job = _sim_job(JobId(at + 1), self.rows[index], self._cluster, self._checkpoint_period_s)
        return job if self._slowdowns_seed is None else _slowed(job, self._cluster, self._slowdowns_seed)

    def bounded(self) -> list[BoundJob]:
        """What the lower bound takes of each job. Most rows name no model: their jobs need not be made."""
        return [
            BoundJob(row.submit_time_s, row.gpus, self[at].floor_duration_s if row.model else row.duration_s)
            for at, row in enumerate(self.rows)
        ]


def bounds_of(jobs: Sequence[SimJob], cluster: Cluster) -> Bounds:
    """The lower bound on the mean JCT of these jobs on this cluster."""
    if isinstance(jobs, JobsOfRows):
        return lower_bound(jobs.bounded(), cluster.gpus)
    return lower_bound(
        [BoundJob(job.row.submit_time_s, job.row.gpus, job.floor_duration_s) for job in jobs], cluster.gpus
    )


def _sim_job(job_id: JobId, row: WorkloadJob, cluster: Cluster, checkpoint_period_s: float | None) -> SimJob:
    types = _types(row, cluster)
    graph, parallelism, times = _pace(row, cluster) if row.model else (None, None, None)
    iterations = float(row.iterations) if row.iterations is not None else None
    if iterations is None and times is not None:
        iterations = max(1.0, float(round(row.duration_s / times.min_s)))
    spec = JobSpec(
        name=row.name,
        user=row.user,
        gpus=row.gpus,
        project=row.project,
        stage_graph=graph,
        parallelism=parallelism,
        model=row.model or None,
        gpu_type=types[0] if types else None,
        gpu_type_fallbacks=types[1:],
        declared_iterations=row.declared_iterations,
        walltime_s=row.walltime_s,
        checkpoint_period_s=checkpoint_period_s,
        max_retries=RETRIES_MAX,
        # Simulated programs all take the warning signal: a graceful preemption loses no work.
        preemption=_SIGNAL,
    )
    return SimJob(job_id, row, spec, times, iterations)


def _slowed(job: SimJob, cluster: Cluster, seed: int) -> SimJob:
    """The job with the hidden slowdown of its program, and with iterations by which it can be measured."""
    if job.times is not None or job.row.gpus == 1:
        return job
    slowdown = true_slowdown(seed, job.row)
    iterations = job.iterations if job.iterations is not None else drawn_iterations(seed, job.row)
    times = times_of(job.spec, cluster, slowdown)
    return replace(job, iterations=iterations, slowdown=slowdown, slowed_times=times)


_SIGNAL = PreemptionSignal()


def _types(row: WorkloadJob, cluster: Cluster) -> tuple[str, ...]:
    """The GPU types that the row may use, by the cluster's names; empty for all."""
    return meant_by((row.gpu_type,), cluster) if row.gpu_type else ()


def _pace(row: WorkloadJob, cluster: Cluster) -> tuple[StageGraph, ParallelismConfig, IterationTimes]:
    """What the row's model means on this cluster; ValueError says why it means nothing."""
    try:
        graph, parallelism = _pipeline(row.model, row.gpus)
        return graph, parallelism, iteration_times_over(graph, parallelism, cluster, _types(row, cluster))
    except UnknownModel as error:
        raise ValueError(f"names an unknown model: {error}") from error
    except NeverFits as error:
        raise ValueError(f"can never start: {error}") from error


@lru_cache(maxsize=1024)
def _pipeline(model: str, gpus: int) -> tuple[StageGraph, ParallelismConfig]:
    """A trace repeats few models and sizes many times, and cutting a network into stages is not for free."""
    return pipeline(model, gpus)


def _check_size(row: WorkloadJob, cluster: Cluster) -> None:
    """A gang never mixes GPU types, so one type must be able to hold it."""
    if row.gpu_type:
        most = max((cluster.gpus_by_type[name] for name in types_meant(row.gpu_type, cluster)), default=0)
        kind = f" {row.gpu_type}"
    else:
        most = max(cluster.gpus_by_type.values())
        kind = " of one type" if len(cluster.gpus_by_type) > 1 else ""
    if row.gpus > most:
        raise ValueError(f"needs {count_of(row.gpus, 'GPU')}, but cluster {cluster.name!r} has {most}{kind}")
