"""The queue as a whole: its length, its order and its pauses."""

from fastapi import Response
from sqlmodel import Session

from service.api.access import Caller
from service.api.changes import Change
from service.api.deps import Deps, ToLeader
from service.api.idempotency import Answer
from service.api.limit_documents import concerns
from service.api.paging import Paging
from service.api.permissions import LIST_JOBS, OPERATE, READ
from service.api.problems import Fault, Problem, ProblemType
from service.api.queue_page import queue_page
from service.api.routers.common import Routes
from service.db.limits import stored_limit, stored_limits, use_of_all
from service.engine.events import EngineRequest, RequestKind
from service.engine.limits import QUEUE, LimitOwner, Scope
from service.wire.bodies import PauseBody, QueuePartBody
from service.wire.cluster import PauseDocument, QueueDocument
from service.wire.jobs import AcceptedDocument
from service.wire.queue import QueueJobsDocument

routes = Routes("queue")


@routes.read("/queue", READ, "Show the queue's length and its pauses")
def show_queue(dependencies: Deps, caller: Caller) -> QueueDocument:
    """Unfinished jobs and held GPUs of all users, and the pauses that affect the caller."""
    with dependencies.reading() as connection:
        everything, stored = use_of_all(connection), stored_limits(connection)
    return QueueDocument(
        jobs=everything.jobs,
        gpus_running=everything.gpus_running,
        pauses=[
            PauseDocument(scope=each.owner.scope, name=each.owner.name, reason=each.limit.pause_reason)
            for each in stored
            if each.limit.paused and concerns(caller, each.owner)
        ],
    )


@routes.read("/queue/jobs", LIST_JOBS, "List the queued jobs in the order of the policy")
def list_queue(caller: Caller, dependencies: Deps, leader: ToLeader, paging: Paging) -> QueueJobsDocument:
    """First the jobs in the order in which the next cycle considers them, with their positions among the jobs of all users. Then
    those that may not start now (held, or waiting for other jobs, a quota or the virtual gate), by submission. A cursor is the
    place of a job in the order: it stays valid while the queue changes.
    """
    return queue_page(dependencies, leader, caller, paging)


@routes.change(
    "POST", "/queue/pause", OPERATE, "Pause the queue, or a user's or project's part of it", AcceptedDocument
)
def pause(dependencies: Deps, change: Change, body: PauseBody) -> Response:
    """No job of this part starts until it is resumed. Running jobs continue, and jobs may be submitted."""
    owner = _owner(body)
    request = EngineRequest(0, RequestKind.QUEUE_PAUSED, dependencies.now_s(), owner=owner, note=body.reason)
    detail = {"reason": body.reason} if body.reason else {}
    return change.ask(lambda session: change.accept(session, request, detail=detail, target=_target(owner)))


@routes.change("POST", "/queue/resume", OPERATE, "Resume the queue, or a part of it", AcceptedDocument, 404)
def resume(dependencies: Deps, change: Change, body: QueuePartBody) -> Response:
    """Its jobs can start again from the next cycle, unless another pause covers them."""
    owner = _owner(body)
    request = EngineRequest(0, RequestKind.QUEUE_RESUMED, dependencies.now_s(), owner=owner)

    def effect(session: Session) -> Answer:
        if not stored_limit(session.connection(), owner).limit.paused:
            raise Problem(ProblemType.NOT_FOUND, f"{owner.title} is not paused.")
        return change.accept(session, request, target=_target(owner))

    return change.ask(effect)


def _target(owner: LimitOwner) -> str:
    """The part of the queue for the audit log: the path does not name it."""
    return "queue" if owner == QUEUE else f"{owner.scope.value} {owner.name}"


def _owner(body: QueuePartBody) -> LimitOwner:
    if body.user is not None and body.project is not None:
        fault = Fault("must not be given together with user", pointer="/project")
        raise Problem(ProblemType.INVALID_BODY, faults=[fault])
    if body.user is not None:
        return LimitOwner(Scope.USER, body.user)
    return QUEUE if body.project is None else LimitOwner(Scope.PROJECT, body.project)
