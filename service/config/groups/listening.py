"""Where the service listens and what it keeps its data in."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from service.config.environment import DEFAULT_HOST, DEFAULT_PORT, default_data_dir
from service.config.kinds import Folder, Seconds, Words, between


def _without_brackets(host: str) -> str:
    """An IPv6 address as it is bound, also where it is written as in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


class Listening(BaseModel):
    """Addresses, folders, the database and the cluster."""

    host: Annotated[str, AfterValidator(_without_brackets)] = Field(
        DEFAULT_HOST,
        min_length=1,
        description="Address to listen on. Default: this machine only, because clients with a token can run commands.",
    )
    port: int = between(DEFAULT_PORT, 0, 65_535, "TCP port to listen on; 0 takes any free port.")
    advertise_url: str = Field(
        "",
        max_length=2048,
        pattern=r"^(https?://[^/?#\s]+)?$",
        description="URL at which other services reach this one, as http://host:port or https://host:port. "
        "Default: the listening address.",
    )
    tls_cert: Folder | None = Field(
        None,
        description="File with the certificate of the service and those that signed it (PEM). With it the service speaks TLS "
        "alone. `sooner tls create` makes one.",
    )
    tls_key: Folder | None = Field(None, description="File with the key of tls_cert (PEM, without a password).")
    tls_ca: Folder | None = Field(
        None,
        description="File with the certificates that clients and other services trust (PEM). Default: those of the system.",
    )
    request_timeout_s: Seconds = between(
        30.0,
        1.0,
        3600.0,
        "Time for a request to arrive, and for a client to read on, before its connection is closed: slow ones cost handles.",
    )
    connections_max: int = between(
        500,
        10,
        100_000,
        "Open connections. For a new one the longest idle one is closed; without an idle one, requests but probes get 503.",
    )
    data_dir: Folder = Field(
        default_factory=default_data_dir,
        description="Folder of the token, the database, logs, checkpoints and models. It is created with mode 0700.",
    )
    checkpoints_dir: Folder | None = Field(
        None,
        description="Folder of all checkpoints. Default: data_dir/checkpoints. Services on several machines share it.",
    )
    models_dir: Folder | None = Field(
        None,
        description="Folder of trained models. Default: data_dir/models. Services on several machines share it.",
    )
    database_url: str = Field(
        "",
        max_length=2048,
        description="URL of the database. The default is the SQLite file sooner.db in data_dir.",
    )
    cluster: Folder | None = Field(
        None,
        description="Cluster file. Default: one server with this machine's GPUs, or with virtual_gpus virtual ones.",
    )
    virtual_gpus: int = between(
        4, 1, 1024, "Virtual GPUs of a machine without GPUs. Four are enough to show a gang and a preemption."
    )
    allowed_hosts: Words = Field(
        ("127.0.0.1", "localhost", "[::1]"),
        min_length=1,
        description="Accepted Host headers besides host, comma-separated. Others are refused, which prevents DNS rebinding.",
    )
    allowed_origins: Words = Field(
        (),
        description="Accepted web origins, comma-separated. Default: none, because no web page needs the service.",
    )
