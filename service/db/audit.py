"""The log of changes: appended to in the transaction of the change, read by pages, pruned by age, never edited."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, select

from service.db.dialects import insert_rows
from service.db.tables import AUDIT_LOG
from service.domain.access import LOCAL, Identity


class Outcome(Enum):
    """What became of a change."""

    DONE = "done"
    """It stands in the database: this line was written with it, or not at all."""
    ASKED = "asked"
    """It is about to be tried outside the database; a line of the same request follows, unless the service died."""
    REFUSED = "refused"
    """The caller may not do it, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks for a change, and from where. ``address`` is None for commands that work on the database itself."""

    identity: Identity
    address: str | None
    request_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What was changed: the ``action`` (method and route), its ``target`` and what tells more. Never a secret."""

    action: str
    target: str
    outcome: Outcome
    status: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What a list is narrowed to; None = everything."""

    user: str | None = None
    target: str | None = None


def record(connection: Connection, origin: Origin, entry: Entry, now_s: float) -> None:
    """Append one line."""
    record_all(connection, [(origin, entry)], now_s)


def record_all(connection: Connection, said: Sequence[tuple[Origin, Entry]], now_s: float) -> None:
    """Append lines, in their order."""
    insert_rows(connection, AUDIT_LOG, [_values(origin, entry, now_s) for origin, entry in said])


def _values(origin: Origin, entry: Entry, now_s: float) -> dict[str, Any]:
    who = origin.identity
    return {
        "at_s": now_s,
        "user": who.user,
        "role": who.role.value,
        "key_id": who.key_id,
        "address": origin.address,
        "request_id": origin.request_id,
        "action": entry.action,
        "target": entry.target,
        "outcome": entry.outcome.value,
        "status": entry.status,
        "detail": dict(entry.detail),
    }


def record_command(connection: Connection, command: str, target: str, detail: Mapping[str, Any], now_s: float) -> None:
    """Append what a command on the machine itself has changed, which no service saw."""
    origin = Origin(LOCAL, None, uuid.uuid4().hex)
    record(connection, origin, Entry(command, target, Outcome.DONE, 0, detail), now_s)


def lines(connection: Connection, wanted: AuditFilter, before_id: int | None, limit: int) -> Sequence[Row[Any]]:
    """Newest first."""
    statement = select(AUDIT_LOG).order_by(AUDIT_LOG.c.id.desc()).limit(limit)
    if wanted.user is not None:
        statement = statement.where(AUDIT_LOG.c.user == wanted.user)
    if wanted.target is not None:
        statement = statement.where(AUDIT_LOG.c.target == wanted.target)
    if before_id is not None:
        statement = statement.where(AUDIT_LOG.c.id < before_id)
    return connection.execute(statement).all()
