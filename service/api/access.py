"""Who asks, as routes get it: the door has found it out and left it with the request."""

from collections.abc import MutableMapping
from typing import Annotated, Any

from fastapi import Depends, Request

from service.access import Identity

_STATE = "state"
_IDENTITY = "identity"


def remember(scope: MutableMapping[str, Any], identity: Identity) -> None:
    """Leave with the request who sent it."""
    # A copy: a server may hand the same mapping to every request of a connection.
    scope[_STATE] = {**scope.get(_STATE, {}), _IDENTITY: identity}


async def _caller(request: Request) -> Identity:
    found = request.scope[_STATE][_IDENTITY]
    assert isinstance(found, Identity)
    return found


Caller = Annotated[Identity, Depends(_caller)]
"""Who sent the request. Not there on what is open to everybody or opened by an attempt's token."""
