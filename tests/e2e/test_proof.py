"""The token of a data folder reaches the service of that folder alone, whoever else listens on its port."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.client import Unreachable
from service.client.proven import NotProven
from service.domain.proof import PROOF_PATH, proof
from tests.e2e.harness import LiveService
from tests.unit.service.cli.test_cli_live import Installation
from tests.unit.service.client.both import KINDS, Kind, blocking

pytestmark = [pytest.mark.services, pytest.mark.slow]

TOKEN = "t0ken-of-the-folder"


class Impostor(BaseHTTPRequestHandler):
    """Answers everything with the ``answer`` of its server, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.got.append(f"{self.path} {dict(self.headers)}")  # type: ignore[attr-defined]
        body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def impostor(answer: bytes, port: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it is sent."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Impostor)
    server.got = []  # type: ignore[attr-defined]
    server.answer = answer  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.got  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def proven(kind: Kind, url: str, token: str = TOKEN) -> AbstractContextManager[Any]:
    return blocking(kind(url, token, timeout_s=5.0, proven=True))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both clients demand the proof."""
    found: Kind = request.param
    return found


ANSWERS = {
    "nothing": b"",
    "no JSON": b"welcome",
    "no object": b"[]",
    "another shape": b'{"status": "ok"}',
    "a guess": json.dumps({"proof": "0" * 64}).encode(),
    "no text": b'{"proof": 1}',
    "not ASCII": '{"proof": "ä"}'.encode(),
    "deeply nested": b"[" * 4000,
    "too much": b'{"proof": "' + b"0" * 100_000 + b'"}',
    "another folder's": json.dumps({"proof": proof("another", 1, "0" * 64)}).encode(),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_impostor_gets_no_token(kind: Kind, answer: str) -> None:
    with impostor(ANSWERS[answer]) as (url, got), proven(kind, url) as client:
        for _ in range(2):
            with pytest.raises(NotProven, match="the token was not sent") as caught:
                client.get("/v1/jobs")
            assert "\n" not in str(caught.value)
            assert "set SOONER_TOKEN" in str(caught.value)
    assert len(got) == 2
    assert all(line.startswith(PROOF_PATH) for line in got)
    assert not any(TOKEN in line for line in got)


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
def test_a_program_that_speaks_something_else_gets_no_token(kind: Kind, said: bytes) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with proven(kind, f"http://127.0.0.1:{server.getsockname()[1]}") as client, pytest.raises(NotProven):
            client.get("/v1/jobs")
        thread.join()
    assert TOKEN.encode() not in b"".join(heard)


@pytest.mark.parametrize("ends", ["reset", "silent"])
def test_a_connection_that_breaks_before_the_proof_is_that_of_no_service(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A client that follows events tries again then, as after any broken connection."""
    monkeypatch.setattr("service.client.proven.PROOF_S", 0.2 if ends == "silent" else 10.0)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))
                if ends == "silent":
                    heard.append(connection.recv(65536))
                else:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        with proven(kind, f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            with pytest.raises(Unreachable) as caught:
                client.get("/v1/jobs")
            # The connection was closed with the error, not with the client.
            thread.join()
        assert ("its address begins with https://" in str(caught.value)) == (ends == "reset")
    assert TOKEN.encode() not in b"".join(heard)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    made = LiveService(tmp_path, [{"count": 1, "gpus": 1}], EXECUTOR="fake")
    made.start()
    yield made
    made.close()


def test_the_service_of_the_folder_is_believed_and_no_other_is(kind: Kind, service: LiveService) -> None:
    token = (service.data_dir / "token").read_text().strip()
    with proven(kind, service.url, token) as client:
        assert client.get("/v1/jobs")["items"] == []
        with proven(kind, service.url, "another") as other, pytest.raises(NotProven):
            other.get("/v1/jobs")
        # The port is taken between two requests of a client that runs on.
        port = urlsplit(service.url).port
        assert port is not None
        service.kill()
        with impostor(b"{}", port) as (_, got), pytest.raises(NotProven):
            client.get("/v1/jobs")
    assert len(got) == 1
    assert token not in got[0]


def test_a_program_that_passes_the_question_on_gets_no_token(kind: Kind, service: LiveService) -> None:
    """It listens at the usual port while the service listens at another."""
    token = (service.data_dir / "token").read_text().strip()
    address = urlsplit(service.url)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def pass_on() -> None:
            connection, _ = relay.accept()
            with connection, socket.create_connection((address.hostname, address.port)) as onward:
                heard.append(connection.recv(65536))
                onward.sendall(heard[0])
                answered = b""
                while b"}" not in answered:
                    answered += onward.recv(65536)
                connection.sendall(answered)
                heard.append(connection.recv(65536))

        thread = threading.Thread(target=pass_on, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{relay.getsockname()[1]}"
        with proven(kind, url, token) as client, pytest.raises(NotProven, match="port"):
            client.get("/v1/jobs")
        thread.join()
    assert heard[0].startswith(b"GET /proof")
    assert token.encode() not in b"".join(heard)


def test_the_command_line_keeps_the_token_to_itself(tmp_path: Path) -> None:
    made = Installation(tmp_path)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "token").write_text(TOKEN + "\n")
    with impostor(b'{"items": [], "next": null}') as (url, got):
        for place in ({"SOONER_URL": url}, {"SOONER_PORT": str(urlsplit(url).port)}):
            made.environ = {name: value for name, value in made.environ.items() if name != "SOONER_URL"} | place
            done = made.run("q")
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("error: what listens at"), done.stderr
            assert done.stderr.count("\n") == 1
        assert not any(TOKEN in line for line in got)
        # A token that the user names is the user's to send.
        made.environ["SOONER_TOKEN"] = "sooner_key"
        made.run("q")
    assert any("sooner_key" in line for line in got)
