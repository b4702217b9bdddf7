"""The service's own history as a workload: the true work of ended jobs, and their actual results.

``duration_s`` of a workload is the run time on an idle network at the best placement. It is computed from a job's productive
seconds: those at each placement are divided by the slowdown of that placement (1 without a graph).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.catalogue import UnknownModel, pipeline
from policies.lifecycle import TERMINAL, JobState
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import ArrayPlace, JobSpec, PreemptionSignal
from policies.model.placement import Placement, type_of
from policies.rank import OverRun, remaining_units
from policies.throughput import stretch_of, times_of
from policies.training.gpu_names import types_meant, with_types_of
from service.db.recorded_jobs import RecordedJob
from service.domain.fit import Fit
from service.sim.jobs import RETRIES_MAX, SimJob, SimJobs, bounds_of
from service.sim.results import JobOutcome, Result, summarise
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import DURATION_S_MIN, Workload, WorkloadJob

_FINAL_STATES = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "killed"}

UNFINISHED = "has not ended yet"
NEVER_RAN = "never ran"
KEPT_NO_WORK = "ran, but kept no work"
EARLIER = "was submitted before the window"


@dataclass(frozen=True, slots=True)
class OwnJob:
    """One ended job. ``row`` is its true work from the window's start on. ``carried``: it was submitted before the window.

    ``own_graph``: its graph is not that of a model of the catalogue, so a table cannot represent it.
    """

    recorded: RecordedJob
    row: WorkloadJob
    done_ratio: float = 0.0
    carried: bool = False
    own_graph: bool = False


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """A window of the past. ``start_s`` is second 0 of the rows; ``left_out`` counts the other jobs by reason."""

    start_s: float
    jobs: Sequence[OwnJob]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """As a table."""
        return Workload("own history", tuple(job.row for job in self.jobs))


def own_history(recorded: Sequence[RecordedJob], cluster: Cluster, since_s: float | None, *, carry: bool) -> OwnHistory:
    """The ended jobs of a window that begins at ``since_s`` (None: with the first submission).

    ``cluster`` holds every stored server at its position. With ``carry`` the jobs that were unfinished at the start of the window
    come first, submitted at second 0 with their remaining work. Without it they are left out.
    """
    start_s = since_s if since_s is not None else min((job.record.submitted_at_s for job in recorded), default=0.0)
    left_out: Counter[str] = Counter()
    jobs = []
    for each in recorded:
        job = each.record
        carried = job.submitted_at_s < start_s
        if job.state not in TERMINAL or job.finished_at_s is None:
            left_out[UNFINISHED] += 1
        elif each.reached is None or each.reached.service_s <= 0.0:
            left_out[_why_no_work(each)] += 1
        elif carried and not carry:
            left_out[EARLIER] += 1
        elif (own := _own_job(each, cluster, start_s, carried)) is not None:
            jobs.append(own)
        else:
            left_out[EARLIER if carried else _why_no_work(each)] += 1
    jobs.sort(key=lambda own: (own.row.submit_time_s, own.recorded.record.submitted_at_s, own.recorded.record.id))
    return OwnHistory(start_s, jobs, dict(left_out))


def _why_no_work(job: RecordedJob) -> str:
    ran = any(attempt.started_at_s is not None for attempt in job.attempts)
    return KEPT_NO_WORK if ran else NEVER_RAN


def _own_job(recorded: RecordedJob, cluster: Cluster, start_s: float, carried: bool) -> OwnJob | None:
    """The job in the window; None if it had no work, or none left at the start of the window, that a table can tell."""
    job, reached = recorded.record, recorded.reached
    assert job.finished_at_s is not None
    assert reached is not None
    spec = job.spec
    done_ratio = _share_before(recorded, start_s) if carried else 0.0
    left = 1.0 - done_ratio
    duration_s = reached.service_s / _mean_stretch(recorded, cluster) * left
    if duration_s < DURATION_S_MIN:
        return None
    model = _catalogue_model(spec)
    user, project, name = spec.recurrence
    row = WorkloadJob(
        job_id=str(job.id),
        submit_time_s=max(0.0, job.submitted_at_s - start_s),
        gpus=spec.gpus,
        duration_s=duration_s,
        user=user,
        project=project,
        # A profile run ends after a few iterations: under the program's name it would teach that as the program's length.
        name=name if spec.profile is None else spec.name,
        # The clock of the service that took the job may be ahead of the leader's, by which it ended.
        end_time_s=max(job.submitted_at_s, job.finished_at_s) - start_s,
        iterations=max(1, round(reached.iterations * left)) if reached.iterations is not None else None,
        model=model or "",
        declared_iterations=spec.declared_iterations,
        walltime_s=spec.walltime_s,
        gpu_type=_type_in_table(recorded, cluster),
        final_state=_FINAL_STATES[job.state],
    )
    return OwnJob(recorded, row, done_ratio, carried, own_graph=spec.stage_graph is not None and model is None)


def _type_in_table(job: RecordedJob, cluster: Cluster) -> str:
    """The GPU type of the job. A table has one at most: of a job that takes several, the last one on which it ran, which can
    hold it."""
    spec, attempts = job.record.spec, job.attempts
    if spec.gpu_type_fallbacks and attempts:
        return type_of(cluster, attempts[-1].placement)
    return spec.gpu_type or ""


def _catalogue_model(spec: JobSpec) -> str | None:
    """The catalogue model that equals this job's graph at its number of GPUs; a table holds no more than these."""
    if spec.model is None or spec.stage_graph is None:
        return None
    try:
        same = pipeline(spec.model, spec.gpus) == (spec.stage_graph, spec.parallelism)
    except (UnknownModel, ValueError):
        return None
    return spec.model if same else None


