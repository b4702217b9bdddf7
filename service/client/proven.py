"""Connections over which the token of a data folder may be sent: their other end has proved that it has the token, too.

Each new connection is asked before any request goes over it. A connection is what is trusted, not an address: when a service
ends, another program can take its port between two requests.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Final

import h11
import httpcore
import httpx

from service.client.errors import ClientError
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
    """An event hook of :class:`httpx.Client`: no request goes over a connection whose other end has not proved itself.

    The request fails with :class:`NotProven`, and the connection is closed. A connection that breaks or stays silent proves
    neither: its error is that of any request.
    """

    def hook(request: httpx.Request) -> None:
        def connected(event: str, info: Mapping[str, Any]) -> None:
            if event == _ready(request):
                stream: httpcore.NetworkStream = info["return_value"]
                asked, data = _Proof(request.url, token), b""
                try:
                    while (question := asked.after(data)) is not None:
                        if question:
                            stream.write(question, timeout=PROOF_S)
                        data = stream.read(_ANSWER_BYTES_MAX, timeout=PROOF_S)
                except BaseException:
                    stream.close()
                    raise

        request.extensions = {**request.extensions, "trace": connected}

    return hook


def asks_for_proof_async(token: str) -> Callable[[httpx.Request], Coroutine[Any, Any, None]]:
    """The same for :class:`httpx.AsyncClient`."""

    async def hook(request: httpx.Request) -> None:
        async def connected(event: str, info: Mapping[str, Any]) -> None:
            if event == _ready(request):
                stream: httpcore.AsyncNetworkStream = info["return_value"]
                asked, data = _Proof(request.url, token), b""
                try:
                    while (question := asked.after(data)) is not None:
                        if question:
                            await stream.write(question, timeout=PROOF_S)
                        data = await stream.read(_ANSWER_BYTES_MAX, timeout=PROOF_S)
                except BaseException:
                    await stream.aclose()
                    raise

        request.extensions = {**request.extensions, "trace": connected}

    return hook


def _ready(request: httpx.Request) -> str:
    """The event after which a new connection can be written to."""
    return "connection.start_tls.complete" if request.url.scheme == "https" else "connection.connect_tcp.complete"


class _Proof:
    """The question and the answer of one connection, without input or output."""

    def __init__(self, url: httpx.URL, token: str) -> None:
        self._url = url
        self._token = token
        self._nonce = secrets.token_hex(32)
        self._steps = self._ask()
        self._asked = False

    def after(self, data: bytes) -> bytes | None:
        """What to write before the next read, after ``data`` was read; None once the proof is right. Raises NotProven."""
        try:
            if self._asked:
                return self._steps.send(data)
            self._asked = True
            return next(self._steps)
        except StopIteration as end:
            why = (
                ""
                if self._is_right(end.value)
                else "its proof is wrong: another data folder, or the port is not its own"
            )
        except ValueError as error:
            why = str(error)
        except h11.ProtocolError:
            why = "no proof came"
            if self._url.scheme == "http":
                why += "; if it speaks TLS, its address begins with https://"
        if not why:
            return None
        raise NotProven(f"{self._url.scheme}://{self._url.netloc.decode('ascii')}", why)

    def _is_right(self, given: str) -> bool:
        port = self._url.port or {"http": 80, "https": 443}[self._url.scheme]
        return hmac.compare_digest(given.encode(), proof(self._token, port, self._nonce).encode())

    def _ask(self) -> Generator[bytes, bytes, str]:
        """Yields what to write before a read, and is sent what was read; its result is the proof. Raises ValueError."""
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES_MAX)
        request = h11.Request(
            method="GET",
            target=f"{PROOF_PATH}?nonce={self._nonce}",
            headers=[("Host", self._url.netloc.decode("ascii"))],
        )
        question = connection.send(request) + connection.send(h11.EndOfMessage())
        body, status = b"", 0
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data((yield question))
                question = b""
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
