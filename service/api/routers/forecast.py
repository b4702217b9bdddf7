"""Forecasts of the queue as it is, and plans: what would become of jobs that nobody has submitted yet."""

from sqlalchemy import Connection

from policies.lifecycle import TERMINAL, JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.deps import ApiDependencies, Deps
from service.api.documents import instant
from service.api.forecast_documents import (
    ForecastsDocument,
    JobForecastDocument,
    PlansDocument,
    forecast_document,
    plan_document,
)
from service.api.parse import parse_submission
from service.api.problems import Problem, ProblemType
from service.api.routers.common import JobPath, job_or_404, problems, router
from service.api.routers.jobs import check_dependencies, check_room
from service.api.schemas import JobBody, SubmissionBody
from service.db import reads
from service.sim.forecast import Forecast, NoForecast

routes = router("forecasts")


@routes.get("/forecasts", responses=problems(409), summary="When will the queue's jobs start and end?")
def list_forecasts(dependencies: Deps) -> ForecastsDocument:
    """All unfinished jobs that the loop knows, in order of submission. Made once a cycle, for all readers. 409 says why
    there is none: too many jobs, nothing predicted yet, or it took too long."""
    found = _current(dependencies)
    return ForecastsDocument(
        made_at=instant(found.now_s),
        samples=found.samples,
        forecasts=[forecast_document(found, found.jobs[job]) for job in sorted(found.jobs)],
    )


@routes.get("/jobs/{job_id}/forecast", responses=problems(404, 409), summary="When will a job start and end?")
def job_forecast(dependencies: Deps, job_id: JobPath) -> JobForecastDocument:
    """10 %, 50 % and 90 % points over sampled futures. 409 says why there is none."""
    with dependencies.database.reading() as session:
        state = JobState(job_or_404(session.connection(), job_id).job.state)
    if state in TERMINAL:
        raise Problem(ProblemType.JOB_FINISHED, f"Job {job_id} has {state}.")
    found = _current(dependencies)
    job = found.jobs.get(JobId(job_id))
    if job is None:
        raise Problem(ProblemType.CONFLICT, f"The next cycle takes job {job_id} in; ask again then.")
    return forecast_document(found, job)


@routes.post("/plans", responses=problems(400, 413, 415, 429), summary="What would become of these jobs?")
def plan(dependencies: Deps, body: SubmissionBody) -> PlansDocument:
    """Checks a submission as `POST /v1/jobs` does, predicts it, and fast-forwards the cluster with it in the queue.
    Nothing is stored; the jobs of one body are planned together."""
    specs = parse_submission(body.root, dependencies.settings, dependencies.layout())
    single = isinstance(body.root, JobBody)
    with dependencies.database.reading() as session:
        connection = session.connection()
        check_dependencies(connection, specs, single)
        check_room(connection, dependencies.settings, len(specs))
        failed = _failed_dependencies(connection, specs)
    planned = dependencies.plan(specs)
    return PlansDocument(
        made_at=instant(planned.now_s),
        plans=[
            plan_document(job, dependencies.layout(), sorted(failed.intersection(job.spec.after)))
            for job in planned.jobs
        ],
    )


def _current(dependencies: ApiDependencies) -> Forecast:
    try:
        return dependencies.forecast()
    except NoForecast as error:
        raise Problem(ProblemType.CONFLICT, str(error)) from error


def _failed_dependencies(connection: Connection, specs: list[JobSpec]) -> set[JobId]:
    """Jobs in 'after' that have ended without success: whoever waits for them is cancelled at once."""
    needed = sorted({int(job) for spec in specs for job in spec.after})
    ended = TERMINAL - {JobState.SUCCEEDED}
    return {JobId(found.job.id) for found in reads.jobs_by_id(connection, needed) if JobState(found.job.state) in ended}
