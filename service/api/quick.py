"""Quick answers: what most requests of a route ask for is answered before the router and all that FastAPI does around a route's
function, which is most of the work for a small request.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope

from service.api.problems import Problem
from service.api.strict_json import StrictRequest, StrictRoute

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])

Quick = Callable[[StrictRequest], Awaitable[Response | None]]
"""Answers a request without one of the threads that answer requests. None: the route's function has to answer.

It must refuse nothing that the route accepts, and accept nothing that the route refuses.
"""

_QUICK: Final = "answers_quickly"


def quick(answer: Quick) -> Callable[[Endpoint], Endpoint]:
    """Decorates the function of a route with the answer that is tried before it. A parameter may only end its path."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _QUICK, answer)
        return endpoint

    return mark


class QuickRoutes:
    """The routes with a quick answer, by method and path."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = {
            (method, route.path.partition("{")[0], "{" in route.path): route
            for route in routes
            if isinstance(route, StrictRoute) and hasattr(route.endpoint, _QUICK)
            for method in route.methods or ()
        }

    def of(self, scope: Scope) -> tuple[StrictRoute, dict[str, str]] | None:
        """The route of a request, and the parameters of its path; None if it has no quick answer."""
        method, path = scope["method"], scope["path"]
        if (route := self._routes.get((method, path, False))) is not None:
            return route, {}
        head, slash, last = path.rpartition("/")
        if (route := self._routes.get((method, head + slash, True))) is not None:
            return route, dict.fromkeys(route.param_convertors, last)
        return None


async def quickly_answered(
    route: StrictRoute, parameters: Mapping[str, str], scope: Scope, receive: Receive
) -> tuple[Response | None, Receive]:
    """The quick answer of the route. If there is none, a ``receive`` that gives the body once more. Raises Problem (413)."""
    scope.update({"route": route, "endpoint": route.endpoint, "path_params": dict(parameters)})
    request = StrictRequest(Request(scope, receive), route.body_type)
    try:
        await request.body()
    except ClientDisconnect:
        return None, receive
    with suppress(Problem):  # which the longer way finds again
        answer: Quick = getattr(route.endpoint, _QUICK)
        found = await answer(request)
        if found is not None:
            return found, receive
    return None, request.once_more()
