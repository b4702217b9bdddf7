"""A real server and clients that mean no good: slow ones, many at once, and bytes that are almost HTTP."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import httpx
import pytest

from service.wire import examples
from tests.e2e.harness import LiveService
from tests.local_executor import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.services]

SLOW_CLIENTS = 150
SAME_POSTS = 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("hostile")
    made = LiveService(folder, [{"count": 1, "gpus": 4, "gpu_type": "V100"}], EXECUTOR="fake", REQUEST_TIMEOUT_S="5")
    made.start()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _unharmed(service: LiveService) -> Iterator[None]:
    """After each test the service still answers, and nothing reached its last resort."""
    yield
    assert service.get("/v1/cluster")["servers"]
    assert "unhandled error" not in service.log.read_text()
    assert "Traceback" not in service.log.read_text()


def connect(service: LiveService) -> socket.socket:
    address = urlsplit(service.url)
    assert address.hostname is not None and address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=60.0)


def head(service: LiveService, *lines: str, method: str = "POST", path: str = "/v1/jobs") -> bytes:
    """An authenticated request's head, with more lines."""
    token = (service.data_dir / "token").read_text().strip()
    own = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}", *lines]
    return "\r\n".join(own).encode("latin-1") + b"\r\n\r\n"


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side closes, or stops talking."""
    said = b""
    connection.settimeout(5.0)
    try:
        while part := connection.recv(65536):
            said += part
            # It keeps the connection for five seconds more; what was hidden behind the first request is answered at once.
            connection.settimeout(1.0)
    except (TimeoutError, ConnectionResetError):
        pass
    return said


def jobs(service: LiveService) -> int:
    return len(service.get("/v1/jobs?limit=500")["items"])


def test_a_hundred_equal_posts_at_once_make_one_job(service: LiveService) -> None:
    before = jobs(service)
    at_once = threading.Barrier(SAME_POSTS)

    def post(_: int) -> tuple[int, int]:
        at_once.wait(60.0)
        for _attempt in range(200):
            said = service.request("POST", "/v1/jobs", examples.PLAIN_JOB, key="one-of-a-hundred")
            if said.status_code != 409:
                break
            assert said.headers["retry-after"]
        return said.status_code, said.json()["id"]

    with ThreadPoolExecutor(SAME_POSTS) as pool:
        answers = list(pool.map(post, range(SAME_POSTS)))
    assert len(set(answers)) == 1 and answers[0][0] == 201, set(answers)
    assert jobs(service) == before + 1


def test_slow_clients_hold_nobody_up_and_are_given_up(service: LiveService) -> None:
    """Some say nothing, some stop in the middle of a header, some in the middle of a body, and some send a byte now and then."""
    body = json.dumps(examples.PLAIN_JOB).encode()
    whole = head(service, "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(connect(service))) for _ in range(SLOW_CLIENTS)]
        for number, connection in enumerate(slow):
            connection.sendall(whole[: (0, 20, len(whole) - 5)[number % 3]])
        before = jobs(service)
        for number in range(20):
            assert service.request("POST", "/v1/jobs", examples.PLAIN_JOB, key=f"beside-{number}").status_code == 201
            for connection in slow[1::3]:
                drip(connection)
        assert jobs(service) == before + 20
        for connection in slow:
            wait_for(lambda connection=connection: is_closed(connection), "the service gives a slow client up")


def drip(connection: socket.socket) -> None:
    """One more byte of a header that never ends."""
    try:
        connection.sendall(b"x")
    except OSError:
        pass  # it was given up already


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed."""
    connection.settimeout(0.05)
    try:
        return connection.recv(4096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_connection_that_is_used_again_is_not_given_up(service: LiveService) -> None:
    token = (service.data_dir / "token").read_text().strip()
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0) as client:
        for _ in range(30):
            assert client.get("/v1/cluster").status_code == 200
            assert client.post("/v1/jobs", json=examples.PLAIN_JOB).status_code == 201


GOOD_BODY = json.dumps(examples.PLAIN_JOB).encode()
JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([JSON, "Content-Length: 5", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, f"Content-Length: {len(GOOD_BODY)}", "Transfer-Encoding: chunked"], b"0\r\n\r\n" + GOOD_BODY),
        ([JSON, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"], GOOD_BODY),
        ([JSON, "Transfer-Encoding: chunked"], b"ffffffffffffffffffff\r\n" + GOOD_BODY),
        ([JSON, "Content-Length: -1"], GOOD_BODY),
        ([JSON, "Content-Length: 99999999999999999999"], GOOD_BODY),
        ([JSON, "Content-Length: 1e3"], GOOD_BODY),
        ([JSON, "Host: evil.example", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, "Authorization: Bearer other", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, "Origin: http://evil.example", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        (["Content-Type: text/plain", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, "Idempotency-Key: a\r\n b", f"Content-Length: {len(GOOD_BODY)}"], b"{}" + b" " * (len(GOOD_BODY) - 2)),
        ([JSON, "Idempotency-Key: \x00", f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, "X: " + "y" * 3_000_000, f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, *["X: y"] * 500_000, f"Content-Length: {len(GOOD_BODY)}"], GOOD_BODY),
        ([JSON, "Expect: 100-nonsense", "Content-Length: 7"], b"\xff" * 7),
    ],
)
def test_a_request_that_is_almost_one_makes_no_job(service: LiveService, lines: list[str], body: bytes) -> None:
    before = jobs(service)
    with closing(connect(service)) as connection:
        try:
            connection.sendall(head(service, *lines) + body)
            said = answer(connection)
        except (BrokenPipeError, ConnectionResetError):
            said = b""
    assert not said.startswith(b"HTTP/1.1 5"), said[:200]
    assert b" 201 " not in said.partition(b"\r\n")[0], said[:200]
    assert b"Set-Cookie" not in said
    assert jobs(service) == before


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"GET /\r\n\r\n",
        b"GET /v1/jobs HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/jobs/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET http://evil.example/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET //v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\r\n" * 5000,
        b"\x00" * 10_000,
        b"GET /" + b"a" * 3_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_of_ours_are_refused(service: LiveService, raw: bytes) -> None:
    with closing(connect(service)) as connection:
        try:
            connection.sendall(raw)
            said = answer(connection)
        except (BrokenPipeError, ConnectionResetError):
            said = b""
    assert not said.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5")), said[:200]
    assert b"root:" not in said
