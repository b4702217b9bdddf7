"""One POST request to a URL that a user chose: no private addresses, only the addresses that were checked, and a time limit.

This module resolves the name, checks the addresses and connects to one of them. So the name cannot resolve to another machine
between check and connection (DNS rebinding). TLS still checks the certificate of the name. Redirects are not followed, proxies
of the environment are not used, and only the status of the answer is read.

The HTTP client is imported at the first use: the start of a service does not wait for it.
"""

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

_Found = tuple[Any, ...]
"""One entry of ``socket.getaddrinfo``. Its last item starts with the address."""

_NAT64 = ip_network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}

HOST_NAME_MAX = 253
_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
"""Underscores are no part of host names on the internet, but of those that containers and private networks have."""

_NO_HOST_NAME = (
    "must name a host: parts of 1 to 63 letters, digits, '-' and '_', with a dot between them, "
    f"of at most {HOST_NAME_MAX} characters in all"
)

ADDRESSES_MAX = 4
"""Most addresses of one name that are tried."""


class PostFailed(Exception):
    """No answer was received. The message is one line and contains no text from the receiver."""


@dataclass(frozen=True, slots=True)
class PostLimits:
    """``timeout_s`` covers name resolution, connection, TLS and answer together."""

    timeout_s: float
    allow_private: bool


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address, and each IPv4 address that it embeds, is on the public internet and not in a private network."""
    if isinstance(address, IPv6Address):
        meant = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
        if meant is not None:
            return is_public(meant)
        tunnelled = [address.sixtofour, *(address.teredo or ())]
        if any(part is not None and not is_public(part) for part in tunnelled):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def refusal_of(url: str, *, allow_private: bool) -> str | None:
    """Why a POST to the URL is refused, judged by the URL alone; None if it is allowed. Names are checked when resolved."""
    import httpx

    try:
        parsed = httpx.URL(url)
        host, port = parsed.host, parsed.port
    except (httpx.InvalidURL, ValueError):
        return "is not a URL"
    if port is not None and not 1 <= port <= 65_535:
        return "must have a port from 1 to 65535"
    if parsed.scheme not in _PORTS or not host:
        return "must begin with https:// or http:// and name a host"
    if parsed.userinfo or parsed.fragment:
        return "must have neither a password nor a fragment"
    try:
        address = ip_address(host)
    except ValueError:
        # The addresses of a name are checked when it is resolved.
        return None if _is_host_name(parsed.raw_host.decode("ascii")) else _NO_HOST_NAME
    return (
        None
        if allow_private or is_public(address)
        else "must not be a private address (setting webhook_private_addresses)"
    )


def _is_host_name(host: str) -> bool:
    return _HOST_NAME.fullmatch(host) is not None and len(host.removesuffix(".")) <= HOST_NAME_MAX


async def post(url: str, body: bytes, headers: Mapping[str, str], limits: PostLimits, tls: ssl.SSLContext) -> int:
    """Send the request and return the status of the answer. Raises :class:`PostFailed`."""
    import httpx

    parsed = httpx.URL(url)
    host = parsed.raw_host.decode("ascii")
    sent = {**headers, "Host": parsed.netloc.decode("ascii"), "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(limits.timeout_s):
            addresses = await _resolve(host, parsed.port or _PORTS[parsed.scheme], limits.allow_private)
            # Some addresses of a host may be unreachable, so each gets an equal share of the time to connect.
            timeout = httpx.Timeout(limits.timeout_s, connect=limits.timeout_s / len(addresses))
            async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=timeout) as client:
                for address in addresses[:-1]:
                    # Nothing was sent if the connection failed, so the next address can be tried.
                    with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                        return await _status(client, parsed.copy_with(host=address), host, body, sent)
                return await _status(client, parsed.copy_with(host=addresses[-1]), host, body, sent)
    except TimeoutError:
        raise PostFailed(f"no answer within {limits.timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PostFailed(_KINDS.get(type(error).__name__, "the connection failed")) from error


async def _status(
    client: "httpx.AsyncClient", url: "httpx.URL", host: str, body: bytes, headers: Mapping[str, str]
) -> int:
    extensions = {"sni_hostname": host}
    async with client.stream("POST", url, content=body, headers=headers, extensions=extensions) as answer:
        return answer.status_code


_KINDS: Mapping[str, str] = {
    "ConnectError": "cannot connect",
    "ConnectTimeout": "cannot connect in time",
    "ReadTimeout": "no answer in time",
    "RemoteProtocolError": "the answer is not HTTP",
}
"""What is said of the client's exceptions, by their names."""


async def _resolve(host: str, port: int, allow_private: bool) -> list[str]:
    """The addresses to connect to, in the resolver's order. Raises PostFailed if one of them is private."""
    try:
        found = await _look_up(host, port)
    except (OSError, UnicodeError):
        raise PostFailed("the host name cannot be resolved") from None
    addresses = dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    if not addresses:
        raise PostFailed("the host name has no address")
    if not allow_private and not all(is_public(address) for address in addresses):
        raise PostFailed("the host's address is private (setting webhook_private_addresses)")
    return [str(address) for address in addresses][:ADDRESSES_MAX]


async def _look_up(host: str, port: int) -> list[_Found]:
    """Resolve in a daemon thread. A resolver may block for minutes, and asyncio waits for the threads of its own pool."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[_Found]] = loop.create_future()

    def ask() -> None:
        answer: list[_Found] = []
        failure: Exception | None = None
        try:
            answer = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(tell, answer, failure)

    def tell(answer: list[_Found], failure: Exception | None) -> None:
        if found.done():
            return
        if failure is None:
            found.set_result(answer)
        else:
            found.set_exception(failure)

    threading.Thread(target=ask, name="resolving", daemon=True).start()
    return await found
