"""The cluster: its servers, reservations of them, the queue, quotas, recorded cycles, and the services of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.client.flow import Flow, Many
from service.client.noun import C, Noun, call, segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.wire.cluster import (
        ClusterDocument,
        CycleDocument,
        CycleSummary,
        QueueDocument,
        QuotaDocument,
        ReservationDocument,
        ServerEventDocument,
        ServiceDocument,
    )
    from service.wire.jobs import AcceptedDocument, AcceptedServerDocument
    from service.wire.queue import QueuedJobDocument, QueueJobsDocument
    from service.wire.shares import SharesDocument
    from service.wire.timeline import GpusDocument, TimelineDocument


class Cluster(Noun[C]):
    """``client.cluster``."""

    @call
    def show(self) -> Flow[ClusterDocument]:
        """The cluster as the scheduling loop sees it now."""
        return self._get("/v1/cluster")

    @call
    def events(self, limit: int = 100) -> Many[ServerEventDocument]:
        """The newest changes of servers, newest first."""
        return self._pages("/v1/cluster/events", limit=limit)

    @call
    def timeline(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        resolution_s: float = 0.0,
        servers: Sequence[str] = (),
        changed_since: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Flow[TimelineDocument]:
        """Which attempts held which GPUs from ``since`` to ``until`` (ISO 8601; the last day if left out), one page.

        Attempts shorter than ``resolution_s`` are merged. ``changed_since``: the ``mark`` of an earlier answer, and only what has
        changed after it is in this one. ``limit``: bars of the page. ``after``: the ``next`` of the page before.
        """
        period = {"since": since, "until": until, "resolution_s": resolution_s or None, "server": [*servers]}
        return self._get("/v1/timeline", {**period, "changed_since": changed_since, "limit": limit, "after": after})

    @call
    def gpus(self, *, servers: Sequence[str] = ()) -> Flow[GpusDocument]:
        """Which attempt holds which GPU of these servers (of all, if none is named) now."""
        return self._get("/v1/gpus", {"server": [*servers]})

    @call
    def add_server(self, server: Mapping[str, Any]) -> Flow[AcceptedServerDocument]:
        """Add a server (keys as in the API: ``name``, ``gpus``, ...)."""
        return self._post("/v1/cluster/servers", server)

    @call
    def drain(self, server: str) -> Flow[AcceptedDocument]:
        """Give a server no new work."""
        return self._post(f"/v1/cluster/servers/{segment(server)}/drain")

    @call
    def resume(self, server: str) -> Flow[AcceptedDocument]:
        """Give a drained server work again."""
        return self._post(f"/v1/cluster/servers/{segment(server)}/resume")


class Reservations(Noun[C]):
    """``client.reservations``: reservations of servers."""

    @call
    def list(self) -> Many[ReservationDocument]:
        """Those that are not over."""
        answer = yield from self._get("/v1/reservations")
        return list(answer["reservations"])

    @call
    def make(self, reservation: Mapping[str, Any]) -> Flow[ReservationDocument]:
        """Reserve servers for a time (keys as in the API: ``servers``, ``starts_at``, ``ends_at``, ...)."""
        return self._post("/v1/reservations", reservation)

    @call
    def cancel(self, reservation_id: int) -> Flow[AcceptedDocument]:
        """Cancel a reservation."""
        return self._post(f"/v1/reservations/{reservation_id}/cancel")


class Queue(Noun[C]):
    """``client.queue``."""

    @call
    def show(self) -> Flow[QueueDocument]:
        """The length of the queue and its pauses."""
        return self._get("/v1/queue")

    @call
    def jobs(self, *, limit: int | None = None) -> Many[QueuedJobDocument]:
        """The queued jobs in the order of the policy, then those that may not start now; all pages, or at most ``limit``."""
        return self._pages("/v1/queue/jobs", limit=limit)

    @call
    def page(self, *, limit: int | None = None, after: str | None = None) -> Flow[QueueJobsDocument]:
        """One page of :meth:`jobs`, with the policy and the counts. ``after``: the ``next`` of the page before."""
        return self._get("/v1/queue/jobs", {"limit": limit, "after": after})

    @call
    def pause(self, part: Mapping[str, str]) -> Flow[AcceptedDocument]:
        """Start no jobs of a ``user`` or a ``project``, or none at all; ``reason`` is shown to their users."""
        return self._post("/v1/queue/pause", part)

    @call
    def resume(self, part: Mapping[str, str]) -> Flow[AcceptedDocument]:
        """Start them again."""
        return self._post("/v1/queue/resume", part)


class Quotas(Noun[C]):
    """``client.quotas``: limits of users and projects."""

    @call
    def list(self) -> Many[QuotaDocument]:
        """Quotas and what is used of them."""
        answer = yield from self._get("/v1/quotas")
        return list(answer["quotas"])

    @call
    def put(self, scope: str, name: str, limits: Mapping[str, int | None]) -> Flow[QuotaDocument]:
        """Set both limits of a user or a project (``scope``)."""
        return self._change("PUT", f"/v1/quotas/{scope}/{segment(name)}", limits)

    @call
    def remove(self, scope: str, name: str) -> Flow[QuotaDocument]:
        """Remove both limits."""
        return self._change("DELETE", f"/v1/quotas/{scope}/{segment(name)}")


class Shares(Noun[C]):
    """``client.shares``: fair shares of users and projects."""

    @call
    def show(self) -> Flow[SharesDocument]:
        """What the policy has counted of their use, beside their quotas."""
        return self._get("/v1/shares")


class Cycles(Noun[C]):
    """``client.cycles``: decisions of the scheduling loop. A snapshot is the input of ``sooner sim replay``."""

    @call
    def list(self, *, limit: int | None = None) -> Many[CycleSummary]:
        """The counts of cycles with changes, newest first; all pages, or at most ``limit``."""
        return self._pages("/v1/cycles", limit=limit)

    @call
    def show(self, cycle: int) -> Flow[CycleDocument]:
        """The changes and actions of a cycle in their order."""
        return self._get(f"/v1/cycles/{cycle}")

    @call
    def recorded(self) -> Many[int]:
        """The cycles that can be replayed, newest first."""
        answer = yield from self._get("/v1/snapshots")
        return list(answer["cycles"])

    @call
    def snapshot(self, cycle: int) -> Flow[dict[str, Any]]:
        """Everything that a cycle's decision depends on."""
        return self._get(f"/v1/cycles/{cycle}/snapshot")

    @call
    def snapshot_now(self) -> Flow[dict[str, Any]]:
        """The same of the present, without changes or actions. Status 409 for a very long queue."""
        return self._get("/v1/snapshots/now")


class Services(Noun[C]):
    """``client.services``."""

    @call
    def list(self) -> Many[ServiceDocument]:
        """Every service of the database, the one seen last first."""
        answer = yield from self._get("/v1/services")
        return list(answer["services"])
