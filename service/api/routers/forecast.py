"""Forecasts of the queue and their accuracy, and plans: forecasts of jobs that are not submitted."""

from typing import Annotated

from fastapi import Query
from sqlalchemy import Connection

from policies.lifecycle import TERMINAL, JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.access import Caller
from service.api.capacity import OwnersCapacity
from service.api.deps import Deps, Leader, ToLeader
from service.api.documents import forecast_record_document, instant
from service.api.forecast_documents import accuracy_document, forecast_document, plan_documents
from service.api.paging import SERIAL, Page, Paging
from service.api.permissions import LIST_JOBS, READ, READ_JOB, SUBMIT
from service.api.problems import Problem, ProblemType
from service.api.routers.common import JobPath, Routes, job_or_404, require_job
from service.api.submission import check_dependencies, parse
from service.db import reads
from service.db.access import seen_jobs
from service.db.forecasts import forecasts_of, scored_forecasts
from service.domain.forecast_scores import accuracy
from service.forecast.forecast import Forecast, NoForecast
from service.wire.base import DIGITS_ALONE
from service.wire.bodies import Id, SubmissionBody
from service.wire.jobs import ToldDocument
from service.wire.predictions import AccuracyDocument, ForecastsDocument, JobForecastDocument, PlansDocument

routes = Routes("forecasts")

JOBS_ASKED_MAX = 500
"""Jobs that one request may name: those of a page."""

SCORED_MAX = 20_000
"""Newest scored forecasts behind an answer on accuracy: enough for every class, and read in a fraction of a second."""


@routes.read("/forecasts", LIST_JOBS, "Forecast the queue", 409, computes=True)
def list_forecasts(
    caller: Caller,
    dependencies: Deps,
    leader: ToLeader,
    job: Annotated[
        list[Id] | None, Query(max_length=JOBS_ASKED_MAX, description="Only these jobs; repeatable.")
    ] = None,
) -> ForecastsDocument:
    """Start and end of all unfinished jobs that the caller may see, in order of submission. At most one forecast is made per
    cycle. 409 if there is none; its `detail` gives the reason: too many jobs, no prediction yet, or a timeout.
    """
    found = _current(leader)
    jobs = sorted(found.jobs if job is None else found.jobs.keys() & job)
    if caller.projects is not None:
        with dependencies.reading() as connection:
            seen = seen_jobs(connection, jobs, caller)
        jobs = [job for job in jobs if job in seen]
    return ForecastsDocument(
        made_at=instant(found.now_s),
        samples=found.samples,
        forecasts=[forecast_document(found, found.jobs[job]) for job in jobs],
    )


@routes.read("/forecasts/accuracy", READ, "Show the accuracy of past forecasts", computes=True)
def forecast_accuracy(
    dependencies: Deps,
    days: Annotated[int, Query(ge=1, le=3650, description="Only forecasts of the last N days."), DIGITS_ALONE] = 30,
) -> AccuracyDocument:
    """Coverage and errors of the newest scored forecasts (at most 20,000), by horizon and gang size. Forecasts of cancelled
    jobs are not scored.
    """
    since_s = dependencies.now_s() - days * 86_400.0
    with dependencies.reading() as connection:
        scored = scored_forecasts(connection, since_s, SCORED_MAX)
    return accuracy_document(since_s, accuracy(scored))


@routes.read("/jobs/{job_id}/forecasts", READ_JOB, "List a job's forecast records", 404)
def job_forecasts(dependencies: Deps, paging: Paging, job_id: JobPath) -> Page[ToldDocument]:
    """Oldest first. A forecast is recorded soon after submission, each time the job's age has doubled, and earlier where the
    expected time has passed. It is scored when the job starts or ends.
    """
    scope = f"forecasts {job_id}"
    after = paging.position(scope, SERIAL) or 0
    with dependencies.reading() as connection:
        require_job(connection, job_id)
        rows = forecasts_of(connection, job_id, after, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), forecast_record_document)


@routes.read("/jobs/{job_id}/forecast", READ_JOB, "Forecast a job", 404, 409, computes=True)
def job_forecast(dependencies: Deps, leader: ToLeader, job_id: JobPath) -> JobForecastDocument:
    """10%, 50% and 90% points of its start and end over sampled futures. 409 if there is none; its `detail` gives the reason."""
    with dependencies.reading() as connection:
        state = JobState(job_or_404(connection, job_id).job.state)
    if state in TERMINAL:
        raise Problem(ProblemType.JOB_FINISHED, f"Job {job_id} has ended ({state}).")
    found = _current(leader)
    job = found.jobs.get(JobId(job_id))
    if job is None:
        raise Problem(ProblemType.CONFLICT, f"Job {job_id} has no forecast before the next cycle.")
    return forecast_document(found, job)


@routes.read("/plans", SUBMIT, "Plan jobs without submitting them", 400, 413, 415, 429, method="POST", computes=True)
def plan(caller: Caller, dependencies: Deps, leader: ToLeader, body: SubmissionBody) -> PlansDocument:
    """Validates a submission as `POST /v1/jobs` does, predicts it, and forecasts the queue with it. Nothing is stored. The jobs
    of one body are planned together.
    """
    specs = parse(body.root, caller, dependencies).specs
    with dependencies.reading() as connection:
        check_dependencies(connection, body.root, caller)
        dependencies.capacity.check(connection, len(specs), dependencies.settings.jobs_queued_max)
        OwnersCapacity(connection, specs, dependencies.settings, for_update=False).take(specs)
        failed = _failed_dependencies(connection, specs)
    planned = leader.forecaster.plan(specs)
    layout = dependencies.scheduler.layout()
    return PlansDocument(
        made_at=instant(planned.now_s),
        plans=plan_documents(planned.jobs, layout, failed),
    )


def _current(leader: Leader) -> Forecast:
    try:
        return leader.forecaster.current()
    except NoForecast as error:
        raise Problem(ProblemType.CONFLICT, str(error)) from error


def _failed_dependencies(connection: Connection, specs: list[JobSpec]) -> set[JobId]:
    """Jobs in 'after' that have ended without success: whoever waits for them is cancelled at once."""
    needed = sorted({int(job) for spec in specs for job in spec.after})
    ended = TERMINAL - {JobState.SUCCEEDED}
    return {JobId(found.job.id) for found in reads.jobs_by_id(connection, needed) if JobState(found.job.state) in ended}
