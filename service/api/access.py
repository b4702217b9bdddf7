"""The caller of a request and its origin: the request guard stores them with the request, and routes read them."""

import re
import uuid
from collections.abc import MutableMapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from starlette.datastructures import Headers

from service.db.audit import Origin
from service.domain.access import Identity

REQUEST_ID_HEADER: Final = "X-Request-Id"
"""The id of a request in the answer and in the audit log; a client may choose it."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_STATE: Final = "state"
_IDENTITY: Final = "identity"
_ORIGIN: Final = "origin"
_FORWARDED: Final = "forwarded"
_ONE_CUSTOMER_BITS: Final = 64
"""IPv6 prefix of one customer of a provider, who can use any address below it."""


def remember(scope: MutableMapping[str, Any], identity: Identity, request_id: str, address: str | None = None) -> None:
    """Store the caller with the request; ``address`` if it is not that of the connection."""
    client = scope.get("client")
    origin = Origin(identity, address or (client[0] if client else None), request_id)
    # A copy: a server may hand the same mapping to every request of a connection.
    scope[_STATE] = {**scope.get(_STATE, {}), _IDENTITY: identity, _ORIGIN: origin}


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The client's id of the request, if it is a plain word; else a new one."""
    given = Headers(raw=scope["headers"]).get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def address_of(scope: MutableMapping[str, Any]) -> str:
    """The address under which wrong tokens are counted."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, _ONE_CUSTOMER_BITS), strict=False))
    return host


def caller_of(request: Request) -> Identity:
    """The caller."""
    found = request.scope[_STATE][_IDENTITY]
    assert isinstance(found, Identity)
    return found


async def _caller(request: Request) -> Identity:
    return caller_of(request)


Caller = Annotated[Identity, Depends(_caller)]
"""The caller. Not available on open routes and on those opened by an attempt's token."""


def origin_of(request: Request) -> Origin | None:
    """The caller and the address; None on open routes and on those opened by an attempt's token."""
    found = request.scope.get(_STATE, {}).get(_ORIGIN)
    assert found is None or isinstance(found, Origin)
    return found


def forwarded(request: Request) -> None:
    """Note that another service answers the request, and records it in the audit log."""
    request.scope[_STATE][_FORWARDED] = True


def is_forwarded(request: Request) -> bool:
    """Whether another service answered the request."""
    return bool(request.scope.get(_STATE, {}).get(_FORWARDED))
