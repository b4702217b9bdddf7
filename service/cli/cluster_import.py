"""``sooner cluster import``: a cluster file from what a scheduler knows about its servers."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import printable
from service.domain.counts import count_of


def import_command(
    slurm: Annotated[bool, typer.Option("--slurm", help="Ask the Slurm of this machine: sinfo and scontrol.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="File to write. Default: standard output.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Only nodes of this partition.")] = None,
) -> None:
    """Write a cluster file (sooner.cluster/1) with the servers of a Slurm: GPUs, types, and racks from its topology."""
    from service.config.slurm_cluster import cluster_of_slurm
    from service.slurm.cluster import Slurm
    from service.slurm.commands import SlurmError

    if not slurm:
        fail("name the source: --slurm")
    found = Slurm()
    try:
        nodes, racks, config = found.nodes(), found.racks(), found.config()
        partitions = sorted(each.name for each in found.partitions())
    except SlurmError as error:
        fail(str(error), EXIT_FAILED)
    if partition is not None and partition not in partitions:
        fail(f"--partition: Slurm has no partition {partition!r}; its partitions: {', '.join(partitions)}")
    made = cluster_of_slurm(config.get("ClusterName", "slurm"), nodes, racks, partition)
    if not made.servers:
        fail("Slurm knows no node with GPUs of one type", EXIT_FAILED)
    for sentence in made.warnings:
        typer.echo(printable(f"warning: {sentence}"), err=True)
    for sentence in made.left_out:
        typer.echo(printable(f"left out: {sentence}"), err=True)
    if out is None:
        typer.echo(made.text, nl=False)
        return
    try:
        out.write_text(made.text, encoding="utf-8")
    except OSError as error:
        fail(f"{out}: {error.strerror or error}")
    typer.echo(printable(f"wrote {count_of(made.servers, 'server')} to {out}"), err=True)
