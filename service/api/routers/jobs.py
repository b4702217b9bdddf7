"""Jobs: submit, list, show, and the requests that the next cycle acts on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Body, Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from policies.lifecycle import TERMINAL, JobState
from policies.model.ids import JobId
from service.api.access import Caller, caller_of
from service.api.changes import Change, ChangeRequest
from service.api.deps import ApiDependencies, Deps, dependencies_of, keys_of
from service.api.documents import etag, etag_matches, job_document
from service.api.heavy import in_turn
from service.api.idempotency import Answer, is_key, keyed_request
from service.api.paging import NUMBER, Page, Paging
from service.api.parse import is_single
from service.api.permissions import CHANGE_JOB, LIST_JOBS, READ_JOB, SUBMIT, job_of, permitted
from service.api.plans import job_plan_document
from service.api.problems import Problem, ProblemType
from service.api.quick import quick
from service.api.routers.common import FilterText, JobPath, NoBody, Routes, job_or_404
from service.api.strict_json import LARGE_BYTES, StrictRequest
from service.api.submission import is_quickly_parsed, parse, wait_for_predictions
from service.db import reads
from service.engine.events import EngineRequest, RequestKind
from service.wire.bodies import HoldBody, Id, JobBody, PriorityBody, SubmissionBody
from service.wire.jobs import AcceptedDocument, JobDocument, JobsDocument
from service.wire.plans import JobPlanDocument

routes = Routes("jobs")

_TAG_LENGTH_MAX: Final = 1024
_SHOWING: Final = ThreadPoolExecutor(4, thread_name_prefix="show_job")
"""A few do: a job is shown in about a millisecond."""


async def _submit_one(request: StrictRequest) -> Response | None:
    """One small job without a plan, for the leader: what most submissions are."""
    dependencies = dependencies_of(request)
    if request.scope["query_string"] or dependencies.scheduler.leader() is None:
        return None
    keys = request.headers.getlist("idempotency-key")
    if keys and not (len(keys) == 1 and is_key(keys[0])):
        return None
    if not 0 < len(await request.body()) <= LARGE_BYTES:
        return None
    async with in_turn():
        body = await request.json()
        if not isinstance(body, JobBody) or not is_quickly_parsed(body, dependencies):
            return None
        await permitted(request)
        try:
            submission = parse(body, caller_of(request), dependencies)
        except Problem:
            # A repeated request has the kept answer nevertheless.
            return None
    keyed = await keyed_request(request, keys[0] if keys else None)
    answer = await keys_of(request).run_joint(keyed, submission.joint_effect)
    dependencies.scheduler.nudge()
    return answer


@routes.change("POST", "/jobs", SUBMIT, "Submit one job or several", JobDocument | JobsDocument, 429, status=201)
@quick(_submit_one)
def submit(
    caller: Caller,
    dependencies: Deps,
    change: Change,
    body: SubmissionBody,
    wait_prediction: Annotated[
        bool,
        Query(description="Respond after the next cycle has predicted the jobs, or after 10 s without predictions."),
    ] = False,
) -> Response:
    """Accepts all jobs of the request or none. The next cycle predicts the jobs; with ``wait_prediction`` the response is sent
    after that. ``prediction`` is null before, and if there is no history to predict from."""

    answer = change.prepare_and_make(lambda: parse(body.root, caller, dependencies).effect)
    dependencies.scheduler.nudge()
    if wait_prediction and answer.status_code == 201:
        return wait_for_predictions(dependencies, answer, is_single(body.root))
    return answer


@routes.read("/jobs", LIST_JOBS, "List jobs")
def list_jobs(
    caller: Caller,
    dependencies: Deps,
    paging: Paging,
    state: Annotated[list[JobState] | None, Query(description="Repeatable.")] = None,
    user: FilterText = None,
    project: FilterText = None,
    name: FilterText = None,
    array: Annotated[Id | None, Query(description="Only elements of this array.")] = None,
    order: Annotated[Literal["newest", "oldest"], Query(description="Which jobs come first.")] = "newest",
    prediction: Annotated[
        Literal["newest", "first"],
        Query(description="Which of a job's predictions is shown; the first one had seen nothing of the job yet."),
    ] = "newest",
) -> Page[JobDocument]:
    """One page. A cursor is valid only with the same filters and order."""
    oldest_first = order == "oldest"
    wanted = reads.JobFilter(tuple(dict.fromkeys(state or ())), user, project, name, array, caller, oldest_first)
    scope = f"jobs {sorted(wanted.states)} {user!r} {project!r} {name!r} {array}{' oldest' if oldest_first else ''}"
    past = paging.position(scope, NUMBER)
    with dependencies.reading() as connection:
        rows = reads.jobs(connection, wanted, past, paging.limit + 1, first_predictions=prediction == "first")
    return paging.page(scope, rows, lambda row: (row.job.id,), job_document)


async def _show_one(request: StrictRequest) -> Response | None:
    """What clients ask again and again: answered in the event loop where the database can be looked at from there, because each
    hand-over to another thread waits for all that compute. Else by one of a few threads, to which the hand-over takes fewer
    passes of the loop than to FastAPI's.
    """
    tags, job = request.headers.getlist("if-none-match"), job_of(request)
    unusual = request.scope["query_string"] or len(tags) > 1 or any(len(tag) > _TAG_LENGTH_MAX for tag in tags)
    if job is None or unusual:
        return None
    await permitted(request)
    dependencies, tag = dependencies_of(request), tags[0] if tags else None
    with suppress(OperationalError), dependencies.database.at_once() as connection:
        summary = None if connection is None else reads.job(connection, job)
        if summary is not None and summary.planned is None:
            return _shown(summary, tag)
    show = partial(show_job, dependencies, job, tag)
    return await asyncio.get_running_loop().run_in_executor(_SHOWING, show)


@routes.read(
    "/jobs/{job_id}",
    READ_JOB,
    "Show a job",
    404,
    response_model=JobDocument,
    responses={304: {"description": "The job still has the ETag in 'If-None-Match'."}},
)
@quick(_show_one)
def show_job(
    dependencies: Deps, job_id: JobPath, if_none_match: Annotated[str | None, Header(max_length=_TAG_LENGTH_MAX)] = None
) -> Response:
    """With its newest prediction and its servers. The ETag changes exactly when the response does, but for ``plan`` on a changed
    cluster."""
    planned = None
    with dependencies.looking() as connection:
        summary = job_or_404(connection, job_id)
    if summary.planned is not None:
        # Its spec may be in another row: both as of one moment.
        with dependencies.reading() as connection:
            summary = job_or_404(connection, job_id)
            planned = reads.planned_spec(connection, summary)
    return _shown(
        summary,
        if_none_match,
        lambda: None if planned is None else job_plan_document(planned, dependencies.scheduler.layout()),
    )


def _shown(
    summary: reads.JobSummary, if_none_match: str | None, plan: Callable[[], JobPlanDocument | None] = lambda: None
) -> Response:
    """The answer, or that the client has it already."""
    document = job_document(summary)
    headers = {"ETag": etag(document), "Cache-Control": "private, no-cache"}
    if if_none_match is not None and etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return JSONResponse(document | {"plan": plan()}, headers=headers)


class JobRequest(NamedTuple):
    """A request about one job, on which the next cycle acts."""

    dependencies: ApiDependencies
    change: ChangeRequest
    job_id: int
    if_match: str | None

    def accept(self, kind: RequestKind, **details: Any) -> Response:
        """Make the request durable, wake the loop, and answer that it was accepted. The audit log has the details too."""
        request = EngineRequest(0, kind, self.dependencies.now_s(), JobId(self.job_id), **details)

        def effect(session: Session) -> Answer:
            summary = job_or_404(session.connection(), self.job_id)
            if self.if_match is not None:
                tag = etag(job_document(summary))
                if not etag_matches(self.if_match, tag):
                    raise Problem(ProblemType.PRECONDITION_FAILED, headers={"ETag": tag})
            if JobState(summary.job.state) in TERMINAL:
                raise Problem(ProblemType.JOB_FINISHED, f"Job {self.job_id} has ended ({summary.job.state}).")
            return self.change.accept(session, request, detail=details)

        return self.change.ask(effect)


async def _job_request(
    dependencies: Deps,
    change: Change,
    job_id: JobPath,
    if_match: Annotated[
        str | None, Header(max_length=1024, description="Refuse the request unless the job has this ETag.")
    ] = None,
) -> JobRequest:
    return JobRequest(dependencies, change, job_id, if_match)


OneJob = Annotated[JobRequest, Depends(_job_request)]


@routes.change("POST", "/jobs/{job_id}/cancel", CHANGE_JOB, "Cancel a job", AcceptedDocument, 404, 412)
def cancel(job: OneJob, body: NoBody = None) -> Response:
    """A queued job ends at once. A job that holds GPUs ends when its processes have stopped."""
    return job.accept(RequestKind.CANCEL)


@routes.change("POST", "/jobs/{job_id}/hold", CHANGE_JOB, "Hold a job", AcceptedDocument, 404, 412)
def hold(job: OneJob, body: Annotated[HoldBody | None, Body()] = None) -> Response:
    """It does not start until it is released. A running attempt continues unless ``preempt`` is true."""
    return job.accept(RequestKind.HOLD, preempt=body is not None and body.preempt)


@routes.change("POST", "/jobs/{job_id}/release", CHANGE_JOB, "Release a held job", AcceptedDocument, 404, 412)
def release(job: OneJob, body: NoBody = None) -> Response:
    """It can start again from the next cycle."""
    return job.accept(RequestKind.RELEASE)


@routes.change("PUT", "/jobs/{job_id}/priority", CHANGE_JOB, "Change a job's priority", AcceptedDocument, 404, 412)
@routes.change("POST", "/jobs/{job_id}/priority", CHANGE_JOB, "Change a job's priority", AcceptedDocument, 404, 412)
def change_priority(job: OneJob, body: PriorityBody) -> Response:
    """Larger comes first."""
    return job.accept(RequestKind.PRIORITY, priority=body.priority)
