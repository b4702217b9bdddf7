"""Long work: routes that compute, and large bodies. It has threads of its own, so that no other request waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast, get_type_hints

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Response
from pydantic import TypeAdapter

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
Found = TypeVar("Found")

_HEAVY: Final = "computes_for_long"


class Threads:
    """A limited number of threads of each event loop, beside those that answer other requests."""

    def __init__(self, name: str, count: int) -> None:
        self._count = count
        self._limiter = RunVar[CapacityLimiter](name)

    async def run(self, work: Callable[[], Found]) -> Found:
        """The result of ``work``, which waits for a free thread."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = CapacityLimiter(self._count)
            self._limiter.set(limiter)
        return await to_thread.run_sync(work, limiter=limiter)


COMPUTING: Final = Threads("threads of heavy requests", 2)
"""While one waits for the process that makes forecasts, the other one prepares the next question."""

PARSING: Final = Threads("threads of large bodies", 1)
"""It computes without a pause, and so delays every other thread; two of them would double that."""


_TURN: Final = RunVar[asyncio.Lock]("turn to compute in the event loop")


@asynccontextmanager
async def in_turn() -> AsyncIterator[None]:
    """Compute in the event loop, but after all who came before, and one in each pass of the loop: others are answered between."""
    try:
        turn = _TURN.get()
    except LookupError:
        turn = asyncio.Lock()
        _TURN.set(turn)
    async with turn:
        # Else whoever runs in the same pass would find the lock free.
        await asyncio.sleep(0)
        yield


def heavy(endpoint: Endpoint) -> Endpoint:
    """The function of a route, run in a thread for computing. Its answer is also encoded there, and not in the event loop."""
    answer = TypeAdapter(get_type_hints(endpoint, include_extras=True)["return"])

    def compute(**values: Any) -> Response:
        document = answer.validate_python(endpoint(**values))
        return Response(answer.dump_json(document, by_alias=True), media_type="application/json")

    @wraps(endpoint)
    async def elsewhere(**values: Any) -> Response:
        return await COMPUTING.run(partial(compute, **values))

    setattr(elsewhere, _HEAVY, True)
    return cast(Endpoint, elsewhere)


def is_heavy(endpoint: Callable[..., object]) -> bool:
    """Whether the route's function was made by :func:`heavy`."""
    return getattr(endpoint, _HEAVY, False)
