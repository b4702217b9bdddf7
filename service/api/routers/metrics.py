"""Counters and gauges of this process in Prometheus' text format."""

from fastapi import APIRouter, Response

from service.api.deps import Deps
from service.api.permissions import READ, allow
from service.api.routers.common import problems

routes = APIRouter(tags=["health"])

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@routes.get(
    "/metrics",
    response_class=Response,
    responses={
        **problems(400, 401, 403, 421, 429, 503),
        200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
    summary="Metrics for Prometheus",
)
@allow(READ)
def metrics(dependencies: Deps) -> Response:
    """Every metric is described on the page of the reference. A process that does not lead shows only its own part."""
    return Response(dependencies.process.exposition(), media_type=CONTENT_TYPE)
