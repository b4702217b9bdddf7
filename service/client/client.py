"""The two clients: every request of the API, by noun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, cast

import httpx

from service.client.access import Audit, Keys, Projects, Usage, Users, Webhooks
from service.client.cluster import Cluster, Cycles, Queue, Quotas, Reservations, Services, Shares
from service.client.connection import AsyncConnection, Connection, http_options
from service.client.errors import is_from_sooner
from service.client.events import EventStream, StreamEvent
from service.client.flow import Emit, Flow, Request, Service, Stream
from service.client.jobs import TERMINAL_STATES, Arrays, Jobs
from service.client.noun import C, Noun, call, stream
from service.client.predictions import Forecasts, Models, Predictions, Shadow
from service.client.simulations import Simulations

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from types import TracebackType

    from service.wire.access import IdentityDocument
    from service.wire.cluster import ReadinessDocument
    from service.wire.jobs import EventDocument
    from service.wire.overview import OverviewDocument

TIMEOUT_S: Final = 30.0
"""A request waits at most ten seconds for the database's write lock; this is longer than any request takes."""
PATIENCE_S: Final = 30.0
"""A service that is restarted, or taken over by another, answers again within this time."""


class Api(Noun[C]):
    """What both clients offer. Requests raise :class:`ApiError` for a refusal and :class:`Unreachable` without an answer."""

    def __init__(self, connection: C) -> None:
        super().__init__(connection)
        self.jobs = Jobs(connection)
        self.arrays = Arrays(connection)
        self.queue = Queue(connection)
        self.cluster = Cluster(connection)
        self.reservations = Reservations(connection)
        self.quotas = Quotas(connection)
        self.shares = Shares(connection)
        self.predictions = Predictions(connection)
        self.models = Models(connection)
        self.forecasts = Forecasts(connection)
        self.shadow = Shadow(connection)
        self.simulations = Simulations(connection)
        self.cycles = Cycles(connection)
        self.usage = Usage(connection)
        self.keys = Keys(connection)
        self.users = Users(connection)
        self.projects = Projects(connection)
        self.audit = Audit(connection)
        self.webhooks = Webhooks(connection)
        self.services = Services(connection)

    @property
    def url(self) -> str:
        """The address of the service, without a slash at its end."""
        return self._connection.service.address

    @call
    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Flow[Any]:
        """The JSON answer of a GET: a route of a newer service, or one page of a list."""
        return self._get(path, query)

    @call
    def me(self) -> Flow[IdentityDocument]:
        """The identity of the token."""
        return self._get("/v1/me")

    @call
    def overview(self) -> Flow[OverviewDocument]:
        """GPUs, queue, loop, model, and what needs an operator's attention."""
        return self._get("/v1/overview")

    @stream
    def follow(self, topic: str = "jobs", since: str | None = None) -> Stream[StreamEvent]:
        """Events of a topic (``jobs``, ``job:NUMBER``, ``servers``, ``cycle``) from now on, or after ``since``, without an end.

        A stream that breaks, such as by a restart of the service, is opened again at its last position, and misses nothing.
        """
        events = EventStream(self._connection.service, topic, since)
        while True:
            event = yield from events.next()
            if event is not None:
                yield Emit(event)

    @stream
    def watch(self, job_id: int) -> Stream[EventDocument]:
        """A job's newest change, and its further ones as they happen, up to its end. As robust as :meth:`follow`."""
        events = EventStream(self._connection.service, f"job:{job_id}", None)
        # From the stream's first position on nothing is missed, so what happened before is read after it.
        yield from events.next()
        past = yield from self._pages(f"/v1/jobs/{job_id}/events")
        # A change that no cycle has seen yet has no number; the stream brings it again.
        newest: EventDocument | None = past[-1] if past and past[-1]["id"] > 0 else None
        if newest is not None:
            yield Emit(newest)
        while newest is None or newest["target"] not in TERMINAL_STATES:
            event = yield from events.next()
            if event is not None and (newest is None or event.document["id"] > newest["id"]):
                newest = cast("EventDocument", event.document)
                yield Emit(newest)

    @call
    def metrics(self) -> Flow[str]:
        """Counters and gauges in Prometheus' text format."""
        answer = yield from self._answer("GET", "/metrics")
        return answer.text

    @call
    def readiness(self) -> Flow[ReadinessDocument]:
        """Whether the service is ready, and what is missing if it is not."""
        return self._get("/readyz", also=503)

    @call
    def ready(self) -> Flow[bool]:
        """Whether the service answers, its schema is current, and its scheduling loop runs."""
        try:
            answer: httpx.Response = yield Request("GET", "/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK and is_from_sooner(answer)


class Client(Api[Connection]):
    """Requests that block. For one thread at a time."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
        proven: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``patience_s``: for how long a request is repeated while the service is away or asks for it. 0: never.

        ``proven``: each connection proves first that its other end has the token (:mod:`service.client.proven`). ``tls``: what is
        trusted, instead of the authorities of the system.
        """
        http = httpx.Client(**http_options(base_url, token, timeout_s, tls), transport=transport)
        if proven and token:
            from service.client.proven import asks_for_proof

            http.event_hooks = {"request": [asks_for_proof(token)]}
        super().__init__(Connection(http, Service(str(http.base_url).rstrip("/"), patience_s)))

    def close(self) -> None:
        """Close the connections."""
        self._connection.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Api[AsyncConnection]):
    """The same requests to await. For the tasks of one event loop."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
        proven: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """As for :class:`Client`."""
        http = httpx.AsyncClient(**http_options(base_url, token, timeout_s, tls), transport=transport)
        if proven and token:
            from service.client.proven import asks_for_proof_async

            http.event_hooks = {"request": [asks_for_proof_async(token)]}
        super().__init__(AsyncConnection(http, Service(str(http.base_url).rstrip("/"), patience_s)))

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
