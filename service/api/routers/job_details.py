"""The details of one job: explanation, attempts, events, logs, progress, prediction."""

from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse

from policies.lifecycle import TERMINAL, JobState
from policies.model.cluster import Cluster
from policies.model.estimate import Unit
from policies.model.ids import JobId
from predictor.explain import readable
from service.api.access import Caller
from service.api.deps import Deps, ToLeader
from service.api.documents import attempt_document, document, event_document, explanation_document
from service.api.forwarding import HeldElsewhere
from service.api.job_bodies import shown_body
from service.api.paging import NUMBER, SERIAL, Page, Paging
from service.api.peers import is_from_peer
from service.api.permissions import READ_JOB, READ_OUTPUT
from service.api.placement_documents import Placed, nothing_placed, placement_document
from service.api.prediction_documents import SIMILAR_MAX, prediction_details
from service.api.problems import Problem, ProblemType
from service.api.routers.common import JobPath, Routes, job_or_404, no_such_job, require_job
from service.db import reads
from service.db.prediction_log import newest_prediction, similar_jobs
from service.db.timeline import stored_servers
from service.domain.counts import count_of
from service.wire.base import DIGITS_ALONE
from service.wire.bodies import Id, SpecDocument
from service.wire.jobs import AttemptDocument, EventDocument, ExplanationDocument, ProgressDocument
from service.wire.placement import PlacementDocument
from service.wire.predictions import PredictionDetailsDocument

routes = Routes("jobs")

LOG_PART_BYTES_MAX = 1 << 20

LOG_HEADERS = {
    "Sooner-Next-Offset": "Give it as 'offset' to go on.",
    "Sooner-Cut-Bytes": "So many bytes before these were over the log's limit and are gone.",
    "Sooner-Log-Bytes": "What the attempt has written so far.",
}


@routes.read("/jobs/{job_id}/explanation", READ_JOB, "Explain a job's state", 404)
def explanation(dependencies: Deps, leader: ToLeader, job_id: JobPath) -> ExplanationDocument:
    """The reason with current numbers, and the shadow policy's decision if there is a shadow policy."""
    with dependencies.reading() as connection:
        summary = job_or_404(connection, job_id)
        failure = reads.detail_of_failure(connection, job_id)
        last_stop = f"Its last attempt: {failure}." if failure else reads.detail_of_last_stop(connection, job_id)
    job = JobId(job_id)
    return explanation_document(summary.job, leader.explain(job), leader.shadowing.opinion(job), last_stop)


@routes.read("/jobs/{job_id}/spec", READ_JOB, "Show a job's specification", 404, response_model=SpecDocument)
def spec(caller: Caller, dependencies: Deps, job_id: JobPath) -> Response:
    """A body that can be submitted again. Secret values of `env` are null; other values are shown only to the job's user and
    admins. A graph is returned as its name in the catalogue, or as the stages into which it was cut.
    """
    with dependencies.reading() as connection:
        found = reads.spec(connection, job_id)
    if found is None:
        raise no_such_job(job_id)
    return JSONResponse(shown_body(found, dependencies.scheduler.layout(), caller))


@routes.read("/jobs/{job_id}/attempts", READ_JOB, "List a job's attempts", 404)
def attempts(dependencies: Deps, paging: Paging, job_id: JobPath) -> Page[AttemptDocument]:
    """Oldest first."""
    scope = f"attempts {job_id}"
    after = paging.position(scope, NUMBER) or 0
    with dependencies.reading() as connection:
        require_job(connection, job_id)
        rows = reads.attempts(connection, job_id, after, paging.limit + 1)
        names = reads.server_names(connection, (placement for _, placement in rows))
        found = reads.spec(connection, job_id)
    if found is None:
        raise no_such_job(job_id)
    return paging.page(scope, rows, lambda pair: (pair[0].number,), lambda pair: attempt_document(*pair, found, names))


@routes.read("/jobs/{job_id}/placement", READ_JOB, "Show where a job's stages are, and what limits them", 404)
def placement(dependencies: Deps, job_id: JobPath) -> PlacementDocument:
    """Of the open attempt, else of the newest one: stages and replicas on GPUs, bytes of an iteration between them, and its
    predicted seconds by parts, on the `reserved` network. A job without stages has its servers and GPUs alone.
    """
    with dependencies.reading() as connection:
        spec = reads.spec(connection, job_id)
        if spec is None:
            raise no_such_job(job_id)
        newest = reads.newest_attempt(connection, job_id)
        if newest is None:
            return nothing_placed(job_id)
        times = reads.iteration_times(connection, job_id)
        servers = tuple(each.server for each in stored_servers(connection))
    return placement_document(Placed(*newest, spec, times, Cluster("", servers)))


