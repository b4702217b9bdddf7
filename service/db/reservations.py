"""Reservations of servers in the database: those of the engine, and those that the API creates, lists and cancels."""

from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select, update

from policies.model.server_reservation import ServerReservation, server_reservations_after
from service.db.codec import decode, encode
from service.db.dialects import take_locks
from service.db.tables import RESERVATIONS
from service.engine.events import EngineRequest

RESERVATIONS_LOCK = "reservations"
"""The lock for creating reservations, which must not overlap."""


class StoredReservation(NamedTuple):
    """One reservation with the details that users see."""

    window: ServerReservation
    reason: str
    created_at_s: float


def open_windows(connection: Connection, after_s: float) -> tuple[ServerReservation, ...]:
    """The reservations that the engine needs: those neither cancelled nor over by then."""
    return server_reservations_after([each.window for each in open_reservations(connection, after_s)], after_s)


def open_reservations(connection: Connection, after_s: float) -> list[StoredReservation]:
    """Reservations that are neither cancelled nor over by then, in the order of their start."""
    statement = select(RESERVATIONS).where(RESERVATIONS.c.cancelled_at_s.is_(None), RESERVATIONS.c.ends_at_s > after_s)
    return [
        _stored(row) for row in connection.execute(statement.order_by(RESERVATIONS.c.starts_at_s, RESERVATIONS.c.id))
    ]


def open_reservation(connection: Connection, number: int) -> StoredReservation | None:
    """A reservation that is not cancelled, whether over or not; None if there is none. Locks it."""
    row = connection.execute(
        select(RESERVATIONS)
        .where(RESERVATIONS.c.id == number, RESERVATIONS.c.cancelled_at_s.is_(None))
        .with_for_update()
    ).one_or_none()
    return None if row is None else _stored(row)


def lock_reservations(connection: Connection) -> None:
    """Lock the creation of reservations until the transaction ends."""
    take_locks(connection, RESERVATIONS_LOCK)


def keep_reservation(connection: Connection, request: EngineRequest, number: int) -> None:
    """Store or cancel a reservation as an accepted request says; ``number`` is the id of the request."""
    if request.window is not None:
        window = replace(request.window, id=number)
        row: dict[str, Any] = {
            "id": number,
            "window": encode(window),
            "starts_at_s": window.starts_at_s,
            "ends_at_s": window.ends_at_s,
            "reason": request.note,
            "created_at_s": request.at_s,
        }
        connection.execute(insert(RESERVATIONS).values(**row))
    elif request.reservation is not None:
        connection.execute(
            update(RESERVATIONS).where(RESERVATIONS.c.id == request.reservation).values(cancelled_at_s=request.at_s)
        )


def _stored(row: Any) -> StoredReservation:
    return StoredReservation(decode(ServerReservation, row.window), row.reason, row.created_at_s)
