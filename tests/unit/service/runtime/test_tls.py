"""Files of TLS: a pair that was made can be used, and every fault of a file is one line that names it."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.runtime.tls import TlsError, _shake_hands, check_pair, client_context, make_pair

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("tls"), ["localhost", "127.0.0.1", "::1"], 2)


def expired(folder: Path, pair: tuple[Path, Path], begin: str, end: str) -> Path:
    """A certificate of the same key that is valid at another time."""
    request, cert, database = folder / "request.pem", folder / "expired.pem", folder / "index.txt"
    subject = ["-subj", "/CN=sooner", "-config", "/dev/null"]
    subprocess.run(["openssl", "req", "-new", "-key", pair[1], *subject, "-out", request], check=True)
    database.write_text("")
    (folder / "serial").write_text("01\n")
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=c\n[c]\ndatabase={database}\nserial={folder / 'serial'}\nnew_certs_dir={folder}\n"
        "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
    )
    command = [
        "openssl",
        "ca",
        "-batch",
        "-selfsign",
        "-config",
        folder / "ca.cnf",
        "-keyfile",
        pair[1],
        "-in",
        request,
    ]
    times = ["-startdate", begin, "-enddate", end]
    subprocess.run([*command, "-out", cert, "-notext", *times], check=True, capture_output=True)
    return cert


def test_a_pair_serves_its_names_and_no_other(pair: tuple[Path, Path]) -> None:
    cert, key = pair
    check_pair(cert, key)
    assert key.stat().st_mode & 0o777 == 0o600
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = client_context(cert)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    for host in ("localhost", "127.0.0.1", "::1"):
        _shake_hands_as(server, client, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands_as(server, client, "example.org")
    client.check_hostname = False
    _shake_hands(server, client)


def _shake_hands_as(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(there, back, server_hostname=host), server.wrap_bio(back, there, server_side=True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def refused(cert: Path, key: Path) -> str:
    with pytest.raises(TlsError) as caught:
        check_pair(cert, key)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_files_that_cannot_be_used_are_named(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    cert, key = pair
    other = make_pair(tmp_path / "other", ["localhost"], 1)
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    missing = tmp_path / "missing.pem"
    assert refused(missing, key) == f"tls_cert: cannot read {missing}: No such file or directory"
    assert refused(cert, tmp_path) == f"tls_key: cannot read {tmp_path}: Is a directory"
    assert refused(cert, other[1]) == f"tls_key: {other[1]} is not the key of the certificate in {cert} (tls_cert)"
    assert str(text) in refused(text, key)
    assert str(text) in refused(cert, text)
    locked = tmp_path / "locked.pem"
    cipher = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked]
    subprocess.run(cipher, check=True, capture_output=True)
    assert "without a password" in refused(cert, locked)


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ("20200101000000Z", "20210101000000Z", "certificate has expired"),
        ("20900101000000Z", "20910101000000Z", "certificate is not yet valid"),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_refused(
    tmp_path: Path, pair: tuple[Path, Path], begin: str, end: str, words: str
) -> None:
    cert = expired(tmp_path, pair, begin, end)
    assert refused(cert, pair[1]) == f"tls_cert: {cert}: {words}"


def test_what_clients_trust_must_be_certificates(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    with pytest.raises(TlsError, match="tls_ca: cannot read"):
        client_context(tmp_path / "missing.pem")
    with pytest.raises(TlsError, match="holds no certificate"):
        client_context(pair[1])


def test_nothing_is_overwritten_and_names_are_checked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="exists"):
        make_pair(pair[0].parent, ["localhost"], 1)
    for host in ("a,DNS:evil.example", "", "a b", "a=b"):
        with pytest.raises(TlsError, match="--host"):
            make_pair(tmp_path / "new", [host], 1)
    assert not (tmp_path / "new").exists()


def test_wrong_arguments_of_the_command_end_with_their_exit_code(pair: tuple[Path, Path], tmp_path: Path) -> None:
    taken = CliRunner().invoke(app, ["tls", "create", str(pair[0].parent)])
    assert (taken.exit_code, taken.stderr) == (2, f"error: {pair[0]} exists; name another folder\n")
    odd = CliRunner().invoke(app, ["tls", "create", str(tmp_path), "--host", "a b"])
    assert (odd.exit_code, odd.stderr) == (2, "error: --host: 'a b' is neither a name nor an address\n")
