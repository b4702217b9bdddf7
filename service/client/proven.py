"""Connections over which the token of a data folder may be sent: their other end has proved that it has the token, too.

Each new connection is asked before any request goes over it. A connection is what is trusted, not an address: when a service
ends, another program can take its port between two requests.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import h11
import httpcore
import httpx

from service.client.transport import ClientError
from service.domain.proof import PROOF_PATH, proof

PROOF_S: Final = 10.0
"""Time limit of each read of the proof."""

_ANSWER_BYTES_MAX: Final = 4096


class NotProven(ClientError):
    """What listens at ``url`` is not the service of the data folder. Nothing was sent to it but a random number."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"what listens at {url} does not prove that it is the service of this data folder ({why}); the token was not sent; "
            "to send it all the same, set SOONER_TOKEN to it"
        )


def asks_for_proof(token: str) -> Callable[[httpx.Request], None]:
    """An event hook for requests of httpx: no request goes over a connection whose other end has not proved itself."""

    def hook(request: httpx.Request) -> None:
        ready = "connection.start_tls.complete" if request.url.scheme == "https" else "connection.connect_tcp.complete"

        def connected(event: str, info: Mapping[str, Any]) -> None:
            if event == ready:
                _demand(info["return_value"], request.url, token)

        request.extensions = {**request.extensions, "trace": connected}

    return hook


def _demand(stream: httpcore.NetworkStream, url: httpx.URL, token: str) -> None:
    """Raise :class:`NotProven`, with the connection closed, unless its other end has the token.

    A connection that breaks or stays silent proves neither: its error is that of any request.
    """
    nonce = secrets.token_hex(32)
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    try:
        given = _ask(stream, url, nonce)
        if not hmac.compare_digest(given.encode(), proof(token, port, nonce).encode()):
            raise ValueError("its proof is wrong: another data folder, or the port is not its own")
    except (httpcore.NetworkError, httpcore.TimeoutException):
        stream.close()
        raise
    except (ValueError, h11.ProtocolError) as error:
        stream.close()
        why = str(error) if isinstance(error, ValueError) else "no proof came"
        if url.scheme == "http" and not isinstance(error, ValueError):
            why += "; if it speaks TLS, its address begins with https://"
        raise NotProven(f"{url.scheme}://{url.netloc.decode('ascii')}", why) from error


def _ask(stream: httpcore.NetworkStream, url: httpx.URL, nonce: str) -> str:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES_MAX)
    request = h11.Request(
        method="GET", target=f"{PROOF_PATH}?nonce={nonce}", headers=[("Host", url.netloc.decode("ascii"))]
    )
    stream.write(connection.send(request) + connection.send(h11.EndOfMessage()), timeout=PROOF_S)
    body, status = b"", 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(stream.read(_ANSWER_BYTES_MAX, timeout=PROOF_S))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _ANSWER_BYTES_MAX:
                raise ValueError("its answer is too long")
        elif isinstance(event, h11.ConnectionClosed):
            break
    if status != 200:
        raise ValueError(f"its answer has the status {status}")
    try:
        return str(json.loads(body)["proof"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("its answer is no proof") from None
