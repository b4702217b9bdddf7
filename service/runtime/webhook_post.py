"""One POST to an address that somebody else chose: never to this network, never elsewhere than resolved, never for long.

The name is resolved here, the answer is checked, and the connection goes to that very address, so a name cannot mean another
machine a moment later (DNS rebinding). TLS still checks the certificate of the name. Redirects are not followed, proxies of
the environment are not used, and of the answer only the status is read.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import httpx

_Found = tuple[Any, ...]
"""What a resolver says of one address; its last part is the address itself."""

_NAT64 = ip_network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}

ADDRESSES_MAX = 4
"""Addresses of one name that are tried."""


class PostFailed(Exception):
    """No answer came; one line without anything that the other side has written."""


@dataclass(frozen=True, slots=True)
class PostLimits:
    """``timeout_s`` for everything together: name, connection, TLS, answer."""

    timeout_s: float
    allow_private: bool


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address belongs to the internet at large, and to no inner network, also not one that it embeds."""
    if isinstance(address, IPv6Address):
        meant = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
        if meant is not None:
            return is_public(meant)
        tunnelled = [address.sixtofour, *(address.teredo or ())]
        if any(part is not None and not is_public(part) for part in tunnelled):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def refusal_of(url: str, *, allow_private: bool) -> str | None:
    """Why a URL can never be posted to, as far as it says so itself; None if it may be."""
    try:
        parsed = httpx.URL(url)
        host, port = parsed.host, parsed.port
    except (httpx.InvalidURL, ValueError):
        return "Not a URL"
    if port is not None and not 1 <= port <= 65_535:
        return "The port must be from 1 to 65535"
    if parsed.scheme not in _PORTS or not host:
        return "Must begin with https:// or http:// and name a host"
    if parsed.userinfo or parsed.fragment:
        return "May hold neither a password nor a fragment"
    try:
        address = ip_address(host)
    except ValueError:
        return None  # a name: what it means is known when it is resolved
    return None if allow_private or is_public(address) else "Must not be an address of an inner network"


async def post(url: str, body: bytes, headers: Mapping[str, str], limits: PostLimits, tls: ssl.SSLContext) -> int:
    """The status of the answer. Raises :class:`PostFailed`."""
    parsed = httpx.URL(url)
    host = parsed.raw_host.decode("ascii")
    sent = {**headers, "Host": parsed.netloc.decode("ascii"), "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(limits.timeout_s):
            addresses = await _resolve(host, parsed.port or _PORTS[parsed.scheme], limits.allow_private)
            # A host may be reachable by some of its addresses alone; each gets its share of the time to connect.
            timeout = httpx.Timeout(limits.timeout_s, connect=limits.timeout_s / len(addresses))
            async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=timeout) as client:
                for address in addresses[:-1]:
                    # Whoever could not be connected to was sent nothing.
                    with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                        return await _status(client, parsed.copy_with(host=address), host, body, sent)
                return await _status(client, parsed.copy_with(host=addresses[-1]), host, body, sent)
    except TimeoutError:
        raise PostFailed(f"no answer within {limits.timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise PostFailed(_KINDS.get(type(error), "the connection failed")) from error


async def _status(client: httpx.AsyncClient, url: httpx.URL, host: str, body: bytes, headers: Mapping[str, str]) -> int:
    extensions = {"sni_hostname": host}
    async with client.stream("POST", url, content=body, headers=headers, extensions=extensions) as answer:
        return answer.status_code


_KINDS: Mapping[type[Exception], str] = {
    httpx.ConnectError: "cannot connect",
    httpx.ConnectTimeout: "cannot connect in time",
    httpx.ReadTimeout: "no answer in time",
    httpx.RemoteProtocolError: "the answer is not HTTP",
}


async def _resolve(host: str, port: int, allow_private: bool) -> list[str]:
    """The addresses to connect to, in their order. One inner address among several is enough to refuse the name."""
    try:
        found = await _look_up(host, port)
    except (OSError, UnicodeError):
        raise PostFailed("the host's name cannot be resolved") from None
    addresses = dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    if not addresses:
        raise PostFailed("the host's name has no address")
    if not allow_private and not all(is_public(address) for address in addresses):
        raise PostFailed("the host is in an inner network (setting webhook_private_addresses)")
    return [str(address) for address in addresses][:ADDRESSES_MAX]


async def _look_up(host: str, port: int) -> list[_Found]:
    """In a thread that nobody waits for: a resolver may be silent for minutes, and asyncio waits for threads of its own."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[_Found]] = loop.create_future()

    def ask() -> None:
        answer: list[_Found] = []
        failure: Exception | None = None
        try:
            answer = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the pass is over
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
