"""Posting to addresses that others choose: which are refused, what is sent, and for how long."""

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

import pytest

from policies.lifecycle import JobState
from service.domain.webhooks import WebhookEvent, body_of, event_of, new_secret, retry_after_s, signature
from service.runtime import webhook_post
from service.runtime.webhook_post import PostFailed, PostLimits, is_public, post, refusal_of

HERE = PostLimits(60.0, allow_private=True)
OUTSIDE = PostLimits(60.0, allow_private=False)
TLS = ssl.create_default_context()


@dataclass
class Receiver:
    """A receiver on this machine: what it got, and what it answers."""

    port: int = 0
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[], tuple[int, dict[str, str]]] = lambda: (204, {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            status, headers = made.answer()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(
    url: str, limits: PostLimits = HERE, body: bytes = b"{}", headers: Mapping[str, str] = MappingProxyType({})
) -> int:
    return asyncio.run(post(url, body, headers, limits, TLS))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
    ],
)
def test_addresses_of_inner_networks_are_refused_however_they_are_written(address: str) -> None:
    assert not is_public(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    refusal = "must not be a private address (setting webhook_private_addresses)"
    assert refusal_of(f"https://{host}/x", allow_private=False) == refusal
    assert refusal_of(f"https://{host}/x", allow_private=True) is None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_not(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/x", "http"),
        ("file:///etc/passwd", "http"),
        ("https://", "host"),
        ("example.org/hook", "http"),
        ("https://me:secret@example.org/", "password"),
        ("https://example.org/#part", "fragment"),
        ("https://example.org:99999/", "port"),
        ("https://example.org:0/", "port"),
        ("https://example.org:-1/", "port"),
        ("https://[::1", "is not a URL"),
        ("https://exa_mple..com/", "parts of 1 to 63"),
        ("https://.example.org/", "parts of 1 to 63"),
        ("https://example.org../", "parts of 1 to 63"),
        ("https://a,b/", "letters, digits"),
        ("https://ex%41mple.org/", "letters, digits"),
        (f"https://{'a' * 64}.org/", "parts of 1 to 63"),
        (f"https://{'.'.join(['a' * 49] * 5)}.orgs/", "at most 253 characters"),
    ],
)
def test_urls_that_nobody_can_mean_are_refused(url: str, words: str) -> None:
    refusal = refusal_of(url, allow_private=True)
    assert refusal is not None
    assert words in refusal


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "exa_mple.com",
        "my_service:8080",
        "_hooks._tcp.example.org",
        "example.org.",
        "xn--bcher-kva.example",
        "203-0-113-7.example.org",
        f"{'a' * 63}.org",
        f"{'.'.join(['a' * 49] * 5)}.org.",
        "8.8.8.8",
        "[2606:4700::1111]:443",
    ],
)
def test_hosts_of_every_kind_are_taken(host: str) -> None:
    assert refusal_of(f"https://{host}/x", allow_private=True) is None


def test_a_receiver_can_check_what_it_gets() -> None:
    body, secret = body_of({"b": 1, "a": "é"}), new_secret()
    assert body == b'{"a":"\\u00e9","b":1}'
    with receiver() as there:
        status = send(there.url, body=body, headers={"Sooner-Signature": signature(secret, 1_700_000_000, body)})
        assert status == 204
        [(path, headers, got)] = there.got
    assert (path, got) == ("/hook?x=1", body)
    assert headers["host"] == f"127.0.0.1:{there.port}"
    assert headers["content-type"] == "application/json"
    stamp, digest = (part.partition("=")[2] for part in headers["sooner-signature"].split(","))
    assert hmac.compare_digest(
        digest, hmac.new(secret.encode(), stamp.encode() + b"." + got, hashlib.sha256).hexdigest()
    )
    assert json.loads(got) == {"a": "é", "b": 1}


def test_a_signature_by_hand() -> None:
    """printf '5.{}' | openssl dgst -sha256 -hmac key"""
    assert signature("key", 5, b"{}") == "t=5,v1=" + hmac.digest(b"key", b"5.{}", "sha256").hex()
    assert len({signature("key", 5, b"{}"), signature("key", 6, b"{}"), signature("kez", 5, b"{}")}) == 3
    assert len(new_secret()) >= 40
    assert new_secret() != new_secret()


def test_a_redirect_is_not_followed() -> None:
    with receiver() as there, receiver() as elsewhere:
        there.answer = lambda: (307, {"Location": elsewhere.url})
        assert send(there.url) == 307
        assert elsewhere.got == []


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiver() as there:
        assert send(there.url) == 204


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "0x7f000001", "2130706433"])
def test_names_that_mean_this_machine_are_refused_when_they_are_resolved(host: str) -> None:
    with receiver() as there:
        url = f"http://{host}:{there.port}/"
        with pytest.raises(PostFailed, match=r"address is private|cannot be resolved"):
            send(url, OUTSIDE)
        assert there.got == []


