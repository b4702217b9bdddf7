"""Job arrays: the states of their elements, and requests about all elements at once."""

from typing import Annotated, Any, NamedTuple

from fastapi import Body, Depends, Path, Response
from sqlmodel import Session

from policies.model.ids import JobId
from service.api.changes import Change, ChangeRequest
from service.api.deps import ApiDependencies, Deps
from service.api.idempotency import Answer
from service.api.permissions import CHANGE_JOB, READ_JOB
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes
from service.db import reads
from service.engine.events import EngineRequest, RequestKind
from service.wire.bodies import HoldBody, Id, PriorityBody
from service.wire.jobs import ArrayAcceptedDocument, ArrayDocument

routes = Routes("arrays")

ArrayPath = Annotated[Id, Path(description="The array's number: that of its first job.")]


@routes.read("/arrays/{array_id}", READ_JOB, "Show a job array", 404)
def show_array(dependencies: Deps, array_id: ArrayPath) -> ArrayDocument:
    """The number of elements by state. `GET /v1/jobs?array=` lists the elements."""
    with dependencies.reading() as connection:
        states = reads.element_states(connection, array_id)
    if not states:
        raise _no_such_array(array_id)
    return ArrayDocument(array_id=array_id, jobs=sum(states.values()), states=dict(states))


class ArrayRequest(NamedTuple):
    """A request about every element of an array that has not ended."""

    dependencies: ApiDependencies
    change: ChangeRequest
    array_id: int

    def accept(self, kind: RequestKind, **details: Any) -> Response:
        """Make the request durable for all elements in one transaction, wake the loop, and answer that it was accepted."""
        now_s = self.dependencies.now_s()

        def effect(session: Session) -> Answer:
            elements = reads.unfinished_elements(session.connection(), self.array_id)
            if elements is None:
                raise _no_such_array(self.array_id)
            if not elements:
                raise Problem(ProblemType.JOB_FINISHED, f"All elements of array {self.array_id} have ended.")
            requests = [EngineRequest(0, kind, now_s, JobId(element), **details) for element in elements]
            self.dependencies.store.add_requests(session, requests)
            accepted = ArrayAcceptedDocument(accepted=kind.value, array_id=self.array_id, jobs=len(elements))
            return Answer(202, accepted, detail={"jobs": len(elements), **details})

        return self.change.ask(effect)


async def _array_request(dependencies: Deps, change: Change, array_id: ArrayPath) -> ArrayRequest:
    return ArrayRequest(dependencies, change, array_id)


OneArray = Annotated[ArrayRequest, Depends(_array_request)]


@routes.change("POST", "/arrays/{array_id}/cancel", CHANGE_JOB, "Cancel an array", ArrayAcceptedDocument, 404)
def cancel_array(array: OneArray, body: NoBody = None) -> Response:
    """Cancels every unfinished element in one transaction."""
    return array.accept(RequestKind.CANCEL)


@routes.change("POST", "/arrays/{array_id}/hold", CHANGE_JOB, "Hold an array", ArrayAcceptedDocument, 404)
def hold_array(array: OneArray, body: Annotated[HoldBody | None, Body()] = None) -> Response:
    """Its elements do not start until they are released. Running attempts continue unless ``preempt`` is true."""
    return array.accept(RequestKind.HOLD, preempt=body is not None and body.preempt)


@routes.change("POST", "/arrays/{array_id}/release", CHANGE_JOB, "Release a held array", ArrayAcceptedDocument, 404)
def release_array(array: OneArray, body: NoBody = None) -> Response:
    """Its elements can start again from the next cycle."""
    return array.accept(RequestKind.RELEASE)


@routes.change(
    "PUT", "/arrays/{array_id}/priority", CHANGE_JOB, "Change an array's priority", ArrayAcceptedDocument, 404
)
@routes.change(
    "POST", "/arrays/{array_id}/priority", CHANGE_JOB, "Change an array's priority", ArrayAcceptedDocument, 404
)
def change_array_priority(array: OneArray, body: PriorityBody) -> Response:
    """Of every unfinished element. Larger comes first."""
    return array.accept(RequestKind.PRIORITY, priority=body.priority)


def _no_such_array(array_id: int) -> Problem:
    return Problem(ProblemType.NOT_FOUND, f"There is no job array {array_id}.")
