"""Shared by all routes: the decorators, common parameters, and 404 for what does not exist."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, TypeAdapter
from sqlalchemy import Connection, Row
from starlette.convertors import Convertor, register_url_convertor

from service.api.forwarding import Route
from service.api.heavy import heavy
from service.api.permissions import Endpoint, Rule, allow, permitted
from service.api.problems import MEDIA_TYPE, Fault, Problem, ProblemType
from service.db import reads
from service.db.reads import JobSummary
from service.wire.base import TEXT_MAX
from service.wire.bodies import Id

FilterText = Annotated[str | None, Query(max_length=TEXT_MAX)]
"""A filter of a list."""


class _NameConvertor(Convertor[str]):
    """``{name:name}`` in a path: any text, also with slashes and line breaks, which the parameter's pattern may refuse."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _NameConvertor())

JobPath = Annotated[Id, Path(description="The job's number.")]


class ProblemFault(BaseModel):
    """One fault: a `pointer` (RFC 6901) into the body, or the name of a `parameter`."""

    pointer: str | None = None
    parameter: str | None = None
    detail: str


class ProblemDocument(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemFault]


class NothingBody(BaseModel):
    """A body without keys, for requests whose path is complete."""

    model_config = ConfigDict(extra="forbid")


NoBody = Annotated[NothingBody | None, Body()]


_JSON: TypeAdapter[Any] = TypeAdapter(Any)


def large(document: object) -> Response:
    """The answer of a route with a large document, which is written without a check of each of its values."""
    return Response(_JSON.dump_json(document), media_type="application/json")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers of a route, for the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {status: {"description": "Problem", "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses}


async def _known_parameters(request: Request) -> None:
    """Refuse unknown parameters: a mistyped filter would silently list everything."""
    known = request.app.state.query_parameters[request.method, request.scope["route"].path_format]
    faults = [Fault("is unknown", parameter=name) for name in request.query_params if name not in known]
    if faults:
        raise Problem(ProblemType.INVALID_PARAMETER, faults=faults)


class Routes(APIRouter):
    """Routes of one module below ``/v1``. Each states its permission, and reads its body and its parameters strictly."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            prefix="/v1",
            tags=[tag],
            route_class=Route,
            responses=problems(400, 401, 403, 421, 422, 429, 503),
            dependencies=[Depends(permitted), Depends(_known_parameters)],
        )

    def read(
        self,
        path: str,
        rule: Rule,
        summary: str,
        *errors: int,
        method: str = "GET",
        computes: bool = False,
        responses: Mapping[int | str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Decorates a route that is no change: it takes no ``Idempotency-Key`` and leaves no line in the audit log.

        ``errors``: statuses besides those of every route. ``computes``: the route is heavy (:mod:`service.api.heavy`). The
        other parameters are FastAPI's.
        """
        answers = {**problems(*errors), **(responses or {})}
        register = self.api_route(path, methods=[method], summary=summary, responses=answers, **options)
        return lambda endpoint: register(allow(rule)(heavy(endpoint) if computes else endpoint))

    def change(
        self, method: str, path: str, rule: Rule, summary: str, model: Any, *errors: int, status: int = 202
    ) -> Callable[[Endpoint], Endpoint]:
        """Decorates a change, which answers with ``model``; its function takes a parameter of type ``Change``."""
        return self.read(
            path,
            rule,
            summary,
            *sorted({400, 409, 413, 415, *errors}),
            method=method,
            status_code=status,
            response_model=model,
        )


def job_or_404(connection: Connection, job_id: int) -> JobSummary:
    """The job, or 404."""
    found = reads.job(connection, job_id)
    if found is None:
        raise no_such_job(job_id)
    return found


def require_job(connection: Connection, job_id: int) -> None:
    """404 unless there is such a job; for lists that belong to one."""
    if not reads.job_exists(connection, job_id):
        raise no_such_job(job_id)


def no_such_job(job_id: int) -> Problem:
    """404 for a job."""
    return Problem(ProblemType.NOT_FOUND, f"There is no job {job_id}.")


def found_or_404(row: Row[Any] | None, what: str) -> Row[Any]:
    """The row, or 404 that names what is missing."""
    if row is None:
        raise Problem(ProblemType.NOT_FOUND, f"There is no {what}.")
    return row
