"""The engine of a cluster that runs the jobs: Slurm or Ray."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from service.config.kinds import Folder, Seconds, between


def _absolute(value: PurePosixPath) -> PurePosixPath:
    if not value.is_absolute():
        raise ValueError("must be an absolute path")
    return value


class Engines(BaseModel):
    """What ``executor=slurm`` and ``executor=ray`` need."""

    shared_dir: Folder | None = Field(
        None,
        description="Folder that all servers of the cluster share, for attempts and checkpoints. For executor=slurm and ray, "
        "which need it.",
    )
    shared_dir_on_nodes: Annotated[PurePosixPath, AfterValidator(_absolute)] | None = Field(
        None, description="Path of shared_dir on the servers of the cluster. Default: the same path."
    )
    node_python: str = Field(
        "python3",
        min_length=1,
        max_length=4096,
        pattern=r"^\S+$",
        description="Python 3.11 or newer on the servers of the cluster, as a command or a path. It needs no packages.",
    )
    engine_poll_s: Seconds = between(
        1.0,
        0.1,
        60.0,
        "Time between two polls of the cluster's engine. One call to a Slurm of 1,000 jobs takes less than half a second.",
    )
