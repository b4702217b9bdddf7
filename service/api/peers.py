"""Requests that one service sends to another in a caller's name, signed with a secret in the database that they share.

Readers of the database are trusted anyway, so a signature shows that a request comes from one of its services, and in whose name.
It is valid for one method and target, and for a limited time. The body is not signed: the connection between services is trusted
like the connection from a client.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Scope

from service.domain.access import Identity, Role

PEER_HEADER: Final = "X-Sooner-Peer"
"""``TIME IDENTITY SIGNATURE``. A request with this header is never forwarded again."""

CLIENT_HEADER: Final = "X-Sooner-Client"
"""The address of the client; trusted only from another service."""

VALID_S: Final = 600.0
"""Validity of a signature, in both directions: clocks of machines differ."""


class Peers:
    """Signs requests to other services and verifies theirs. ``secret`` is called at the first use."""

    def __init__(self, secret: Callable[[], str], now_s: Callable[[], float] = time.time) -> None:
        self._ask = secret
        self._now_s = now_s
        self._secret: bytes | None = None

    def sign(self, method: str, target: str, caller: Identity) -> str:
        """The header's value for a request in the name of ``caller``. ``target``: path and query. May read the database."""
        identity = base64.urlsafe_b64encode(json.dumps(_document(caller)).encode()).decode()
        at_s = f"{self._now_s():.0f}"
        return f"{at_s} {identity} {self._mac(at_s, method, target, identity)}"

    def caller(self, scope: Scope) -> Identity | None:
        """The caller for whom another service sends this; None without a valid signature. May read the database."""
        values = Headers(scope=scope).getlist(PEER_HEADER)
        if len(values) != 1 or len(parts := values[0].split(" ")) != 3:
            return None
        at_s, identity, mac = parts
        expected = self._mac(at_s, scope["method"], target_of(scope), identity)
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            return None
        # The signature is valid, so the parts can be parsed.
        if abs(self._now_s() - float(at_s)) > VALID_S:
            return None
        return _identity(json.loads(base64.urlsafe_b64decode(identity)))

    def pseudonyms(self) -> Callable[[str], str]:
        """Makes names that stand for others: equal in all services of the database, and no way back. May read the database."""
        key = hashlib.sha256(b"sooner-pseudonym/1\n" + self._shared()).digest()
        return lambda name: hashlib.blake2b(name.encode(), key=key, digest_size=9).hexdigest()

    def _mac(self, at_s: str, method: str, target: str, identity: str) -> str:
        message = "\n".join(("sooner-peer/1", at_s, method, target, identity))
        return hmac.new(self._shared(), message.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def _shared(self) -> bytes:
        if self._secret is None:
            self._secret = self._ask().encode()
        return self._secret


def is_from_peer(scope: Scope) -> bool:
    """Whether a request claims to come from another service."""
    return PEER_HEADER in Headers(scope=scope)


def target_of(scope: Scope) -> str:
    """Path and query as they were sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw.partition(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")


def _document(caller: Identity) -> dict[str, Any]:
    projects = None if caller.projects is None else sorted(caller.projects)
    return {"user": caller.user, "role": caller.role.value, "projects": projects, "key_id": caller.key_id}


def _identity(identity: Mapping[str, Any]) -> Identity:
    projects = None if identity["projects"] is None else frozenset(identity["projects"])
    return Identity(identity["user"], Role(identity["role"]), projects, identity["key_id"])
