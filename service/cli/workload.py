"""``sooner workload import|describe|generate``: workload tables from public traces or the seeded generator."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.fail import fail
from service.cli.options import FirstOption, HtmlOption, SkipInvalidFlag, report_skipped, writing
from service.cli.output import JsonFlag, print_json
from service.config.cluster_file import ClusterFileError, load_cluster
from service.domain.counts import count_of
from service.reports.workload import description_html, formatted
from service.sim.workloads.describe import describe, undefined
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import JOBS_MAX, PROGRAMS, USERS, generate
from service.sim.workloads.importers import IMPORTERS, import_trace
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload, write_workload

_ENDINGS = (".csv", ".csv.gz", ".parquet", ".json", ".json.gz")


def _known_ending(out: Path) -> Path:
    """Option callback: the ending says what is written, and another one would say something else than the content."""
    if not out.name.endswith(_ENDINGS):
        raise typer.BadParameter(f"{out} ends in none of {', '.join(_ENDINGS)}")
    return out


OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        help="File to write: .csv, .csv.gz, .parquet, or .json (for Batsim).",
        dir_okay=False,
        callback=_known_ending,
    ),
]


def _write(workload: Workload, out: Path) -> None:
    try:
        write_workload(workload, out)
    except WorkloadError as error:
        fail(str(error))
    typer.echo(f"wrote {count_of(len(workload.jobs))} to {out}", err=True)


def import_command(
    path: Annotated[Path, typer.Argument(help="The trace, plain or gzip (for pai: a folder of tables).")],
    out: OutOption,
    trace_format: Annotated[str, typer.Option("--format", help=f"One of {', '.join(sorted(IMPORTERS))}.")],
) -> None:
    """Convert a public trace into a workload table, sorted by submission. Rows that are not jobs are skipped and counted."""
    try:
        workload = import_trace(trace_format, path)
    except WorkloadError as error:
        fail(str(error))
    if not workload.jobs:
        reasons = "; ".join(
            f"{count_of(count, 'row')}: {reason}" for reason, count in workload.skipped_by_reason().items()
        )
        fail(
            f"{path}: contains no job{f' ({reasons})' if reasons else ' (it is empty)'}; check that its format is {trace_format}"
        )
    report_skipped(workload)
    _write(workload, out)


def describe_command(
    path: Annotated[Path, typer.Argument(help="A workload table.")],
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Cluster file; the load is computed for it.")
    ] = None,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    html: HtmlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Describe a workload: sizes, durations, users, recurrence, and the load on a cluster."""
    try:
        machines = load_cluster(cluster) if cluster is not None else None
        workload = read_workload(path, first=first, skip_invalid=skip_invalid)
    except (ClusterFileError, WorkloadError) as error:
        fail(str(error))
    report_skipped(workload)
    description = describe(workload, machines)
    if html is not None:
        with writing("--html"):
            html.write_text(description_html(workload, description, machines), encoding="utf-8")
    if as_json:
        print_json(description)
        return
    unknown = undefined(description)
    for key, value in description.items():
        typer.echo(f"{key:<30}{formatted(key, None if key in unknown else value)}")


def generate_command(
    out: OutOption,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=JOBS_MAX, help="Number of jobs.")],
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal workloads.")] = 0,
    families: Annotated[
        int, typer.Option("--families", min=1, max=100_000, help="Recurring programs at any one time.")
    ] = PROGRAMS,
    users: Annotated[int, typer.Option("--users", min=1, max=100_000, help="Number of users.")] = USERS,
    gpus: Annotated[
        int,
        typer.Option("--gpus", min=1, help="GPUs of the cluster to which --load refers. No gang exceeds half of them."),
    ] = 64,
    load: Annotated[
        float, typer.Option("--load", min=0.01, max=10.0, help="Share of those GPUs that the jobs request.")
    ] = 0.7,
    no_communication: Annotated[
        bool, typer.Option("--no-communication", help="Jobs name no model, so placement has no effect.")
    ] = False,
    steady: Annotated[
        bool, typer.Option("--steady", help="Submit at a constant rate, without a daily and weekly pattern.")
    ] = False,
) -> None:
    """Generate a synthetic workload of recurring training programs. Job ids begin with synthetic-."""
    workload = generate(
        *(seed, jobs),
        gpus=gpus,
        load=load,
        programs=families,
        users=users,
        communication=not no_communication,
        steady=steady,
    )
    _write(workload, out)
