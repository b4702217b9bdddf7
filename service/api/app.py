"""The web application: routes, the request guard before them, one shape for every error, and the OpenAPI document."""

from functools import cache
from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.utils import get_flat_params
from fastapi.openapi.utils import get_openapi
from fastapi.params import ParamTypes
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.api import problems
from service.api.admission import Admission
from service.api.authenticate import Authenticator
from service.api.deps import ApiDependencies
from service.api.docs_page import DOCS_PATH, docs_page_of
from service.api.idempotency import Keys
from service.api.overview import Overviews, read
from service.api.peers import Peers
from service.api.permissions import Owners, Rule, rule_of
from service.api.quick import QuickRoutes
from service.api.rates import Buckets
from service.api.readiness import Readiness
from service.api.routers import (
    access,
    arrays,
    attempts,
    cluster,
    cycles,
    events,
    forecast,
    health,
    job_details,
    jobs,
    learning,
    metrics,
    overview,
    queues,
    quotas,
    reservations,
    services,
    shadow,
    simulations,
    snapshots,
    timeline,
    usage,
    webhooks,
)
from service.api.routers.common import ProblemDocument
from service.api.security import RequestGuard
from service.api.site import site_routes
from service.api.sse import Streams
from service.db.identity import peer_secret

ROUTERS = (
    overview,
    jobs,
    job_details,
    arrays,
    forecast,
    attempts,
    cluster,
    queues,
    quotas,
    reservations,
    learning,
    cycles,
    events,
    shadow,
    snapshots,
    simulations,
    timeline,
    usage,
    webhooks,
    metrics,
    access,
    services,
    health,
)
"""All modules with routes, in the order of the documentation."""

API_VERSION = "1"
OPENAPI_PATH = "/v1/openapi.json"

_DESCRIPTION = """Prediction-assisted scheduling of deep-learning training jobs.

Times are ISO 8601 in UTC and end in `_at`; durations are seconds and end in `_s`. Unknown keys are refused in requests and
may appear in answers. Every error is a problem document (RFC 9457)."""


def create_app(dependencies: ApiDependencies) -> FastAPI:
    """The ASGI application. It starts and stops nothing."""
    # FastAPI's own pages load scripts from other hosts; slash redirects would answer for paths that do not exist.
    app = FastAPI(title="Sooner", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.dependencies = dependencies
    app.state.authenticator = Authenticator(
        dependencies.database, dependencies.settings, dependencies.token, dependencies.now_s
    )
    app.state.failed_logins = Buckets(
        dependencies.settings.failed_logins_per_s_max, dependencies.settings.failed_logins_burst_max
    )
    app.state.key_requests = Buckets(dependencies.settings.requests_per_s_max, dependencies.settings.requests_burst_max)
    app.state.owners = Owners(dependencies.database)
    app.state.idempotency_keys = Keys(
        dependencies.database, dependencies.now_s, dependencies.settings.idempotency_kept_s
    )
    for module in ROUTERS:
        # The routes themselves: ``include_router`` would build each of them a second time.
        app.router.routes += module.routes.routes
    app.state.streams = Streams(dependencies.database)
    app.state.admission = Admission()
    app.state.readiness = Readiness(lambda: health.read_readiness(app.state.dependencies))
    app.state.overviews = Overviews(lambda: read(app.state.dependencies))
    app.state.peers = Peers(lambda: peer_secret(dependencies.database), dependencies.now_s)
    problems.install(app)
    app.add_middleware(RequestGuard, settings=dependencies.settings)
    _describe(app)
    app.state.query_parameters = _query_parameters()
    app.state.quick_routes = QuickRoutes(route for module in ROUTERS for route in module.routes.routes)
    app.add_route(DOCS_PATH, docs_page_of(app.openapi))
    app.router.routes += site_routes()
    return app


def route_rules() -> dict[tuple[str, str], Rule]:
    """The permission of every route, by method and path. ``/v1/openapi.json`` is for every role."""
    return {
        (method, route.path_format): rule_of(route.endpoint)
        for module in ROUTERS
        for route in module.routes.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def _query_parameters() -> dict[tuple[str, str], frozenset[str]]:
    """The names that each method of each path takes in its query."""
    return {
        (method, route.path_format): frozenset(
            field.alias
            for field in get_flat_params(route.dependant)
            if getattr(field.field_info, "in_", None) is ParamTypes.query
        )
        for module in ROUTERS
        for route in module.routes.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def _describe(app: FastAPI) -> None:
    """FastAPI's document, with our errors instead of its own and the two tokens.

    It takes a second of a processor, so it is made at the first request for it, beside the event loop, and not at the start. To
    write it takes longer than most requests, so its text is kept.
    """
    making, routes = Lock(), list(app.routes)

    def openapi() -> dict[str, Any]:
        with making:
            if app.openapi_schema is None:
                document = get_openapi(title="Sooner", version=API_VERSION, description=_DESCRIPTION, routes=routes)
                app.openapi_schema = _ours(document)
            return app.openapi_schema

    @cache
    def text() -> bytes:
        return bytes(JSONResponse(openapi()).body)

    async def answer(_: Request) -> Response:
        return Response(await run_in_threadpool(text), media_type=JSONResponse.media_type)

    app.openapi = openapi  # type: ignore[method-assign]
    app.add_route(OPENAPI_PATH, answer, include_in_schema=False)


def _ours(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    reference = "#/components/schemas/{model}"
    problem = ProblemDocument.model_json_schema(ref_template=reference)
    schemas.update(problem.pop("$defs"))
    schemas["ProblemDocument"] = problem
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, or the file 'token' in the data folder.",
        },
        "attemptToken": {"type": "http", "scheme": "bearer", "description": "SOONER_PROGRESS_TOKEN of an attempt."},
    }
    document["security"] = [{"token": []}]
    return document
