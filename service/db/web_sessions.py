"""Sessions of browsers in the database. Every function works in the caller's transaction.

A session lasts hours and is a cookie of one browser. A code lasts a minute and opens one session: it may stand in a URL, where a
key must not. Only the SHA-256 of either is stored; both have 256 random bits.
"""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from service.db.tables import WEB_SESSIONS

OPEN_MAX: Final = 200
"""Open sessions of one key or of the local token, and codes: a program that signs in again and again fills no table."""


class Kind(StrEnum):
    """What a row opens."""

    SESSION = "session"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class WebSession:
    """Whose it is (``key_id``; None: the local token's), and when it ends."""

    key_id: str | None
    expires_at_s: float


def open_session(connection: Connection, kind: Kind, key_id: str | None, now_s: float, expires_at_s: float) -> str:
    """Store a new one; returns its token. Above :data:`OPEN_MAX` of the key the oldest ends."""
    token = secrets.token_urlsafe(32)
    rows = WEB_SESSIONS.c
    mine = select(rows.token_sha256).where(rows.kind == kind.value, rows.key_id == key_id)
    surplus = mine.order_by(rows.created_at_s.desc(), rows.token_sha256).offset(OPEN_MAX - 1)
    # The table is small, and people sign in seldom: it needs no index of keys.
    connection.execute(delete(WEB_SESSIONS).where(rows.token_sha256.in_(surplus)))
    connection.execute(
        insert(WEB_SESSIONS).values(
            token_sha256=_digest(token), kind=kind.value, key_id=key_id, created_at_s=now_s, expires_at_s=expires_at_s
        )
    )
    return token


def find_session(connection: Connection, kind: Kind, token: str, now_s: float) -> WebSession | None:
    """None if there is none, or if it has ended."""
    columns = select(WEB_SESSIONS.c.key_id, WEB_SESSIONS.c.expires_at_s)
    named = WEB_SESSIONS.c.token_sha256 == _digest(token)
    row = connection.execute(columns.where(named, WEB_SESSIONS.c.kind == kind.value)).one_or_none()
    return None if row is None or now_s >= row.expires_at_s else WebSession(row.key_id, row.expires_at_s)


def close_session(connection: Connection, token: str) -> bool:
    """Delete it; False if it was gone. Of two callers at once one gets True."""
    return connection.execute(delete(WEB_SESSIONS).where(WEB_SESSIONS.c.token_sha256 == _digest(token))).rowcount == 1


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
