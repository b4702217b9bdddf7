"""``sooner workload export``: the service's own past as a workload table."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import DatabaseOption, DataDirOption
from service.cli.output import JsonFlag, print_json, printable
from service.cli.past import SinceOption, UntilOption, own_database, window
from service.cli.workload import OutOption
from service.config.cluster_export import write_cluster
from service.domain.counts import count_of
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.table import write_workload
from service.simulations.words import left_out_notes, nothing_to_run


def export_command(
    out: OutOption,
    since: SinceOption = None,
    until: UntilOption = None,
    carry: Annotated[
        bool,
        typer.Option(
            "--carry", help="Also export jobs that were unfinished at --since, with their remaining work, at second 0."
        ),
    ] = False,
    cluster_out: Annotated[
        Path | None, typer.Option("--cluster-out", dir_okay=False, help="Also write the servers to this cluster file.")
    ] = None,
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Export the service's ended jobs as a workload table, for example for `sooner sim compare`."""
    when = window(since, until)
    from service.simulations.past import read_past

    with own_database(database_url, data_dir) as (settings, database):
        history, cluster, _ = read_past(database, settings, when, carry=carry)
    notes = left_out_notes(history.left_out)
    if not history.jobs:
        fail(nothing_to_run(history), EXIT_FAILED)
    try:
        write_workload(history.workload, out)
        if cluster_out is not None:
            write_cluster(cluster, cluster_out)
    except WorkloadError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}")
    own_graphs = sum(job.own_graph for job in history.jobs)
    if own_graphs:
        notes.append(
            f"{count_of(own_graphs)} with their own graph are written without it: a table can hold only catalogue models"
        )
    carried = sum(job.carried for job in history.jobs)
    for note in notes:
        typer.echo(note, err=True)
    if as_json:
        print_json(
            {
                "schema": "sooner.workload.export/1",
                "start_s": history.start_s,
                "jobs": len(history.jobs),
                "carried": carried,
                "own_graphs": own_graphs,
                "left_out": dict(history.left_out),
            }
        )
    else:
        typer.echo(printable(f"wrote {count_of(len(history.jobs))} to {out}"), err=True)