def _mean_stretch(job: RecordedJob, cluster: Cluster) -> float:
    """The mean slowdown of the job's placements, weighted by the run time of its attempts."""
    record = job.record
    if record.iteration_times is None:
        return 1.0
    weighted = [
        (ended_s - started_s, stretch_of(cluster, record.spec, record.iteration_times, attempt.placement))
        for attempt in job.attempts
        if (started_s := attempt.started_at_s) is not None
        and (ended_s := attempt.ended_at_s) is not None
        and ended_s > started_s
    ]
    total_s = sum(ran_s for ran_s, _ in weighted)
    # At half the speed half the work is done in the same time.
    work_s = sum(ran_s / stretch for ran_s, stretch in weighted)
    return total_s / work_s if work_s > 0.0 else 1.0


def _share_before(job: RecordedJob, at_s: float) -> float:
    """The share of the job's run time before ``at_s``."""
    ran_s = before_s = 0.0
    for attempt in job.attempts:
        if attempt.started_at_s is not None and attempt.ended_at_s is not None:
            ran_s += max(0.0, attempt.ended_at_s - attempt.started_at_s)
            before_s += max(0.0, min(at_s, attempt.ended_at_s) - attempt.started_at_s)
    return before_s / ran_s if ran_s > 0.0 else 0.0


def simulated_jobs(history: OwnHistory, cluster: Cluster, *, skip_invalid: bool = False) -> SimJobs:
    """The jobs for the simulator, on any cluster: as they were submitted, with their predictions and loss of work at a stop.

    A job that was submitted with ``hold`` may start at once: when it was released is not recorded with it.

    Raises :class:`WorkloadError` for a job that the cluster cannot hold; with ``skip_invalid`` it is left out and counted.
    """
    fit = Fit(cluster)
    kept: list[tuple[OwnJob, JobSpec]] = []
    for own in history.jobs:
        spec = _with_present_types(own.recorded.record.own_spec, cluster)
        refusal = fit.refusal(spec)
        if refusal is None:
            kept.append((own, with_types_of(spec, cluster)))
        elif not skip_invalid:
            raise WorkloadError(
                f"job {own.row.job_id!r} does not fit cluster {cluster.name!r}: {refusal[0]}", file="own history"
            )
    numbers = _Numbers(own for own, _ in kept)
    jobs = [_simulated(own, spec, numbers, cluster) for own, spec in kept]
    return SimJobs(jobs, len(history.jobs) - len(jobs))


class _Numbers:
    """The numbers of past jobs and of their arrays in a simulation, which counts its jobs from 1."""

    def __init__(self, kept: Iterable[OwnJob]) -> None:
        self._jobs: dict[JobId, JobId] = {}
        self._arrays: dict[JobId, JobId] = {}
        for number, own in enumerate(kept, start=1):
            record = own.recorded.record
            self._jobs[record.id] = JobId(number)
            if record.spec.array is not None:
                # An array has the number of its first job, which another job must not have.
                self._arrays.setdefault(record.spec.array.id, JobId(number))

    def of(self, past: JobId) -> JobId:
        """Of a job that is simulated."""
        return self._jobs[past]

    def simulated(self, needed: Iterable[JobId]) -> tuple[JobId, ...]:
        """Of those that are simulated; the others ended before the window, or are left out."""
        return tuple(self._jobs[past] for past in needed if past in self._jobs)

    def in_array(self, place: ArrayPlace | None) -> ArrayPlace | None:
        """The place in the array's simulated elements."""
        return None if place is None else replace(place, id=self._arrays[place.id])


