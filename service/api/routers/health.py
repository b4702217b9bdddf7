"""Probes of the process, and the pages of the problem types."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.api.deps import ApiDependencies, Deps
from service.api.documents import instant_or_none
from service.api.permissions import OPEN, allow
from service.api.problems import TYPE_PREFIX, Problem, ProblemType
from service.api.readiness import Readiness
from service.api.routers.common import problems
from service.domain.proof import NONCE_PATTERN, PROOF_PATH, proof
from service.wire.cluster import HealthDocument, ProofDocument, ReadinessDocument

routes = APIRouter(tags=["health"])


@routes.get("/healthz", openapi_extra={"security": []}, summary="Check that the process answers")
@allow(OPEN)
async def healthz() -> HealthDocument:
    """Reads neither the database nor the disk."""
    return HealthDocument(status="ok")


@routes.get(
    "/readyz",
    openapi_extra={"security": []},
    responses={503: {"model": ReadinessDocument, "description": "Not ready; the fields say what is missing."}},
    summary="Check that the service is ready",
)
@allow(OPEN)
async def readyz(request: Request, response: Response) -> ReadinessDocument:
    """503 while the schema is of another version, the database does not answer, or the leader's loop is stale. A standby is
    ready when it reaches the database. The response is at most 15 seconds old.
    """
    readiness: Readiness = request.app.state.readiness
    document = await readiness.now()
    response.status_code = 200 if document["ready"] else 503
    return document


def read_readiness(dependencies: ApiDependencies) -> ReadinessDocument:
    """Whether the service is ready now. Blocks."""
    loop = dependencies.scheduler.status()
    migrated = dependencies.process.is_migrated()
    return ReadinessDocument(
        ready=migrated and (loop.healthy or not loop.leads),
        role="leader" if loop.leads else "standby",
        migrated=migrated,
        loop_healthy=loop.healthy,
        cycle=loop.cycle,
        cycle_at=instant_or_none(loop.at_s),
        containment=dependencies.process.containment,
    )


@routes.get(
    PROOF_PATH,
    openapi_extra={"security": []},
    responses=problems(400, 421, 422),
    summary="Prove that this is the service of the data folder",
)
@allow(OPEN)
async def prove(
    dependencies: Deps,
    request: Request,
    nonce: Annotated[str, Query(pattern=NONCE_PATTERN, description="Drawn by the client.")],
) -> ProofDocument:
    """HMAC-SHA256 under the token of the data folder over `sooner-proof/1`, the port of this connection, and the nonce, a line
    each. A client that can read the token checks it before it sends the token."""
    server = request.scope.get("server") or ("", 0)
    return ProofDocument(proof=proof(dependencies.token, server[1] or 0, nonce))


@routes.get(
    TYPE_PREFIX + "{slug}",
    response_class=PlainTextResponse,
    openapi_extra={"security": []},
    responses=problems(400, 404, 422),
    summary="Describe a problem type",
)
@allow(OPEN)
async def problem_page(slug: Annotated[str, Path(max_length=100)]) -> PlainTextResponse:
    """The page to which the ``type`` of a problem refers."""
    for kind in ProblemType:
        if kind.value.slug == slug:
            return PlainTextResponse(f"{kind.value.title} (HTTP {kind.status})\n\n{kind.value.advice}\n")
    raise Problem(ProblemType.NOT_FOUND, "There is no such problem type.")
