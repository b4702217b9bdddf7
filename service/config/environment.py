"""Variables with the prefix of the settings, and the defaults that a client needs. Imports the standard library alone."""

import os
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

ENV_PREFIX = "SOONER_"
CONFIG_FILE_VARIABLE = "SOONER_CONFIG_FILE"

PROGRAM_VARIABLES = frozenset(
    ENV_PREFIX + name
    for name in (
        *("JOB_ID", "ATTEMPT", "CHECKPOINT_DIR", "RESUME_ITERATION", "GPUS_ON_SERVER", "PLAN"),
        *("PROGRESS_FILE", "PROGRESS_URL", "PROGRESS_TOKEN"),
        *("ARRAY_ID", "ARRAY_INDEX", "ARRAY_COUNT"),
    )
)
"""Variables that a training program gets. A job may call ``sooner``, so they are no mistake."""

OTHER_VARIABLES = PROGRAM_VARIABLES | {CONFIG_FILE_VARIABLE, "SOONER_URL", "SOONER_TOKEN", "SOONER_TRACES"}
"""Variables with the prefix of the settings that are no settings."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765

_DATA_DIR_VARIABLE = "SOONER_DATA_DIR"


class LocalService(NamedTuple):
    """Where the service of this machine listens and keeps its data."""

    host: str
    port: int
    data_dir: Path
    scheme: str = "http"
    tls_ca: Path | None = None


def default_data_dir() -> Path:
    """Where the service keeps its data by default: the user's data folder of the XDG convention."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sooner"


def usual_service() -> LocalService | None:
    """The service of this machine if no setting is given but the data folder; else None.

    Loading all settings takes longer than asking the service, and most users have none.
    """
    given = {name for name, value in os.environ.items() if name.startswith(ENV_PREFIX) and value}
    if not given <= (OTHER_VARIABLES - {CONFIG_FILE_VARIABLE}) | {_DATA_DIR_VARIABLE}:
        return None
    folder = os.environ.get(_DATA_DIR_VARIABLE)
    data_dir = Path(folder).expanduser().absolute() if folder else default_data_dir()
    return LocalService(DEFAULT_HOST, DEFAULT_PORT, data_dir)


def service_url(host: str, port: int, scheme: str = "http") -> str:
    """Where a service that listens on ``host`` and ``port`` is reached from this machine."""
    return f"{scheme}://{reached_host(host)}:{port}"


def reached_host(host: str) -> str:
    """The host in that URL: an IPv6 address has brackets, and a service on all addresses is reached by the loopback."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1"
    return f"[{address}]" if address.version == 6 else str(address)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, whichever machine asks."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