def _with_present_types(spec: JobSpec, cluster: Cluster) -> JobSpec:
    """The job without the GPU types that the cluster does not have, if it has another one that the job takes."""
    present = [name for name in spec.gpu_types if types_meant(name, cluster)]
    if not present:
        return spec
    return replace(spec, gpu_type=present[0], gpu_type_fallbacks=tuple(present[1:]))


def _simulated(own: OwnJob, spec: JobSpec, numbers: _Numbers, cluster: Cluster) -> SimJob:
    past, row, period_s = own.recorded.record, own.row, spec.checkpoint_period_s
    times = times_of(spec, cluster)
    if times is not None and past.iteration_times is not None:
        # The same iterations at the best placement on these servers.
        row = replace(row, duration_s=row.duration_s * times.min_s / past.iteration_times.min_s)
    iterations = float(row.iterations) if row.iterations is not None else None
    if iterations is None and times is not None:
        iterations = max(1.0, float(round(row.duration_s / times.min_s)))
    return SimJob(
        numbers.of(past.id),
        row,
        replace(
            spec,
            after=numbers.simulated(spec.after),
            after_any=numbers.simulated(spec.after_any),
            array=numbers.in_array(spec.array),
            hold=False,
            max_retries=RETRIES_MAX,
            # A stop lost its work; but only a job that states no period is not stopped for others.
            checkpoint_period_s=period_s if past.graceful or period_s is None else math.inf,
            preemption=PreemptionSignal() if past.graceful else None,
        ),
        times,
        iterations,
        left_of(own.recorded.predicted, own),
    )


def left_of(predicted: Estimate | None, own: OwnJob) -> Estimate | None:
    """A prediction of the job, minus its progress at the start of the window; None where that progress is unknown."""
    if predicted is None or own.done_ratio == 0.0:
        return predicted
    reached = own.recorded.reached
    assert reached is not None
    total = reached.service_s if predicted.unit is Unit.SERVICE_S else reached.iterations
    if total is None:
        return None
    done = total * own.done_ratio
    alive = tuple(point - done for point in predicted.points if point > done)
    return replace(predicted, points=alive or (remaining_units(predicted.points, done, OverRun.DOUBLE)[0],))


def actual_result(history: OwnHistory, cluster: Cluster, jobs: Sequence[SimJob]) -> Result:
    """The actual results of the simulated jobs, for comparison with simulated results.

    The bound is that of the simulated jobs. Jobs from before the window count from its start.
    """
    own = {job.row.job_id: job for job in history.jobs}
    outcomes = [_outcome(own[job.row.job_id]) for job in jobs]
    return summarise(
        outcomes,
        policy="actual",
        predictor="recorded",
        seed=0,
        jobs=len(outcomes),
        skipped=0,
        first_submission_s=min((outcome.submit_time_s for outcome in outcomes), default=0.0),
        bounds=bounds_of(jobs, cluster),
        events=0,
    )


def _stops_after(job: RecordedJob, at_s: float) -> int:
    """The number of attempts that ended after ``at_s``, without the last one."""
    ended = sum(attempt.ended_at_s is not None and attempt.ended_at_s > at_s for attempt in job.attempts)
    return max(0, ended - 1)


def _outcome(own: OwnJob) -> JobOutcome:
    past, attempts, row = own.recorded.record, own.recorded.attempts, own.row
    assert row.end_time_s is not None
    left = 1.0 - own.done_ratio
    started_s = past.first_started_at_s if past.first_started_at_s is not None else past.finished_at_s
    assert started_s is not None
    assert past.finished_at_s is not None
    return JobOutcome(
        job_id=row.job_id,
        submit_time_s=row.submit_time_s,
        start_time_s=max(row.submit_time_s, started_s - (past.finished_at_s - row.end_time_s)),
        finish_time_s=row.end_time_s,
        duration_s=row.duration_s,
        walltime_s=row.walltime_s,
        # A simulation runs the job up to its actual end and counts that as a success.
        succeeded=True,
        gpus=row.gpus,
        preemptions=min(past.preemptions, _stops_after(own.recorded, past.finished_at_s - row.end_time_s)),
        held_s=past.held_gpu_s / row.gpus * left,
        wasted_s=past.wasted_gpu_s / row.gpus * left,
        placement=attempts[-1].placement if attempts else Placement(()),
        gpu_ids=(),
        user=row.user,
    )
