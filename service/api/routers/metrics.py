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
    summary="Read metrics for Prometheus",
)
@allow(READ)
def metrics(dependencies: Deps) -> Response:
    """The reference describes each metric. Only the leader reports queue, GPUs and predictions."""
    return Response(dependencies.process.exposition(), media_type=CONTENT_TYPE)
