"""The audit log: appended to in the transaction of the change, read by pages, pruned by age, never edited."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, select

from service.db.dialects import insert_rows
from service.db.pages import equal, page
from service.db.tables import AUDIT_LOG
from service.domain.access import LOCAL, Identity


class Outcome(Enum):
    """The outcome of a change."""

    DONE = "done"
    """The change is committed, together with this entry."""
    ASKED = "asked"
    """The change is about to be tried outside the database; another entry of the request follows unless the service ends."""
    REFUSED = "refused"
    """The caller lacks the permission, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The caller of a change. ``address`` is None for commands that work on the database itself."""

    identity: Identity
    address: str | None
    request_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A change: the ``action`` (method and route), its ``target`` and details. Never contains a secret."""

    action: str
    target: str
    outcome: Outcome
    status: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of a list; None = any."""

    user: str | None = None
    target: str | None = None


def record(connection: Connection, origin: Origin, entry: Entry, now_s: float) -> None:
    """Append one entry."""
    record_all(connection, [(origin, entry)], now_s)


def record_all(connection: Connection, entries: Sequence[tuple[Origin, Entry]], now_s: float) -> None:
    """Append entries in their order."""
    insert_rows(connection, AUDIT_LOG, [_values(origin, entry, now_s) for origin, entry in entries])


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
    """Append a change by a command that works on the database itself."""
    origin = Origin(LOCAL, None, uuid.uuid4().hex)
    record(connection, origin, Entry(command, target, Outcome.DONE, 0, detail), now_s)


def lines(connection: Connection, wanted: AuditFilter, before_id: int | None, limit: int) -> Sequence[Row[Any]]:
    """Entries, newest first."""
    matching = select(AUDIT_LOG).where(*equal(AUDIT_LOG, user=wanted.user, target=wanted.target))
    return page(connection, matching, [AUDIT_LOG.c.id], before_id, limit, descending=True)
