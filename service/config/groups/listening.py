"""Where the service listens and what it keeps its data in."""

from pydantic import BaseModel, Field

from service.config.kinds import Folder, Words, between, default_data_dir


class Listening(BaseModel):
    """Addresses, folders, the database and the cluster."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. This machine alone by default, because whoever reaches it can run commands.",
    )
    port: int = between(8765, 0, 65_535, "TCP port to listen on; 0 takes any free one.")
    advertise_url: str = Field(
        "",
        max_length=2048,
        pattern=r"^(https?://[^/?#\s]+)?$",
        description="Where other services reach this one, as http://host:port; by default the address it listens on.",
    )
    request_timeout_s: float = between(
        30.0,
        1.0,
        3600.0,
        "A request that has not come in whole after so long is given up and its connection closed: slow clients keep handles.",
    )
    connections_max: int = between(
        500,
        10,
        100_000,
        "Open connections; a request on one more is answered with 503. Half of the file handles that a process usually has.",
    )
    data_dir: Folder = Field(
        default_factory=default_data_dir,
        description="Folder of the token, the database, logs, checkpoints and models; created for its owner alone (0700).",
    )
    checkpoints_dir: Folder | None = Field(
        None,
        description="Folder of all checkpoints, data_dir/checkpoints by default. Services on several machines must share it.",
    )
    models_dir: Folder | None = Field(
        None,
        description="Folder of trained models, data_dir/models by default. Services on several machines must share it.",
    )
    database_url: str = Field(
        "",
        max_length=2048,
        description="Where the database is. By default the file sooner.db in data_dir, so that nothing has to be set up.",
    )
    cluster: Folder | None = Field(
        None,
        description="Cluster file. Without one: one server with this machine's GPUs, or virtual_gpus virtual ones.",
    )
    virtual_gpus: int = between(
        4, 1, 1024, "GPUs pretended where the machine has none. Four let a gang and a preemption be seen on a laptop."
    )
    allowed_hosts: Words = Field(
        ("127.0.0.1", "localhost", "[::1]"),
        min_length=1,
        description="Host headers that are answered, comma-separated; no others, so that no web page can rebind its name to us.",
    )
    allowed_origins: Words = Field(
        (),
        description="Web origins whose requests are answered, comma-separated; none by default: no page has a reason to call.",
    )
