"""Estimates that change while jobs wait and run: by what running programs report, and by the ends of other runs.

Reported totals, losses and first speeds are collected from reports, and passed to the predictor before the decision. Only
progress reports count. A total in the report of an attempt's end can no longer change a rank, and a simulated executor fills
in the true one there.
"""

from collections.abc import Sequence
from dataclasses import replace

from policies.model.decision import ChangeKind
from policies.model.estimate import Prediction, PredictionRequest, Reported, Unit, with_loss
from service.engine.cycle import Cycle
from service.engine.ports import Predictor
from service.engine.record import JobRecord

CURVES_PER_CYCLE_MAX = 500
"""Jobs whose estimates follow a new point of their loss curves in one cycle, so that ten thousand reports at once do not delay
a decision. Those of others follow their next point."""


def note_total(cycle: Cycle, job: JobRecord, total: float | None, iteration: float) -> None:
    """Store the job's least reported total, and note its newest one. A declaration is noted once it is exceeded, and where it
    did not count at the submission, because the job's speed was unknown.
    """
    declared = job.spec.declared_iterations
    if total is not None and total > 0.0:
        job.reported_iterations = total if job.reported_iterations is None else min(total, job.reported_iterations)
        cycle.totals[job.id] = total
    elif declared is not None and (iteration > declared or _counts_now(job)):
        cycle.totals[job.id] = float(declared)


def _counts_now(job: JobRecord) -> bool:
    estimate = job.estimate
    in_seconds = job.spec.profile is None and (estimate is None or estimate.unit is Unit.SERVICE_S)
    return in_seconds and job.measured_s_per_iteration is not None


def note_loss(cycle: Cycle, job: JobRecord, loss: float | None, iteration: float) -> None:
    """Add the loss to the job's curve, and note the job, once it has done enough iterations since the last point."""
    if loss is not None and (curve := with_loss(job.loss_curve, iteration, loss)) is not None:
        job.loss_curve = curve
        if len(cycle.curves) < CURVES_PER_CYCLE_MAX:
            cycle.curves[job.id] = None


def revise_estimates(cycle: Cycle, predictor: Predictor) -> None:
    """Revise the estimates of the jobs with a noted total, loss or speed, and report changed ones to the policy.

    O(reports). Raises what the predictor raises.
    """
    reported = {
        job_id: _reported(cycle, job)
        for job_id in {**cycle.totals, **cycle.measured, **cycle.curves}
        if not (job := cycle.world.jobs[job_id]).finished and (job.estimate is not None or job_id in cycle.totals)
    }
    answers = predictor.revise(cycle.now_s, list(reported.values()))
    for job_id, answer in zip(reported, answers, strict=True):
        if answer is not None:
            _replace(cycle, cycle.world.jobs[job_id], answer)


def refresh_estimates(cycle: Cycle, jobs: Sequence[JobRecord], predictions: Sequence[Prediction | None]) -> None:
    """Give jobs their newer predictions, where those differ. The first one of a job is kept whole, because it is scored; of later
    ones nobody reads what other models would have said. A job that reports its loss is noted: the new estimate leaves that out.
    """
    for job, prediction in zip(jobs, predictions, strict=True):
        if prediction is not None and prediction.estimate != job.estimate:
            if job.estimate is not None and job.loss_curve is not None:
                cycle.curves[job.id] = None
            _replace(cycle, job, prediction if job.estimate is None else replace(prediction, shadows=()))


def may_refresh(job: JobRecord) -> bool:
    """Whether the job's estimate rests on the past and its declaration alone, if it has one. A program that has reported a total,
    or has outlived what it declared, says more of itself.
    """
    declared = job.spec.declared_iterations
    outlived = declared is not None and job.iterations > declared
    return not job.finished and job.reported_iterations is None and not outlived


def _replace(cycle: Cycle, job: JobRecord, prediction: Prediction) -> None:
    """Rank the job by another prediction from now on."""
    job.estimate = prediction.estimate
    cycle.world.time_again(job)
    cycle.touch(job).prediction = prediction
    cycle.change(ChangeKind.ESTIMATED, job)


def _reported(cycle: Cycle, job: JobRecord) -> Reported:
    named = (job.reported_iterations, job.spec.declared_iterations)
    return Reported(
        request=PredictionRequest(job.id, job.spec, job.submitted_at_s),
        estimate=job.estimate,
        iterations=job.iterations,
        service_s=job.service_s,
        total_iterations=cycle.totals.get(job.id),
        least_iterations=min((each for each in named if each is not None), default=None),
        seconds_per_iteration=job.measured_s_per_iteration,
        seconds_by_span=job.seconds_by_span if job.id in cycle.measured else None,
        loss_curve=job.loss_curve,
        curve_counts=job.id in cycle.curves,
    )
