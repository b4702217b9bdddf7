"""The queue as a whole: its length and its pauses."""

from fastapi import Response
from sqlmodel import Session

from service.api.access import Caller
from service.api.changes import Change
from service.api.deps import Deps
from service.api.idempotency import Answer
from service.api.limit_documents import concerns
from service.api.permissions import OPERATE, READ
from service.api.problems import Fault, Problem, ProblemType
from service.api.routers.common import Routes
from service.db.limits import Use, stored_limit, stored_limits, uses
from service.engine.events import EngineRequest, RequestKind
from service.engine.limits import QUEUE, LimitOwner, Scope
from service.wire.bodies import PauseBody, QueuePartBody
from service.wire.cluster import PauseDocument, QueueDocument
from service.wire.jobs import AcceptedDocument

routes = Routes("queue")


@routes.read("/queue", READ, "Show the queue's length and its pauses")
def show_queue(dependencies: Deps, caller: Caller) -> QueueDocument:
    """Unfinished jobs and held GPUs of all users, and the pauses that affect the caller."""
    with dependencies.reading() as connection:
        used, stored = uses(connection), stored_limits(connection)
    everything = used.get(QUEUE, Use())
    return QueueDocument(
        jobs=everything.jobs,
        gpus_running=everything.gpus_running,
        pauses=[
            PauseDocument(scope=each.owner.scope, name=each.owner.name, reason=each.limit.pause_reason)
            for each in stored
            if each.limit.paused and concerns(caller, each.owner)
        ],
    )


@routes.change(
    "POST", "/queue/pause", OPERATE, "Pause the queue, or a user's or project's part of it", AcceptedDocument
)
def pause(dependencies: Deps, change: Change, body: PauseBody) -> Response:
    """No job of this part starts until it is resumed. Running jobs continue, and jobs may be submitted."""
    now_s = dependencies.now_s()
    request = EngineRequest(0, RequestKind.QUEUE_PAUSED, now_s, owner=_owner(body), note=body.reason)
    return change.ask(lambda session: change.accept(session, request))


@routes.change("POST", "/queue/resume", OPERATE, "Resume the queue, or a part of it", AcceptedDocument, 404)
def resume(dependencies: Deps, change: Change, body: QueuePartBody) -> Response:
    """Its jobs can start again from the next cycle, unless another pause covers them."""
    owner = _owner(body)
    request = EngineRequest(0, RequestKind.QUEUE_RESUMED, dependencies.now_s(), owner=owner)

    def effect(session: Session) -> Answer:
        if not stored_limit(session.connection(), owner).limit.paused:
            raise Problem(ProblemType.NOT_FOUND, f"{owner.title} is not paused.")
        return change.accept(session, request)

    return change.ask(effect)


def _owner(body: QueuePartBody) -> LimitOwner:
    if body.user is not None and body.project is not None:
        fault = Fault("must not be given together with user", pointer="/project")
        raise Problem(ProblemType.INVALID_BODY, faults=[fault])
    if body.user is not None:
        return LimitOwner(Scope.USER, body.user)
    return QUEUE if body.project is None else LimitOwner(Scope.PROJECT, body.project)
