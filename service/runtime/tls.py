"""TLS: checking the files of a server, the trust of a client, and making a self-signed pair with the program ``openssl``.

The standard library reads no certificate without using it, so a pair is checked by a handshake in memory.
"""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final

CERT_FILE: Final = "cert.pem"
KEY_FILE: Final = "key.pem"
DAYS_MAX: Final = 3650

_HANDSHAKE_TURNS: Final = 4
_OPENSSL_S: Final = 60.0


class TlsError(ValueError):
    """A file that cannot be used, or a pair that cannot be made; one line."""


class TlsArgumentError(TlsError):
    """A pair cannot be made for these hosts or in this folder."""


def client_context(ca: Path) -> ssl.SSLContext:
    """What a client trusts: the certificates of this file and no others. Raises :class:`TlsError`."""
    _read("tls_ca", ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise TlsError(f"tls_ca: {ca} holds no certificate (PEM): {_why(error)}") from error


@cache
def peer_context(ca: Path | None) -> ssl.SSLContext:
    """The same, or what the system trusts. Cached: reading the certificates takes longer than a request."""
    return ssl.create_default_context() if ca is None else client_context(ca)


def check_pair(cert: Path, key: Path) -> None:
    """Raise :class:`TlsError` for a file that cannot be read, a key of another certificate, and a certificate that is not valid
    now."""
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        _read(name, path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password an encrypted key would ask for one at the terminal.
        server.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"tls_key: {key} is not the key of the certificate in {cert} (tls_cert)") from error
        raise TlsError(
            f"tls_cert, tls_key: {cert} and {key} are not a certificate and its key (PEM, without a password): {_why(error)}"
        ) from error
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # The certificate itself is trusted, whoever signed it: only its times are asked.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cert)
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"tls_cert: {cert}: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise TlsError(f"tls_cert: {cert} cannot serve: {_why(error)}") from error


def make_pair(folder: Path, hosts: Sequence[str], days: int) -> tuple[Path, Path]:
    """Make a self-signed certificate for these names and addresses, and its key; returns their files. Raises TlsError.

    Only the owner can read the key. Nothing is overwritten.
    """
    program = shutil.which("openssl")
    if program is None:
        raise TlsError("making a certificate needs the program openssl, which is not installed")
    cert, key = folder / CERT_FILE, folder / KEY_FILE
    names = ",".join(f"IP:{host}" if _is_address(host) else f"DNS:{host}" for host in hosts)
    bad = next((host for host in hosts if not host or set(host) & set(",=\n\r ")), None)
    if bad is not None:
        raise TlsArgumentError(f"--host: {bad!r} is neither a name nor an address")
    command = [
        *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", str(days), "-subj", "/CN=sooner", "-config", os.devnull, "-addext", f"subjectAltName={names}"),
        # Trusting it trusts these hosts alone: it can sign no other certificate.
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature"),
        *("-addext", "extendedKeyUsage=serverAuth", "-keyout", "/dev/stdout", "-out", "/dev/stdout"),
    ]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (cert, key):
            if path.exists():
                raise TlsArgumentError(f"{path} exists; name another folder")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_OPENSSL_S)
        parts = done.stdout.partition("-----BEGIN CERTIFICATE-----")
        if done.returncode != 0 or not parts[1]:
            raise TlsError(f"openssl failed: {' '.join(done.stderr.split())}")
        _write(key, parts[0], 0o600)
        _write(cert, parts[1] + parts[2], 0o644)
    except subprocess.TimeoutExpired as error:
        raise TlsError(f"openssl did not end within {_OPENSSL_S:g} s") from error
    except OSError as error:
        raise TlsError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return cert, key


def names_of_host() -> list[str]:
    """The names and addresses under which this machine reaches itself, and its host name."""
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def _read(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{name}: cannot read {path}: {error.strerror}") from error


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(there, back), server.wrap_bio(back, there, server_side=True))
    for _ in range(_HANDSHAKE_TURNS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _why(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
