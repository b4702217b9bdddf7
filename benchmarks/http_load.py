"""Sends the same request again and again from some clients at once, and costs little itself.

One thread of a process of its own, a plain socket that stays open for each client, requests whose bytes are made before, and
of an answer only the status and the length are read. A client sends its next request when it has the answer to the one before.
"""

import multiprocessing
import re
import selectors
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_READ_BYTES = 256 * 1024
_TIMEOUT_S = 600.0


class Request(NamedTuple):
    """What is sent. ``keyed``: with a new ``Idempotency-Key`` each time. A client pauses for ``pause_s`` after an answer."""

    host: str
    port: int
    token: str
    method: str
    path: str
    body: bytes = b""
    keyed: bool = False
    pause_s: float = 0.0


class Outcome(NamedTuple):
    """What the requests took. ``cpu_s``: of the process that sent them."""

    requests: int
    wall_s: float
    latencies_s: Sequence[float]
    statuses: Mapping[int, int]
    cpu_s: float


def start(request: Request, clients: int, seconds: float) -> Callable[[], Outcome]:
    """Start the clients; the returned function waits for what they have measured."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.Process(target=_work, args=(theirs, request, clients, seconds), daemon=True)
    worker.start()

    def outcome() -> Outcome:
        found: Outcome = ours.recv()
        worker.join()
        return found

    return outcome


class _Client:
    """A connection and the request under way on it."""

    def __init__(self, request: Request) -> None:
        head = f"{request.method} {request.path} HTTP/1.1\r\nHost: {request.host}:{request.port}\r\n"
        head += f"Authorization: Bearer {request.token}\r\n"
        if request.body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n"
        self._head, self._rest = head.encode(), b"\r\n" + request.body
        self._keyed = request.keyed
        self.socket = socket.create_connection((request.host, request.port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = bytearray()
        self._length = 0
        self.sent_s = 0.0

    def send(self) -> None:
        """Send the next request."""
        key = b"Idempotency-Key: %s\r\n" % uuid.uuid4().hex.encode() if self._keyed else b""
        self.sent_s = time.monotonic()
        self.socket.sendall(self._head + key + self._rest)

    def receive(self) -> int | None:
        """Read a part of the answer; its status once it is complete."""
        part = self.socket.recv(_READ_BYTES)
        if not part:
            raise ConnectionError("the service has closed the connection")
        self._answer += part
        if not self._length:
            end = self._answer.find(b"\r\n\r\n")
            if end < 0:
                return None
            declared = _LENGTH.search(self._answer, 0, end + 2)
            self._length = end + 4 + (int(declared[1]) if declared is not None else 0)
        if len(self._answer) < self._length:
            return None
        status = int(self._answer[9:12])
        self._answer.clear()
        self._length = 0
        return status


def _work(result: Any, request: Request, clients: int, seconds: float) -> None:
    latencies: list[float] = []
    statuses = Counter[int]()
    selector = selectors.DefaultSelector()
    all_of_them = [_Client(request) for _ in range(clients)]
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    for client in all_of_them:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send()
    busy = clients
    while busy:
        for key, _ in selector.select():
            status = key.data.receive()
            if status is None:
                continue
            now_s = time.monotonic()
            latencies.append(now_s - key.data.sent_s)
            statuses[status] += 1
            if now_s - started_s >= seconds:
                busy -= 1
                continue
            if request.pause_s:  # of a single client
                time.sleep(request.pause_s)
            key.data.send()
    wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
    for client in all_of_them:
        client.socket.close()
    result.send(Outcome(len(latencies), wall_s, latencies, dict(statuses), cpu_s))
