"""How jobs are submitted to Slurm."""

import shlex
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from service.config.kinds import Seconds, between

_OWN: Final = (
    "account", "array", "begin", "clusters", "comment", "dependency", "export", "gid", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "hold", "job-name", "no-requeue", "nodelist", "nodes", "ntasks",
    "ntasks-per-node", "parsable", "partition", "requeue", "test-only", "uid", "wait", "wrap",
)  # fmt: skip
"""Options that the service sets itself, or that would change what a submission is."""
_ARGUMENTS_MAX: Final = 50


def _words(value: object) -> object:
    """Words as a shell splits them, from the environment; a list from a file stays what it is."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


def _options(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if len(arguments) > _ARGUMENTS_MAX:
        raise ValueError(f"{len(arguments)} arguments; at most {_ARGUMENTS_MAX} are allowed")
    for argument in arguments:
        name, _, _ = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name or any(character in argument for character in "\0\n"):
            raise ValueError(f"{argument!r} is not an option in one word, such as --qos=high")
        # sbatch takes an option by any beginning of its name that is unambiguous.
        own = next((option for option in _OWN if option.startswith(name)), None)
        if own is not None:
            raise ValueError(f"{argument!r}: the service sets --{own} itself")
    return arguments


Arguments = Annotated[tuple[str, ...], BeforeValidator(_words), AfterValidator(_options)]


class SlurmSettings(BaseModel):
    """What ``executor=slurm`` submits with."""

    slurm_partition: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.+-]+$",
        max_length=256,
        description="Partition whose nodes with GPUs are the cluster, and into which jobs are submitted. Default: Slurm's own.",
    )
    slurm_account: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.+-]+$",
        max_length=256,
        description="Account of the submitted jobs. Default: Slurm's own.",
    )
    slurm_extra_args: Arguments = Field(
        (),
        description="Further options of sbatch, each in one word: --qos=high --exclude=node7. They replace those of the service, "
        "for example --mem=0, except what the placement decides.",
    )
    slurm_uneven_gangs: bool = Field(
        False,
        description="Allow different numbers of GPUs on the nodes of a job, as heterogeneous jobs. Only Slurm's backfill starts "
        "those, every bf_interval (30 s by default), so the default is off.",
    )
    slurm_timeout_s: Seconds = between(
        20.0,
        1.0,
        600.0,
        "Timeout of a command of Slurm. Above Slurm's own MessageTimeout (10 s), so that its own error is seen first.",
    )
