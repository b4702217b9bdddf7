"""Encrypted connections from end to end: services among themselves, the command line, and every way in which they do not fit."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from service.client import Client, Unreachable
from service.client.proven import NotProven
from service.runtime.tls import client_context, make_pair
from tests.e2e.harness import LiveService
from tests.e2e.test_no_room import run

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates"),
]


class TlsService(LiveService):
    """A service whose certificate is the only one that its clients trust."""

    def __init__(self, folder: Path, cert: Path, key: Path, **settings: str) -> None:
        folder.mkdir()
        given = {"TLS_CERT": str(cert), "TLS_KEY": str(key), "TLS_CA": str(cert), "EXECUTOR": "fake", **settings}
        super().__init__(folder, [{"count": 1, "gpus": 2, "names": [folder.name]}], **given)

    def command(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """A command of the user on this machine: code, output, errors."""
        ours = {name: value for name, value in self.environ.items() if name.startswith("SOONER_")}
        done = run(arguments, **{**ours, "SOONER_URL": self.url, **environment})
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Made by the command. The harness trusts the certificate, too."""
    done = run(["tls", "create", str(tmp_path / "tls"), "--host", "localhost", "--host", "127.0.0.1", "--json"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    monkeypatch.setenv("SSL_CERT_FILE", made["cert"])
    return Path(made["cert"]), Path(made["key"])


@pytest.fixture
def two(tmp_path: Path, pair: tuple[Path, Path]) -> Iterator[list[TlsService]]:
    """A leader and a standby on one database."""
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    services = [TlsService(tmp_path / name, *pair, DATABASE_URL=database) for name in ("a", "b")]
    try:
        for service in services:
            service.start()
        yield services
    finally:
        for service in services:
            service.close()


def test_services_and_the_command_line_over_tls(two: list[TlsService], pair: tuple[Path, Path], tmp_path: Path) -> None:
    leader, standby = two
    assert leader.url.startswith("https://127.0.0.1:")
    code, out, errors = standby.command("q", "--json")
    assert (code, json.loads(out)["jobs"]) == (0, []), errors
    # What needs the leader is forwarded to it by the other service.
    job = standby.submit(name="far", gpus=1, command=["true"], labels={"fake.duration_s": "0.1"})
    assert httpx.get(f"{standby.url}/readyz").json()["role"] == "standby"
    assert standby.get(f"/v1/jobs/{job}/explanation")["job_id"] == job
    token = (standby.data_dir / "token").read_text().strip()
    with Client(standby.url, token, proven=True, tls=client_context(pair[0])) as client:
        assert [service["role"] for service in client.services.list()].count("leader") == 1
        assert all(service["url"].startswith("https://") for service in client.services.list())
    # Another certificate, or none, and another way of speaking.
    other_cert, _ = make_pair(tmp_path / "other", ["127.0.0.1"], 1)
    code, _, errors = leader.command("q", SOONER_TLS_CA=str(other_cert))
    assert (code, errors.count("\n")) == (1, 1)
    assert "its certificate is not trusted: self-signed certificate; SOONER_TLS_CA names" in errors
    assert "sooner serve" not in errors, "it runs already"
    code, _, errors = leader.command("q", SOONER_URL=leader.url.replace("https", "http"))
    assert (code, errors.count("\n")) == (1, 1)
    assert "its address begins with https://" in errors
    code, _, errors = leader.command("q", SOONER_URL=leader.url.replace("https", "http"), SOONER_TOKEN="sooner_x")
    assert (code, errors.count("\n")) == (1, 1)
    assert "its address begins with https://" in errors
    code, _, errors = leader.command("q", SOONER_TLS_CA=str(tmp_path / "missing.pem"))
    assert (code, errors) == (2, f"error: tls_ca: cannot read {tmp_path / 'missing.pem'}: No such file or directory\n")


def test_a_token_goes_neither_to_another_certificate_nor_to_another_folder(
    two: list[TlsService], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    leader, _ = two
    other_cert, _ = make_pair(tmp_path / "other", ["127.0.0.1"], 1)
    untrusted = Client(leader.url, "x", proven=True, tls=client_context(other_cert))
    with untrusted as client, pytest.raises(Unreachable, match="not trusted"):
        client.get("/v1/jobs")
    trusted = Client(leader.url, "x", proven=True, tls=client_context(pair[0]))
    with trusted as client, pytest.raises(NotProven):
        client.get("/v1/jobs")


def test_without_a_file_the_authorities_of_the_system_are_trusted(
    two: list[TlsService], pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (two[0].data_dir / "token").read_text().strip()
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with Client(two[0].url, token) as client, pytest.raises(Unreachable, match="not trusted"):
        client.services.list()
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    with Client(two[0].url, token) as client:
        assert len(client.services.list()) == 2


def test_a_plain_request_reaches_no_route(two: list[TlsService]) -> None:
    address = urlsplit(two[0].url)
    with socket.create_connection((address.hostname, address.port), timeout=30.0) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(4096)
    assert httpx.get(f"{two[0].url}/healthz").status_code == 200
    assert "Traceback" not in two[0].log.read_text()


def test_tls_to_a_service_without_it_is_named(tmp_path: Path) -> None:
    plain = LiveService(tmp_path, [{"count": 1, "gpus": 1}], EXECUTOR="fake")
    try:
        plain.start()
        done = run(["q"], SOONER_URL=plain.url.replace("http", "https"), SOONER_DATA_DIR=str(plain.data_dir))
    finally:
        plain.close()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "it does not speak TLS" in done.stderr


@pytest.mark.parametrize("fault", ["missing", "another key", "alone", "no certificate to trust"])
def test_files_that_do_not_fit_end_the_start(tmp_path: Path, pair: tuple[Path, Path], fault: str) -> None:
    cert, key = map(str, pair)
    other_key = str(make_pair(tmp_path / "other", ["localhost"], 1)[1])
    given, words = {
        "missing": ({"TLS_CERT": "/no/cert.pem", "TLS_KEY": key}, "tls_cert: cannot read /no/cert.pem"),
        "another key": ({"TLS_CERT": cert, "TLS_KEY": other_key}, f"tls_key: {other_key} is not the key of"),
        "alone": ({"TLS_KEY": key}, "tls_key needs tls_cert"),
        "no certificate to trust": ({"TLS_CA": key}, f"tls_ca: {key} holds no certificate"),
    }[fault]
    settings = {f"SOONER_{name}": value for name, value in given.items()}
    done = run(["serve", "--port", "0", "--data-dir", str(tmp_path / "data")], **settings)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr
