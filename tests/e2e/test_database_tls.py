"""PostgreSQL over TLS: what the URL asks of the certificate holds, and a connection that does not fit is one clear line.

The server of the tests may be built without TLS. A front before its socket speaks TLS to the clients, as PostgreSQL does.
"""

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.db.session import open_database
from service.runtime.tls import make_pair
from tests.postgres import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates"),
]

_SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""The first message of a client that wants TLS (PostgreSQL's protocol, SSLRequest)."""


class Front:
    """Listens on 127.0.0.1 and passes on to the server's socket; ``tls`` is None for a server without TLS."""

    def __init__(self, server: PostgresServer, tls: ssl.SSLContext | None) -> None:
        self._inner = str(server.folder / ".s.PGSQL.5432")
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """End everything."""
        self._closed = True
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, run: Callable[..., None], *given: socket.socket) -> None:
        thread = threading.Thread(target=run, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._start(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            self._open.append(client)
            assert client.recv(8, socket.MSG_WAITALL) == _SSL_REQUEST
            if self._tls is None:
                client.sendall(b"N")
                return
            client.sendall(b"S")
            with self._tls.wrap_socket(client, server_side=True) as outer, socket.socket(socket.AF_UNIX) as inner:
                self._open += [outer, inner]
                if self._closed:
                    return
                inner.connect(self._inner)
                other = threading.Thread(target=_pass_on, args=(outer, inner), daemon=True)
                other.start()
                _pass_on(inner, outer)
                other.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def front_of(server: PostgresServer, pair: tuple[Path, Path] | None) -> Iterator[int]:
    """The port of a front."""
    tls = None
    if pair is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*pair)
    made = Front(server, tls)
    try:
        yield made.port
    finally:
        made.close()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return make_pair(tmp_path / "tls", ["localhost"], 2)


def check(url: str, folder: Path) -> Result:
    return CliRunner().invoke(app, ["db", "check", "--database-url", url, "--data-dir", str(folder)])


def test_the_url_decides_what_is_checked(
    postgres: PostgresServer, postgres_url: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    name = postgres_url.partition("@/")[2].partition("?")[0]
    other, _ = make_pair(tmp_path / "other", ["localhost"], 2)
    with front_of(postgres, pair) as port:
        right = f"postgresql://postgres@localhost:{port}/{name}?sslmode=verify-full&sslrootcert={pair[0]}"
        with closing(open_database(right)) as database, database.reading() as session:
            driver = session.connection().connection.driver_connection
            assert driver is not None
            assert driver.pgconn.ssl_in_use
        assert check(right, tmp_path).exit_code == 0
        for wrong, words in (
            (right.replace(str(pair[0]), str(other)), "certificate verify failed"),
            (right.replace("localhost", "127.0.0.1"), "does not match host name"),
        ):
            answer = check(wrong, tmp_path)
            assert answer.exit_code != 0
            assert answer.stderr.count("\n") == 1
            assert words in answer.stderr


def test_a_server_without_tls_is_refused(postgres: PostgresServer, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with front_of(postgres, None) as port:
        url = f"postgresql://postgres@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={pair[0]}"
        answer = check(url, tmp_path)
    assert answer.exit_code != 0
    assert answer.stderr.count("\n") == 1
    assert "does not support SSL" in answer.stderr