@routes.read("/jobs/{job_id}/events", READ_JOB, "List a job's events", 404)
def events(dependencies: Deps, paging: Paging, job_id: JobPath) -> Page[EventDocument]:
    """Every change of the job's state, oldest first."""
    scope = f"events {job_id}"
    after = paging.position(scope, SERIAL) or 0
    with dependencies.reading() as connection:
        require_job(connection, job_id)
        rows = reads.events(connection, job_id, after, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), event_document)


@routes.read("/jobs/{job_id}/progress", READ_JOB, "List a job's progress reports", 404)
def progress(dependencies: Deps, paging: Paging, job_id: JobPath) -> Page[ProgressDocument]:
    """Oldest first. Some of the older reports are deleted."""
    scope = f"progress {job_id}"
    after = paging.position(scope, SERIAL) or 0
    with dependencies.reading() as connection:
        require_job(connection, job_id)
        rows = reads.progress(connection, job_id, after, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), partial(document, ProgressDocument))


@routes.read("/jobs/{job_id}/prediction", READ_JOB, "Explain a job's newest prediction", 404)
def prediction(caller: Caller, dependencies: Deps, leader: ToLeader, job_id: JobPath) -> PredictionDetailsDocument:
    """404 for a job that was not predicted: before its first cycle, or without history. The contributions are computed now from
    the stored features.
    """
    with dependencies.reading() as connection:
        job = job_or_404(connection, job_id).job
        row = newest_prediction(connection, job_id)
        if row is None:
            raise Problem(ProblemType.NOT_FOUND, f"Job {job_id} {_not_predicted(JobState(job.state))}.")
        found = similar_jobs(connection, job, row.made_at_s, SIMILAR_MAX)
    similar = [past for past in found if caller.sees(past.project, past.user)]
    moved = None
    if row.model_version and readable(row.feature_schema, row.features):
        moved = leader.contributions(row.model_version, Unit(row.unit), row.features)
    return prediction_details(row, similar, moved)


def _not_predicted(state: JobState) -> str:
    if state in TERMINAL:
        return "has ended without a prediction: there was no history to predict it from"
    return "has no prediction yet: no cycle has taken it in, or there is no history to predict it from"


@routes.read(
    "/jobs/{job_id}/logs",
    READ_OUTPUT,
    "Read a job's log",
    404,
    response_class=Response,
    responses={
        200: {
            "description": "The log's bytes; the headers say where they stand.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "headers": {
                name: {"schema": {"type": "integer"}, "required": True, "description": description}
                for name, description in LOG_HEADERS.items()
            },
        },
    },
)
def logs(
    dependencies: Deps,
    request: Request,
    job_id: JobPath,
    attempt: Annotated[Id | None, Query(description="Default: the newest.")] = None,
    offset: Annotated[
        int, Query(ge=-(2**53), le=2**53, description="First byte; negative: counted from the end."), DIGITS_ALONE
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=LOG_PART_BYTES_MAX, description="Most bytes to return."), DIGITS_ALONE
    ] = LOG_PART_BYTES_MAX,
    node: Annotated[
        int, Query(ge=0, lt=2**31, description="Server of the attempt, in the order of its placement."), DIGITS_ALONE
    ] = 0,
) -> Response:
    """A part of the output of one attempt. Empty before the launch and after the log was deleted.

    On a Slurm or Ray cluster each server has a log of its own; else the first has all of it.
    """
    with dependencies.reading() as connection:
        require_job(connection, job_id)
        found = reads.attempt_servers(connection, job_id, attempt)
    if found is None and attempt is None:
        return _log(b"", max(offset, 0), 0, 0)
    if found is None:
        raise Problem(ProblemType.NOT_FOUND, f"Job {job_id} has no attempt {attempt}.")
    number, servers = found
    if node >= servers:
        raise Problem(
            ProblemType.NOT_FOUND,
            f"The attempt of job {job_id} has {count_of(servers, 'server')}, from 0 on: none is {node}.",
        )
    elsewhere = None if is_from_peer(request.scope) else dependencies.fleet.log_holder(JobId(job_id), number)
    if elsewhere is not None:
        raise HeldElsewhere(elsewhere)
    try:
        part = dependencies.attempts.read_logs(JobId(job_id), number, offset, limit, node)
    except KeyError:
        return _log(b"", max(offset, 0), 0, 0)
    return _log(part.data, part.next_offset, part.cut_bytes, part.size_bytes)


def _log(data: bytes, next_offset: int, cut_bytes: int, size_bytes: int) -> Response:
    values = (next_offset, cut_bytes, size_bytes)
    headers = {name: str(value) for name, value in zip(LOG_HEADERS, values, strict=True)}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
