"""Job arrays: how their elements are doing, and requests about all of them at once."""

from dataclasses import replace
from typing import Annotated

from fastapi import Body, Path, Response
from sqlmodel import Session

from policies.model.ids import JobId
from service.api.changes import Change, ChangeRequest
from service.api.deps import ApiDependencies, Deps
from service.api.idempotency import Answer
from service.api.permissions import CHANGE_JOB, READ_JOB
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes
from service.api.routers.jobs import asked
from service.db import reads
from service.engine.events import EngineRequest, RequestKind
from service.wire.bodies import ID_MAX, HoldBody, PriorityBody
from service.wire.jobs import ArrayAcceptedDocument, ArrayDocument

routes = Routes("arrays")

ArrayPath = Annotated[int, Path(ge=1, le=ID_MAX, description="The array's number: that of its first job.")]


@routes.read("/arrays/{array_id}", READ_JOB, "Show a job array", 404)
def show_array(dependencies: Deps, array_id: ArrayPath) -> ArrayDocument:
    """Counted by state; the elements themselves are `GET /v1/jobs?array=`."""
    with dependencies.reading() as connection:
        states = reads.element_states(connection, array_id)
    if not states:
        raise _no_such_array(array_id)
    return ArrayDocument(array_id=array_id, jobs=sum(states.values()), states=dict(states))


@routes.change("POST", "/arrays/{array_id}/cancel", CHANGE_JOB, "Cancel an array", ArrayAcceptedDocument, 404)
def cancel_array(dependencies: Deps, change: Change, array_id: ArrayPath, body: NoBody = None) -> Response:
    """Every element that has not ended; all of them in one cycle's time, or none."""
    return _ask(dependencies, change, array_id, EngineRequest(0, RequestKind.CANCEL, dependencies.now_s()))


@routes.change("POST", "/arrays/{array_id}/hold", CHANGE_JOB, "Hold an array", ArrayAcceptedDocument, 404)
def hold_array(
    dependencies: Deps,
    change: Change,
    array_id: ArrayPath,
    body: Annotated[HoldBody | None, Body()] = None,
) -> Response:
    """Its elements do not start until they are released; running attempts go on unless ``preempt`` is true."""
    preempt = body is not None and body.preempt
    return _ask(
        dependencies, change, array_id, EngineRequest(0, RequestKind.HOLD, dependencies.now_s(), preempt=preempt)
    )


@routes.change("POST", "/arrays/{array_id}/release", CHANGE_JOB, "Release a held array", ArrayAcceptedDocument, 404)
def release_array(dependencies: Deps, change: Change, array_id: ArrayPath, body: NoBody = None) -> Response:
    """Its elements compete again from the next cycle on."""
    return _ask(dependencies, change, array_id, EngineRequest(0, RequestKind.RELEASE, dependencies.now_s()))


@routes.change(
    "PUT", "/arrays/{array_id}/priority", CHANGE_JOB, "Change an array's priority", ArrayAcceptedDocument, 404
)
@routes.change(
    "POST", "/arrays/{array_id}/priority", CHANGE_JOB, "Change an array's priority", ArrayAcceptedDocument, 404
)
def change_array_priority(dependencies: Deps, change: Change, array_id: ArrayPath, body: PriorityBody) -> Response:
    """Of every element that has not ended; larger comes first."""
    request = EngineRequest(0, RequestKind.PRIORITY, dependencies.now_s(), priority=body.priority)
    return _ask(dependencies, change, array_id, request)


def _ask(dependencies: ApiDependencies, change: ChangeRequest, array_id: int, request: EngineRequest) -> Response:
    """Make the request durable for each element in one transaction, wake the loop, and say that it was accepted."""

    def effect(session: Session) -> Answer:
        elements = reads.unfinished_elements(session.connection(), array_id)
        if elements is None:
            raise _no_such_array(array_id)
        if not elements:
            raise Problem(ProblemType.JOB_FINISHED, f"All elements of array {array_id} have ended.")
        dependencies.store.add_requests(session, [replace(request, job=JobId(element)) for element in elements])
        accepted = ArrayAcceptedDocument(accepted=request.kind.value, array_id=array_id, jobs=len(elements))
        return Answer(202, accepted, detail={"jobs": len(elements), **asked(request)})

    return change.ask(effect)


def _no_such_array(array_id: int) -> Problem:
    return Problem(ProblemType.NOT_FOUND, f"There is no job array {array_id}.")
