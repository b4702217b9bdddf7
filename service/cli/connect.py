"""Finding the service: its address and its token, without options on the machine that it runs on.

Address: ``SOONER_URL``, else host and port of the settings. Token: ``SOONER_TOKEN``, else the file that the service wrote into
its data folder. An address of another machine never gets the file's token, which opens this machine, nor does a program on this
machine that cannot prove that it has it.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import httpx
import typer

from service.api.token import TOKEN_FILE
from service.cli.fail import EXIT_FAILED, EXIT_USAGE, fail, settings_or_fail
from service.client import ApiError, AsyncClient, Client, ClientError, Unreachable, Unsendable
from service.client.connection import TOKEN_RULE, can_be_sent
from service.client.errors import REFUSED
from service.config.environment import LocalService, is_loopback, service_url, usual_service
from service.domain.api_key import KEY_PREFIX

if TYPE_CHECKING:
    from service.config.settings import Settings

_WRONG_INPUT = frozenset({400, 413, 415, 422})
"""Statuses that say the request itself was wrong."""

_UNAUTHORIZED: Final = 401

PATIENCE_S: Final = 5.0
"""A person waits for a command: long enough for another service to take over, and no longer."""

URL_VARIABLE = "SOONER_URL"
TOKEN_VARIABLE = "SOONER_TOKEN"  # noqa: S105 (a variable's name)


class AddressError(ValueError):
    """The text is not an address of a service; the message is one line."""


class TokenError(ValueError):
    """The token cannot be sent; the message is one line without the token, and names where it is from."""


@contextmanager
def connect() -> Iterator[Client]:
    """A client of the service in the user's settings. A refusal by the service ends the command with an error line."""
    options = _usual_options()
    with refusals(without_token=options["token"] is None), Client(**options) as client:
        yield client


def async_client() -> AsyncClient:
    """A client to await, of the same service as that of :func:`connect`. It repeats no request."""
    return AsyncClient(**_usual_options() | {"patience_s": 0.0})


def _usual_options() -> "ServiceOptions":
    try:
        return service_options(_usual(), os.environ.get(URL_VARIABLE) or None)
    except AddressError as error:
        fail(f"{URL_VARIABLE}: {error}")
    except TokenError as error:
        fail(str(error))


def _usual() -> "LocalService | Settings":
    return usual_service() or settings_or_fail()


@contextmanager
def refusals(*, without_token: bool = False) -> Iterator[None]:
    """Turn errors of the client into an error line and an exit code. ``without_token``: none was found to send."""
    try:
        yield
    except Unreachable as error:
        # Only on its own machine can a service be started, and only where nothing listens yet.
        absent = error.cause == REFUSED and is_loopback(httpx.URL(error.url).host)
        fail(f"{error}{'; to start the service, run: sooner serve' if absent else ''}", EXIT_FAILED)
    except ApiError as error:
        if error.status == _UNAUTHORIZED and without_token:
            fail(_why_no_token(), EXIT_FAILED)
        for fault in error.errors if len(error.errors) > 1 else ():
            where = fault.get("pointer", fault.get("parameter", ""))
            typer.echo(f"  {where or '(whole body)'}: {fault.get('detail', '')}", err=True)
        fail(str(error), EXIT_USAGE if error.status in _WRONG_INPUT else EXIT_FAILED)
    except ClientError as error:
        fail(str(error), EXIT_USAGE if isinstance(error, Unsendable) else EXIT_FAILED)


def _why_no_token() -> str:
    """Where no token was found, and what would give one."""
    key = f"{TOKEN_VARIABLE} to an API key"
    url = os.environ.get(URL_VARIABLE)
    if url and not is_loopback(_parsed(url).host):
        return f"the service at {url} needs a token; set {key}"
    file = _usual().data_dir / TOKEN_FILE
    try:
        file.read_bytes()
        fault = "is empty"
    except OSError as error:
        fault = error.strerror or str(error)
    return f"no token was found ({file}: {fault}); set SOONER_DATA_DIR to the service's data folder, or {key}"


def has_key() -> bool:
    """Whether the user has an API key, which names its user, instead of the token of this machine."""
    return os.environ.get(TOKEN_VARIABLE, "").strip().startswith(KEY_PREFIX)


def service_client(settings: "LocalService | Settings", given: str | None = None) -> Client:
    """A client of the service at the address ``given``, or of this machine's. Raises as :func:`service_options` does."""
    return Client(**service_options(settings, given))


class ServiceOptions(TypedDict):
    """Where the service is and how to be let in, as parameters of both clients."""

    base_url: str
    token: str | None
    patience_s: float
    proven: bool
    tls: ssl.SSLContext | None


def service_options(settings: "LocalService | Settings", given: str | None = None) -> ServiceOptions:
    """Those of the service at the address ``given``, or of this machine's.

    Raises :class:`AddressError` and :class:`TokenError`.
    """
    url = given or service_url(settings.host, settings.port, settings.scheme)
    tls = _trusted(settings.tls_ca) if settings.tls_ca is not None else None
    key = _sendable(TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, ""))
    local = given is None or is_loopback(_parsed(given).host)
    token = key or (_token_file(settings) if local else None)
    proven = not key and token is not None
    return ServiceOptions(base_url=url, token=token, patience_s=PATIENCE_S, proven=proven, tls=tls)


def _trusted(ca: Path) -> ssl.SSLContext:
    from service.runtime.tls import TlsError, client_context

    try:
        return client_context(ca)
    except TlsError as error:
        fail(str(error))


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeEncodeError):
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise AddressError(f"{url!r} is not an address like http://127.0.0.1:8765")
    return parsed


def _token_file(settings: "LocalService | Settings") -> str | None:
    """The token in the data folder; None where none can be read (the service then says that one is required)."""
    file = settings.data_dir / TOKEN_FILE
    try:
        # A byte that is not ASCII becomes a character that is not, whatever it is.
        text = file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return _sendable(str(file), text) or None


def _sendable(origin: str, text: str) -> str:
    """The token in a text, without the end of its line. Raises :class:`TokenError`."""
    token = text.strip()
    if not can_be_sent(token):
        raise TokenError(f"{origin}: {TOKEN_RULE}")
    return token
