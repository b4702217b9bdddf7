"""Reservations: servers set aside for a time, for a user or a project, or for maintenance."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import Path, Response
from sqlalchemy import Connection
from sqlmodel import Session

from policies.model.ids import ServerIndex
from policies.model.server_reservation import ServerReservation
from service.api.access import Caller
from service.api.changes import Change
from service.api.deps import ApiDependencies, ClusterNow, Deps
from service.api.documents import document, instant, seconds_of
from service.api.idempotency import Answer
from service.api.limit_documents import concerns
from service.api.permissions import OPERATE, READ
from service.api.problems import Fault, Problem, ProblemType, no_leader
from service.api.routers.common import NoBody, Routes
from service.db import reads
from service.db.reservations import (
    StoredReservation,
    lock_reservations,
    open_reservation,
    open_reservations,
)
from service.domain.access import Identity
from service.domain.counts import count_of
from service.engine.events import EngineRequest, RequestKind
from service.engine.limits import LimitOwner, Scope
from service.wire.bodies import Id, ReservationBody
from service.wire.cluster import ReservationDocument, ReservationsDocument
from service.wire.jobs import AcceptedDocument

routes = Routes("cluster")

AHEAD_S_MAX = 366 * 86_400.0
"""A reservation ends within a year: a later one is a mistake in a date."""

_UNLOGGED: Final = frozenset({"id", "created_at", "active"})
"""What the line of a new reservation in the audit log says already, or what changes later."""

NumberPath = Annotated[Id, Path(description="The reservation's number.")]


@routes.read("/reservations", READ, "List reservations")
def list_reservations(dependencies: Deps, caller: Caller) -> ReservationsDocument:
    """Current and future reservations."""
    now_s = dependencies.now_s()
    with dependencies.reading() as connection:
        stored, names = open_reservations(connection, now_s), _names(connection)
    return ReservationsDocument(reservations=[_document(each, names, now_s, caller) for each in stored])


@routes.change("POST", "/reservations", OPERATE, "Reserve servers for a period", ReservationDocument, status=201)
def reserve(dependencies: Deps, change: Change, caller: Caller, body: ReservationBody) -> Response:
    """Before the start, only jobs whose p90 or walltime ends by then start there. 409 if a server is already reserved."""
    starts_at_s, ends_at_s = _times(body, dependencies.now_s())
    now = _cluster_now(dependencies) if body.count is not None else None

    def effect(session: Session) -> Answer:
        connection, now_s = session.connection(), dependencies.now_s()
        lock_reservations(connection)
        names = _names(connection)
        taken = [
            each
            for each in open_reservations(connection, now_s)
            if each.window.starts_at_s < ends_at_s and starts_at_s < each.window.ends_at_s
        ]
        if now is None:
            servers = _named(body.servers or [], names, taken)
        else:
            servers = _freest(body.count or 0, now.usable_gpus, now.free_gpus, taken)
        window = ServerReservation(0, servers, starts_at_s, ends_at_s, body.user, body.project, body.preempt)
        request = EngineRequest(0, RequestKind.RESERVATION_MADE, now_s, window=window, note=body.reason)
        number = dependencies.store.add_request(session, request)
        stored = open_reservation(connection, number)
        assert stored is not None
        document = _document(stored, names, now_s, caller)
        detail = {key: value for key, value in document.items() if key not in _UNLOGGED and value is not None}
        return Answer(201, document, "/v1/reservations", target=f"reservation {number}", detail=detail)

    return change.ask(effect)


@routes.change("POST", "/reservations/{reservation_id}/cancel", OPERATE, "Cancel a reservation", AcceptedDocument, 404)
def cancel_reservation(dependencies: Deps, change: Change, reservation_id: NumberPath, body: NoBody = None) -> Response:
    """All jobs may use its servers from the next cycle."""

    def effect(session: Session) -> Answer:
        now_s = dependencies.now_s()
        stored = open_reservation(session.connection(), reservation_id)
        if stored is None or stored.window.ends_at_s <= now_s:
            raise Problem(ProblemType.NOT_FOUND, f"There is no current or future reservation {reservation_id}.")
        request = EngineRequest(0, RequestKind.RESERVATION_CANCELLED, now_s, reservation=reservation_id)
        return change.accept(session, request)

    return change.ask(effect)


def _cluster_now(dependencies: ApiDependencies) -> ClusterNow:
    leader = dependencies.scheduler.leader()
    if leader is None:
        raise no_leader()
    return leader.cluster()


def _times(body: ReservationBody, now_s: float) -> tuple[float, float]:
    """Seconds since the epoch. 422 for what makes no sense."""
    faults: list[Fault] = []
    times: dict[str, float] = {}
    for key, text in (("starts_at", body.starts_at), ("ends_at", body.ends_at)):
        at_s = seconds_of(text)
        if at_s is None:
            faults.append(Fault("must be a time in ISO 8601 with a zone", pointer=f"/{key}"))
        else:
            times[key] = at_s
    if (body.servers is None) == (body.count is None):
        faults.append(Fault("exactly one of servers and count must be given", pointer="/servers"))
    if len(times) == 2:
        if times["ends_at"] <= max(times["starts_at"], now_s):
            faults.append(Fault("must be after starts_at and in the future", pointer="/ends_at"))
        elif times["ends_at"] > now_s + AHEAD_S_MAX:
            faults.append(Fault("must be at most 366 days ahead", pointer="/ends_at"))
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)
    return times["starts_at"], times["ends_at"]


def _named(
    wanted: Sequence[str], names: Mapping[ServerIndex, str], taken: Sequence[StoredReservation]
) -> tuple[ServerIndex, ...]:
    index = {name: server for server, name in names.items()}
    faults = [
        Fault(f"must be the name of a server (got {name!r})", pointer=f"/servers/{position}")
        for position, name in enumerate(wanted)
        if name not in index
    ]
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)
    servers = tuple(sorted({index[name] for name in wanted}))
    for each in taken:
        both = sorted(set(servers).intersection(each.window.servers))
        if both:
            which = ", ".join(names[server] for server in both)
            raise Problem(ProblemType.CONFLICT, f"Reservation {each.window.id} includes {which} at that time.")
    return servers


def _freest(
    count: int, usable: Sequence[int], free: Sequence[int], taken: Sequence[StoredReservation]
) -> tuple[ServerIndex, ...]:
    busy = {server for each in taken for server in each.window.servers}
    open_ones = [ServerIndex(index) for index, gpus in enumerate(usable) if gpus and ServerIndex(index) not in busy]
    if len(open_ones) < count:
        most = len(open_ones)
        found = f"Only {count_of(most, 'server')} {'is' if most == 1 else 'are'}" if most else "No server is"
        raise Problem(ProblemType.CONFLICT, f"{found} up and not reserved at that time (count is {count}).")
    open_ones.sort(key=lambda server: (-free[server], server))
    return tuple(sorted(open_ones[:count]))


def _names(connection: Connection) -> Mapping[ServerIndex, str]:
    return {ServerIndex(row.position): row.name for row in reads.servers(connection)}


def _document(
    stored: StoredReservation, names: Mapping[ServerIndex, str], now_s: float, caller: Identity
) -> ReservationDocument:
    window = stored.window
    owners = [LimitOwner(Scope.USER, window.user)] if window.user is not None else []
    owners += [LimitOwner(Scope.PROJECT, window.project)] if window.project is not None else []
    visible = all(concerns(caller, owner) for owner in owners)
    return document(
        ReservationDocument,
        window,
        servers=[names[server] for server in window.servers if server in names],
        user=window.user if visible else None,
        project=window.project if visible else None,
        reason=stored.reason if visible else "",
        created_at=instant(stored.created_at_s),
        active=window.active(now_s),
    )
