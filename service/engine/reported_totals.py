"""What running programs say of their own totals: noted from their reports, weighed by the predictor before the decision.

A total is taken from a report of progress alone. What is said at an attempt's end changes no rank any more, and a simulated
executor knows the truth by then.
"""

from policies.model.decision import ChangeKind
from policies.model.estimate import PredictionRequest, Reported
from service.engine.cycle import Cycle
from service.engine.ports import Predictor
from service.engine.record import JobRecord


def note_total(cycle: Cycle, job: JobRecord, total: float | None, iteration: float) -> None:
    """Remember the least total that the job has named; have the newest weighed, and a declaration that it has passed."""
    if total is not None and total > 0.0:
        job.reported_iterations = total if job.reported_iterations is None else min(total, job.reported_iterations)
        cycle.totals[job.id] = total
    elif job.spec.declared_iterations is not None and iteration > job.spec.declared_iterations:
        cycle.totals[job.id] = float(job.spec.declared_iterations)


def weigh_totals(cycle: Cycle, predictor: Predictor) -> None:
    """Revise the estimates of the jobs of which a total was noted, and tell the policy of those that have changed.

    O(reports). Raises what the predictor raises.
    """
    reported = {
        job_id: _reported(job, total)
        for job_id, total in cycle.totals.items()
        if (job := cycle.world.jobs[job_id]).estimate is not None and not job.finished
    }
    answers = predictor.revise(cycle.now_s, list(reported.values()))
    for job_id, answer in zip(reported, answers, strict=True):
        if answer is not None:
            job = cycle.world.jobs[job_id]
            job.estimate = answer.estimate
            cycle.touch(job).prediction = answer
            cycle.change(ChangeKind.ESTIMATED, job)


def _reported(job: JobRecord, total: float) -> Reported:
    assert job.estimate is not None
    named = (job.reported_iterations, job.spec.declared_iterations)
    return Reported(
        request=PredictionRequest(job.id, job.spec, job.submitted_at_s),
        estimate=job.estimate,
        iterations=job.iterations,
        service_s=job.service_s,
        total_iterations=total,
        least_iterations=min(each for each in named if each is not None),
        seconds_per_iteration=job.measured_s_per_iteration,
    )
