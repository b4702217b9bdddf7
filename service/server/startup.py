"""Checks before a service starts. Each failure ends the start with one clear line."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from service.config.settings import Settings
from service.db import migrate
from service.db.session import Database, open_database
from service.runtime.tls import TlsError, check_pair, client_context
from service.runtime.untrusted import open_file, read_small

DATABASE_ID_FILE = "database_id"
"""A file in the data folder with the id of the database that the attempts belong to."""

_WORD_BYTES_MAX = 256

HOST_ID_FILE = "host_id"
"""A file in the data folder with its own id, which its attempts carry in the database."""


class StartError(Exception):
    """The service cannot start for a reason that the user can fix; one line."""


def open_current(url: str) -> Database:
    """The database, migrated if it is empty. Raises StartError for another schema than this program's."""
    database = open_database(url)
    try:
        state = migrate.state(url)
        if state is migrate.SchemaState.EMPTY:
            migrate.upgrade(url)
        elif state is not migrate.SchemaState.CURRENT:
            raise StartError(state.sentence)
    except BaseException:
        database.close()
        raise
    return database


def bind(data_dir: Path, identity: str) -> None:
    """Bind the data folder to its database. Raises StartError if it belongs to another one, whose attempts have the same ids."""
    file = data_dir / DATABASE_ID_FILE
    if file.exists():
        used = _read_word(file)
        if used != identity:
            raise StartError(
                f"{data_dir} holds the attempts of another database ({used}, this one is {identity}); "
                "choose another data_dir, or delete the folder if that database is gone"
            )
    elif (data_dir / "attempts").exists():
        raise StartError(f"{data_dir} holds attempts, but no id of their database; choose another data_dir")
    else:
        _write_whole(file, identity)


def _write_whole(file: Path, word: str) -> None:
    """Write atomically and durably: a partial id, or an empty one after a power loss, would make the folder unusable."""
    draft = file.with_suffix(".draft")
    with draft.open("w", encoding="ascii") as stream:
        stream.write(word + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


def _read_word(file: Path) -> str:
    """The id in ``file``, which a job of the same user may have replaced. Raises StartError."""
    try:
        word = read_small(open_file(file), _WORD_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot read the id in {file}: {error}") from None
    if not word:
        # All services with an empty id would be one.
        raise StartError(f"{file} is empty; restore it from a backup, or choose another data_dir")
    return word


class Host(NamedTuple):
    """The id of a data folder, which attempts carry. ``old``: the folder held attempts before it had an id."""

    id: str
    old: bool


def host_of(data_dir: Path) -> Host:
    """The id of this service, drawn at the first start. A data folder belongs to one machine."""
    file = data_dir / HOST_ID_FILE
    if file.exists():
        return Host(_read_word(file), old=False)
    drawn = secrets.token_hex(8)
    _write_whole(file, drawn)
    return Host(drawn, old=(data_dir / "attempts").exists())


def advertised_url(settings: Settings, address: tuple[str, int]) -> str:
    """The URL for other services: the setting, else the address it listens on, with this machine's name for "all addresses"."""
    if settings.advertise_url:
        return settings.advertise_url
    host, port = address
    if host in ("0.0.0.0", "::"):  # noqa: S104 (recognised, not bound)
        host = socket.gethostname()
    return url_of(settings.scheme, host, port)


def url_of(scheme: str, host: str, port: int) -> str:
    """The URL of an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(settings: Settings) -> None:
    """Raise StartError unless the files of the TLS settings can be used."""
    try:
        if settings.tls_cert is not None and settings.tls_key is not None:
            check_pair(settings.tls_cert, settings.tls_key)
        if settings.tls_ca is not None:
            client_context(settings.tls_ca)
    except TlsError as error:
        raise StartError(str(error)) from error


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket. Raises StartError at once if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        yield listener
    finally:
        listener.close()
