"""Count and time HTTP requests by route. The middleware wraps the whole application, so refusals of the request guard count."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.telemetry import tracing
from service.telemetry.metrics import Metrics

NO_ROUTE = "none"
"""Label of paths without a route and of requests that the guard refuses. Clients choose these paths, so they share one label."""


class MeasuredApp:
    """ASGI middleware. Streams are measured until they end."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; count and time it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        start_s = time.perf_counter()

        async def remember(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with tracing.span("http.request") as span:
            try:
                await self._app(scope, receive, remember)
            finally:
                route = getattr(scope.get("route"), "path_format", NO_ROUTE)
                self._metrics.requests.labels(_method(scope), route, str(status)).inc()
                self._metrics.request_duration.labels(route).observe(time.perf_counter() - start_s)
                if span is not None:
                    span.set_attributes({"http.route": route, "http.response.status_code": status})


def _method(scope: Scope) -> str:
    """The method if it is a standard one, else ``other``: a client may send any text."""
    method = str(scope["method"])
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
