"""Routes that compute for long. They run in threads of their own, so that other requests do not wait for these threads.

The answer is also encoded there: the encoding of some hundred plans would hold up the event loop.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast, get_type_hints

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Response
from pydantic import TypeAdapter

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])

THREADS: Final = 4
"""Most of them wait for the process that makes forecasts; the others share the interpreter lock with cheap requests."""

_HEAVY: Final = "computes_for_long"
_LIMITER: Final = RunVar[CapacityLimiter]("threads of heavy requests")


def threads() -> CapacityLimiter:
    """The limit of these threads, for the running event loop."""
    try:
        return _LIMITER.get()
    except LookupError:
        made = CapacityLimiter(THREADS)
        _LIMITER.set(made)
        return made


def heavy(endpoint: Endpoint) -> Endpoint:
    """The function of a route, run and encoded in one of these threads."""
    answer = TypeAdapter(get_type_hints(endpoint, include_extras=True)["return"])

    def compute(**values: Any) -> Response:
        document = answer.validate_python(endpoint(**values))
        return Response(answer.dump_json(document, by_alias=True), media_type="application/json")

    @wraps(endpoint)
    async def elsewhere(**values: Any) -> Response:
        return await to_thread.run_sync(partial(compute, **values), limiter=threads())

    setattr(elsewhere, _HEAVY, True)
    return cast(Endpoint, elsewhere)


def is_heavy(endpoint: Callable[..., object]) -> bool:
    """Whether the route's function was made by :func:`heavy`."""
    return getattr(endpoint, _HEAVY, False)
