"""What one service asks of another in a caller's name: signed with a secret that stands in the database they share.

Whoever can read the database is trusted anyway, so a signature shows that a request comes from one of its services, and who
sent it there. It holds for one method and target, and for a while; the body is not signed, because the way between services
is as trusted as the way from a client.
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
"""``TIME IDENTITY SIGNATURE``; its presence also says that the request must not be sent on."""

CLIENT_HEADER: Final = "X-Sooner-Client"
"""The address of whom the request comes from; believed of another service alone."""

VALID_S: Final = 600.0
"""A signature is good for so long, either way: machines' clocks differ."""


class Peers:
    """Signs requests to other services and knows theirs. ``secret`` is asked for at the first use, and kept."""

    def __init__(self, secret: Callable[[], str], now_s: Callable[[], float] = time.time) -> None:
        self._ask = secret
        self._now_s = now_s
        self._secret: bytes | None = None

    def sign(self, method: str, target: str, caller: Identity) -> str:
        """The header's value for a request in the name of ``caller``. ``target``: path and query. May ask the database."""
        said = base64.urlsafe_b64encode(json.dumps(_document(caller)).encode()).decode()
        at_s = f"{self._now_s():.0f}"
        return f"{at_s} {said} {self._mac(at_s, method, target, said)}"

    def caller(self, scope: Scope) -> Identity | None:
        """In whose name another service sends this; None for everybody else's requests. May ask the database."""
        values = Headers(scope=scope).getlist(PEER_HEADER)
        if len(values) != 1 or len(parts := values[0].split(" ")) != 3:
            return None
        at_s, said, mac = parts
        expected = self._mac(at_s, scope["method"], target_of(scope), said)
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            return None
        # What we signed ourselves can be read.
        if abs(self._now_s() - float(at_s)) > VALID_S:
            return None
        return _identity(json.loads(base64.urlsafe_b64decode(said)))

    def _mac(self, at_s: str, method: str, target: str, said: str) -> str:
        if self._secret is None:
            self._secret = self._ask().encode()
        message = "\n".join(("sooner-peer/1", at_s, method, target, said))
        return hmac.new(self._secret, message.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def is_from_peer(scope: Scope) -> bool:
    """Whether a request says that another service sends it."""
    return PEER_HEADER in Headers(scope=scope)


def target_of(scope: Scope) -> str:
    """Path and query as they were sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw.partition(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")


def _document(caller: Identity) -> dict[str, Any]:
    projects = None if caller.projects is None else sorted(caller.projects)
    return {"user": caller.user, "role": caller.role.value, "projects": projects, "key_id": caller.key_id}


def _identity(said: Mapping[str, Any]) -> Identity:
    projects = None if said["projects"] is None else frozenset(said["projects"])
    return Identity(said["user"], Role(said["role"]), projects, said["key_id"])
