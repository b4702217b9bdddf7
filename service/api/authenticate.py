"""The identity behind a token: the local token, an API key or a browser's session. The latter two are looked up in the database
and cached for seconds.
"""

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from service.api.sse import STREAM_S_MAX
from service.config.settings import Settings
from service.db.access import StoredKey, stored_key, used_key
from service.db.session import Database
from service.db.web_sessions import Kind, find_session
from service.domain.access import LOCAL, Identity
from service.domain.api_key import key_id, opens

logger = logging.getLogger(__name__)

LAST_USED_PERIOD_S: Final = 60.0
"""Resolution of the last use of a key. A write for each request would be most of all writes."""

KNOWN_MAX: Final = 10_000
"""Size of the cache of keys."""

_NOBODY: Final = "0" * 64
"""Compared with if there is no such key, so that the answer takes as long."""


class _Known(NamedTuple):
    identity: Identity
    expires_at_s: float | None
    until_s: float
    """On the monotonic clock."""


class Authenticator:
    """Turns tokens into identities. One instance an application; safe to use from many threads.

    ``local_token`` is the one in the data folder. ``now_s`` is the wall clock, in which keys expire.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        local_token: str,
        now_s: Callable[[], float],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._cached_s = settings.key_cached_s
        self._local_token = local_token.encode() if settings.local_token else None
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        # By digest, so that no secret stays in memory and the time of a lookup reveals none.
        self._known: dict[bytes, _Known] = {}
        # Sessions that were closed here, until no stream of theirs can be open.
        self._closed: dict[bytes, float] = {}
        self._generation = self._rights = 0
        self._lock = threading.Lock()

    def known(self, token: str) -> Identity | None:
        """The identity, if it is known without the database."""
        if self._is_local(token):
            return LOCAL
        return self._cached(_mark(token))

    def known_session(self, token: str) -> Identity | None:
        """The identity of a session, if it is known without the database."""
        return self._cached(_session_mark(token))

    def was_good(self, token: str) -> bool:
        """Whether the token was valid here before: then it is no guess."""
        return _mark(token) in self._known

    def look_up(self, token: str) -> Identity | None:
        """The identity, by the database; None for a wrong, expired or revoked token. Blocks."""
        name = key_id(token)
        if name is None:
            return None
        with self._lock:
            generation = self._generation
        with self._database.reading() as session:
            stored = stored_key(session.connection(), name)
        right = opens(token, stored.secret_sha256 if stored is not None else _NOBODY)
        now_s = self._now_s()
        if stored is None or not right or not stored.usable or _over(stored.expires_at_s, now_s):
            with self._lock:
                self._known.pop(_mark(token), None)
            return None
        self._remember(_mark(token), stored.identity, stored.expires_at_s, generation)
        self._used(stored, now_s)
        return stored.identity

    def look_up_session(self, token: str) -> Identity | None:
        """The identity of a session, by the database; None for one that has ended, and if its key opens nothing. Blocks."""
        with self._lock:
            generation = self._generation
        found = self._stored(Kind.SESSION, token)
        if found is None:
            return None
        identity, expires_at_s = found
        self._remember(_session_mark(token), identity, expires_at_s, generation)
        return identity

    def look_up_code(self, token: str) -> Identity | None:
        """The identity that a code signs in, by the database; None for one that has expired or was used. Blocks."""
        found = self._stored(Kind.CODE, token)
        return None if found is None else found[0]

    def _stored(self, kind: Kind, token: str) -> tuple[Identity, float] | None:
        now_s = self._now_s()
        with self._database.reading() as session:
            connection = session.connection()
            found = find_session(connection, kind, token, now_s)
            if found is None:
                return None
            if found.key_id is None:
                return None if self._local_token is None else (LOCAL, found.expires_at_s)
            stored = stored_key(connection, found.key_id)
        if stored is None or not stored.usable or _over(stored.expires_at_s, now_s):
            return None
        return stored.identity, min(found.expires_at_s, stored.expires_at_s or found.expires_at_s)

    def watch(self, session: str | None) -> Callable[[], bool]:
        """Says whether rights have changed since this call, or this session was closed: open streams end then."""
        rights, mark = self._rights, None if session is None else _session_mark(session)
        return lambda: self._rights != rights or mark in self._closed

    def forget_session(self, session: str) -> None:
        """The session was closed: it opens nothing here any more. Others go on."""
        mark, now_s = _session_mark(session), self._monotonic_s()
        with self._lock:
            # A look-up that is under way may have found it open.
            self._generation += 1
            self._known.pop(mark, None)
            self._closed = {each: until_s for each, until_s in self._closed.items() if until_s > now_s}
            self._closed[mark] = now_s + STREAM_S_MAX

    def forget(self) -> None:
        """Empty the cache, because rights have changed. Lookups under way are not cached either."""
        with self._lock:
            self._generation += 1
            self._rights += 1
            self._known = {mark: known._replace(until_s=float("-inf")) for mark, known in self._known.items()}

    def _cached(self, mark: bytes) -> Identity | None:
        found = self._known.get(mark)
        if found is None or self._monotonic_s() >= found.until_s or _over(found.expires_at_s, self._now_s()):
            return None
        return found.identity

    def _remember(self, mark: bytes, identity: Identity, expires_at_s: float | None, generation: int) -> None:
        until_s = self._monotonic_s() + self._cached_s
        with self._lock:
            if generation != self._generation:
                return
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[mark] = _Known(identity, expires_at_s, until_s)

    def _used(self, stored: StoredKey, now_s: float) -> None:
        name = stored.identity.key_id
        if name is None or (stored.last_used_at_s is not None and now_s - stored.last_used_at_s < LAST_USED_PERIOD_S):
            return
        try:
            with self._database.writing() as session:
                used_key(session.connection(), name, now_s)
        except DBAPIError:
            # No reason to fail the request.
            logger.warning("the last use of key %s was not stored", name)

    def _is_local(self, token: str) -> bool:
        given = token.encode("utf-8", "surrogateescape")
        return self._local_token is not None and hmac.compare_digest(given, self._local_token)


def _mark(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _session_mark(token: str) -> bytes:
    # Longer than the mark of any key: a session's token is no bearer token.
    return b"session " + _mark(token)


def _over(expires_at_s: float | None, now_s: float) -> bool:
    return expires_at_s is not None and now_s >= expires_at_s