def answers(*addresses: str) -> Any:
    """A resolver that gives these, another set at each call."""
    calls: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        calls.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    getaddrinfo.calls = calls  # type: ignore[attr-defined]
    return getaddrinfo


def test_one_inner_address_among_several_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers("8.8.8.8", "10.0.0.1"))
    with pytest.raises(PostFailed, match="address is private"):
        send("http://hooks.test/", OUTSIDE)


def test_the_connection_goes_to_the_address_that_was_checked_and_names_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is asked for once: it cannot mean another machine when the connection is made."""
    with receiver() as there:
        resolver = answers("127.0.0.1")
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        assert send(f"http://hooks.test:{there.port}/") == 204
        assert resolver.calls == ["hooks.test"], "what is connected to is an address already"
        assert there.got[0][1]["host"] == f"hooks.test:{there.port}"


def test_of_several_addresses_the_first_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as there:
        monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.3", "127.0.0.3", "::1", "127.0.0.1"))
        assert send(f"http://hooks.test:{there.port}/") == 204
        assert len(there.got) == 1
        monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.3", "127.0.0.2"))
        with pytest.raises(PostFailed, match="cannot connect"):
            send(f"http://hooks.test:{there.port}/")


def test_a_certificate_is_asked_for_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS to a server without a certificate of a known authority fails, whatever the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    hello: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            hello.append(connection.recv(4096))

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.1"))
    with pytest.raises(PostFailed):
        send(f"https://hooks.test:{listener.getsockname()[1]}/")
    thread.join()
    listener.close()
    assert b"hooks.test" in hello[0], "the name is in the greeting (SNI), so the certificate is checked against it"


def test_whoever_says_nothing_is_left_after_the_time_limit() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        with pytest.raises(PostFailed, match=r"no answer within 0\.2 s"):
            send(f"http://127.0.0.1:{listener.getsockname()[1]}/", PostLimits(0.2, allow_private=True))
    finally:
        listener.close()


def test_a_resolver_that_does_not_answer_is_left_too_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit holds, and so does the end of the pass: whoever closes the service waits for that."""
    answers_at_last, left = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def silent(*_: Any, **__: Any) -> list[Any]:
        threads.append(threading.current_thread())
        answers_at_last.wait(60.0)
        return []

    def ask() -> None:
        with suppress(PostFailed):
            send("http://hooks.test/", PostLimits(0.05, allow_private=True))
        left.set()

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    threading.Thread(target=ask, daemon=True).start()
    try:
        assert left.wait(20.0)
    finally:
        answers_at_last.set()
    threads[0].join(60.0)
    assert not threads[0].is_alive(), "its answer comes too late for anybody, and does no harm"


def test_whoever_drips_is_left_too() -> None:
    """A byte now and then keeps every single read within its limit; all together they are not."""
    listener = socket.create_server(("127.0.0.1", 0))
    enough = threading.Event()

    def drip() -> None:
        # Whoever posts may have given up by any of these steps.
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not enough.wait(0.02):
                    connection.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(PostFailed, match="no answer within"):
            send(f"http://127.0.0.1:{listener.getsockname()[1]}/", PostLimits(0.3, allow_private=True))
    finally:
        enough.set()
        listener.shutdown(socket.SHUT_RDWR)  # who has not even connected is waited for no longer
        thread.join()
        listener.close()


def test_a_failure_says_nothing_that_the_other_side_wrote() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            # Head and body come one after the other; to close with a part unread would be a reset, and another failure.
            asked = b""
            while not asked.endswith(b"\r\n\r\n{}"):
                asked += connection.recv(65_536)
            connection.sendall(b"\x1b[31mowned\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(PostFailed) as caught:
        send(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    thread.join()
    listener.close()
    assert str(caught.value) == "the answer is not HTTP"
    with pytest.raises(PostFailed, match="cannot connect"):
        send("http://127.0.0.1:1/")
    assert webhook_post.refusal_of("http://127.0.0.1:1/", allow_private=True) is None


def test_pauses_double_up_to_an_hour() -> None:
    assert [retry_after_s(attempts) for attempts in (1, 2, 3, 9, 10, 1000)] == [10, 20, 40, 2560, 3600, 3600]


def test_which_changes_of_a_job_are_told() -> None:
    assert {state: event_of(state) for state in JobState} == {
        JobState.QUEUED: WebhookEvent.REQUEUED,
        JobState.STARTING: None,
        JobState.RUNNING: WebhookEvent.STARTED,
        JobState.PREEMPTING: WebhookEvent.PREEMPTED,
        JobState.CANCELLING: None,
        JobState.SUCCEEDED: WebhookEvent.SUCCEEDED,
        JobState.FAILED: WebhookEvent.FAILED,
        JobState.CANCELLED: WebhookEvent.CANCELLED,
    }
