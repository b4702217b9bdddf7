"""Jobs: submit, list, show, and the requests that the next cycle acts on."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any, Literal, Self

from fastapi import Body, Header, Query, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Connection
from sqlmodel import Session

from policies.lifecycle import TERMINAL, JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.access import Caller
from service.api.capacity import OwnersCapacity
from service.api.deps import ApiDependencies, Deps, KeyStore
from service.api.documents import (
    AcceptedDocument,
    JobDocument,
    JobsDocument,
    etag,
    etag_matches,
    job_document,
)
from service.api.idempotency import Answer, Effect, JointEffect, Keyed, KeyedRequest, Keys
from service.api.ownership import in_the_name_of
from service.api.paging import Page, Paging
from service.api.parse import is_single, parse_submission, placed_jobs
from service.api.permissions import CHANGE_JOB, LIST_JOBS, READ_JOB, SUBMIT, allow
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.api.routers.common import FilterText, JobPath, NoBody, job_or_404, problems, router
from service.api.schemas import ID_MAX, HoldBody, JobBody, JobsBody, PriorityBody, SubmissionBody
from service.db import reads
from service.db.access import seen_jobs
from service.domain.access import Identity
from service.engine.events import Fact, FactKind

routes = router("jobs")

IfMatch = Annotated[str | None, Header(max_length=1024, description="Act only if the job still has this ETag.")]
JOINT_JOBS_MAX = 16
"""Submissions of at most so many jobs are inserted together with others that come at the same time."""

PREDICTION_WAIT_S = 10.0
"""Longest wait for a prediction: it holds one of the threads that answer requests."""


@routes.post(
    "/jobs",
    status_code=201,
    response_model=JobDocument | JobsDocument,
    responses=problems(400, 409, 413, 415, 429),
    summary="Submit one job, or many at once",
)
@allow(SUBMIT)
def submit(
    caller: Caller,
    dependencies: Deps,
    keys: KeyStore,
    keyed: Keyed,
    body: SubmissionBody,
    wait_prediction: Annotated[
        bool, Query(description="Answer when the next cycle has predicted the jobs, or after 10 s as if not asked.")
    ] = False,
) -> Response:
    """Accepts all jobs of the request or none. The prediction follows in the next cycle, which nobody waits for unless
    ``wait_prediction`` is given; ``prediction`` is null also where nothing is known to predict from."""

    def prepare() -> Effect:
        specs = parse_submission(body.root, dependencies.settings, dependencies.scheduler.layout())
        owned = in_the_name_of(caller, specs, body.root)
        submission = _Submission(dependencies, owned, body.root, caller)
        # A large one gains nothing by company, and would keep it waiting.
        return submission if len(owned) <= JOINT_JOBS_MAX else submission.__call__

    answer = keys.run(keyed, prepare)
    dependencies.scheduler.nudge()
    if wait_prediction and answer.status_code == 201:
        return _when_predicted(dependencies, answer, is_single(body.root))
    return answer


def _when_predicted(dependencies: ApiDependencies, accepted: Response, single: bool) -> Response:
    """The same answer with the jobs as they are once a cycle has taken them in."""
    said = json.loads(bytes(accepted.body))
    ids = [job["id"] for job in ([said] if single else said["jobs"])]
    until_s = time.monotonic() + PREDICTION_WAIT_S
    passes = dependencies.scheduler.wait_cycle(-1, 0.0)
    while True:
        with dependencies.database.reading() as session:
            connection = session.connection()
            if reads.taken_in(connection, ids) or time.monotonic() >= until_s:
                documents = [job_document(summary) for summary in reads.jobs_by_id(connection, ids)]
                break
        passes = dependencies.scheduler.wait_cycle(passes, max(0.0, until_s - time.monotonic()))
    headers = {
        name: value for name, value in accepted.headers.items() if name not in ("content-length", "content-type")
    }
    return JSONResponse(_body(documents, single), accepted.status_code, headers)


def _body(documents: list[JobDocument], single: bool) -> Any:
    document = documents[0] if single else JobsDocument(jobs=documents)
    return document.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class _Submission(JointEffect):
    """Jobs that a request submits."""

    dependencies: ApiDependencies
    specs: list[JobSpec]
    body: JobBody | JobsBody
    caller: Identity

    @classmethod
    def together(cls, session: Session, effects: Sequence[Self]) -> list[Answer | Problem]:
        """Check each by itself, insert what passes at once."""
        connection = session.connection()
        dependencies = effects[0].dependencies
        owners = OwnersCapacity(connection, (spec for each in effects for spec in each.specs), dependencies.settings)
        refused: dict[int, Problem] = {}
        for index, each in enumerate(effects):
            try:
                check_dependencies(connection, each.body, each.caller)
                dependencies.capacity.take(connection, len(each.specs), dependencies.settings.jobs_queued_max)
                owners.take(each.specs)
            except Problem as problem:
                refused[index] = problem
        passed = [each for index, each in enumerate(effects) if index not in refused]
        specs = [spec for each in passed for spec in each.specs]
        ids = iter(dependencies.store.submit(session, specs, dependencies.now_s()))
        taken = [list(islice(ids, len(each.specs))) for each in passed]
        documents = {
            summary.job.id: job_document(summary)
            for summary in reads.new_jobs(connection, list(chain.from_iterable(taken)))
        }
        answers = iter(
            each._answer([documents[number] for number in sorted(numbers)])
            for each, numbers in zip(passed, taken, strict=True)
        )
        return [refused[index] if index in refused else next(answers) for index in range(len(effects))]

    def _answer(self, documents: list[JobDocument]) -> Answer:
        single = is_single(self.body)
        first, last = documents[0].id, documents[-1].id
        target = f"job {first}" if len(documents) == 1 else f"jobs {first}-{last}"
        location = documents[0].links.self if single else "/v1/jobs"
        return Answer(201, _body(documents, single), location, target=target, detail={"jobs": len(documents)})


def check_dependencies(connection: Connection, body: JobBody | JobsBody, caller: Identity) -> None:
    """422 that points to every job in 'after' that does not exist for the caller."""
    asked = [
        (json_pointer((*place, "after", position)), entry.job)
        for place, job in placed_jobs(body)
        for position, entry in enumerate(job.needs)
    ]
    known = seen_jobs(connection, {needed for _, needed in asked}, caller)
    faults = [Fault(f"There is no job {needed}", pointer=pointer) for pointer, needed in asked if needed not in known]
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)


@routes.get("/jobs", summary="List jobs")
@allow(LIST_JOBS)
def list_jobs(
    caller: Caller,
    dependencies: Deps,
    paging: Paging,
    state: Annotated[list[JobState] | None, Query(description="May be given several times.")] = None,
    user: FilterText = None,
    project: FilterText = None,
    name: FilterText = None,
    array: Annotated[int | None, Query(ge=1, le=ID_MAX, description="Only elements of this array.")] = None,
    order: Annotated[Literal["newest", "oldest"], Query(description="Which jobs come first.")] = "newest",
) -> Page[JobDocument]:
    """One page; filters and order belong to its cursor."""
    oldest_first = order == "oldest"
    wanted = reads.JobFilter(tuple(dict.fromkeys(state or ())), user, project, name, array, caller, oldest_first)
    scope = f"jobs {sorted(wanted.states)} {user!r} {project!r} {name!r} {array}{' oldest' if oldest_first else ''}"
    position = paging.position(scope, (int,))
    with dependencies.database.reading() as session:
        past = position[0] if position is not None else None
        rows = reads.jobs(session.connection(), wanted, past, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.job.id,), job_document)


@routes.get(
    "/jobs/{job_id}",
    response_model=JobDocument,
    responses={**problems(404), 304: {"description": "The job still has the ETag of 'If-None-Match'."}},
    summary="Show a job",
)
@allow(READ_JOB)
def show_job(
    dependencies: Deps, job_id: JobPath, if_none_match: Annotated[str | None, Header(max_length=1024)] = None
) -> Response:
    """With its newest prediction and the servers it holds. The ETag changes exactly when the answer does."""
    with dependencies.database.reading() as session:
        summary = job_or_404(session.connection(), job_id)
    document = job_document(summary)
    headers = {"ETag": etag(document), "Cache-Control": "private, no-cache"}
    if if_none_match is not None and etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(document.model_dump_json(), headers=headers, media_type="application/json")


@routes.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    response_model=AcceptedDocument,
    responses=problems(400, 404, 409, 412, 413, 415),
    summary="Cancel a job",
)
@allow(CHANGE_JOB)
def cancel(
    dependencies: Deps, keys: KeyStore, keyed: Keyed, job_id: JobPath, if_match: IfMatch = None, body: NoBody = None
) -> Response:
    """A queued job ends at once, one that holds GPUs when its processes have stopped."""
    return _ask(dependencies, keys, keyed, if_match, Fact(0, FactKind.CANCEL, dependencies.now_s(), JobId(job_id)))


@routes.post(
    "/jobs/{job_id}/hold",
    status_code=202,
    response_model=AcceptedDocument,
    responses=problems(400, 404, 409, 412, 413, 415),
    summary="Hold a job",
)
@allow(CHANGE_JOB)
def hold(
    dependencies: Deps,
    keys: KeyStore,
    keyed: Keyed,
    job_id: JobPath,
    if_match: IfMatch = None,
    body: Annotated[HoldBody | None, Body()] = None,
) -> Response:
    """It does not start until it is released; a running attempt goes on unless ``preempt`` is true."""
    preempt = body is not None and body.preempt
    fact = Fact(0, FactKind.HOLD, dependencies.now_s(), JobId(job_id), preempt=preempt)
    return _ask(dependencies, keys, keyed, if_match, fact)


@routes.post(
    "/jobs/{job_id}/release",
    status_code=202,
    response_model=AcceptedDocument,
    responses=problems(400, 404, 409, 412, 413, 415),
    summary="Release a held job",
)
@allow(CHANGE_JOB)
def release(
    dependencies: Deps, keys: KeyStore, keyed: Keyed, job_id: JobPath, if_match: IfMatch = None, body: NoBody = None
) -> Response:
    """It competes again from the next cycle on."""
    return _ask(dependencies, keys, keyed, if_match, Fact(0, FactKind.RELEASE, dependencies.now_s(), JobId(job_id)))


@routes.put(
    "/jobs/{job_id}/priority",
    status_code=202,
    response_model=AcceptedDocument,
    responses=problems(400, 404, 409, 412, 413, 415),
    summary="Change a job's priority",
)
@routes.post(
    "/jobs/{job_id}/priority",
    status_code=202,
    response_model=AcceptedDocument,
    responses=problems(400, 404, 409, 412, 413, 415),
    summary="Change a job's priority",
)
@allow(CHANGE_JOB)
def change_priority(
    dependencies: Deps, keys: KeyStore, keyed: Keyed, job_id: JobPath, body: PriorityBody, if_match: IfMatch = None
) -> Response:
    """Larger comes first."""
    fact = Fact(0, FactKind.PRIORITY, dependencies.now_s(), JobId(job_id), priority=body.priority)
    return _ask(dependencies, keys, keyed, if_match, fact)


def asked(fact: Fact) -> dict[str, Any]:
    """What the log of changes says of a request besides its kind."""
    if fact.kind is FactKind.PRIORITY:
        return {"priority": fact.priority}
    return {"preempt": fact.preempt} if fact.kind is FactKind.HOLD else {}


def _ask(dependencies: ApiDependencies, keys: Keys, keyed: KeyedRequest, if_match: str | None, fact: Fact) -> Response:
    """Make the request durable, wake the loop, and say that it was accepted."""
    assert fact.job is not None
    job_id = int(fact.job)

    def effect(session: Session) -> Answer:
        summary = job_or_404(session.connection(), job_id)
        if if_match is not None:
            tag = etag(job_document(summary))
            if not etag_matches(if_match, tag):
                raise Problem(ProblemType.PRECONDITION_FAILED, headers={"ETag": tag})
        if JobState(summary.job.state) in TERMINAL:
            raise Problem(ProblemType.JOB_FINISHED, f"Job {job_id} has {summary.job.state}.")
        dependencies.store.add_fact(session, fact)
        accepted = AcceptedDocument(accepted=fact.kind.value, job_id=job_id).model_dump(mode="json")
        return Answer(202, accepted, detail=asked(fact))

    answer = keys.run(keyed, lambda: effect)
    dependencies.scheduler.nudge()
    return answer
