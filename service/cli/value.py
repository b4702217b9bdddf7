"""``sooner model value``: what predictions were worth to the service's past, or would have been to a workload."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.options import OptionError
from service.cli import completion
from service.cli.fail import EXIT_FAILED, fail, settings_or_fail
from service.cli.options import DatabaseOption, DataDirOption, FirstOption, NetworkOption, SeedOption
from service.cli.output import Column, JsonFlag, print_json, print_table, printable
from service.cli.past import SinceOption, UntilOption, own_database, window
from service.cli.sim import run_all
from service.cli.sim_options import InputOptions, WorkersOption
from service.config.settings import SettingsError
from service.domain.counts import count_of
from service.domain.duration import words_of
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.results import Result
from service.sim.workloads.files import WorkloadError
from service.simulations.request import CURRENT, VALUE_DAYS, VALUE_JOBS, Window, plan_of
from service.simulations.runs import Plan, Setting
from service.simulations.words import left_out_notes

Document = Mapping[str, Any]

_DAY_S = 86_400.0


def _hours(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 9.95 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if abs(value) >= 0.005 else "0%"


SCHEDULES: Sequence[Column[Document]] = (
    Column("PREDICTIONS", lambda row: row["name"]),
    Column("PREDICTED", lambda row: f"{row['jobs']:,}", right=True),
    Column("MEAN_JCT", lambda row: words_of(row["mean_jct_s"]), right=True),
    Column("OVER_ORACLE", lambda row: "-" if row["over_oracle"] is None else f"{row['over_oracle']:.3f}", right=True),
    Column("WAITING_HOURS", lambda row: _hours(row["waiting_hours"]), right=True),
    Column("GPU_HOURS_WASTED", lambda row: _hours(row["wasted_gpu_hours"]), right=True),
    Column("PREEMPTIONS", lambda row: f"{row['preemptions']:,}", right=True),
)
"""What each schedule cost; rows of :func:`schedule_rows`."""

PARTS: Sequence[Column[Document]] = (
    Column("TRUTH_FOR", lambda row: row["name"]),
    Column("JOBS", lambda row: f"{row['jobs']:,}", right=True),
    Column("GPU_HOURS", lambda row: _hours(row["gpu_hours"]), right=True),
    Column("MEAN_JCT", lambda row: words_of(row["mean_jct_s"]), right=True),
    Column("WAITING_HOURS", lambda row: _hours(row["waiting_hours"]), right=True),
    Column("GPU_HOURS_WASTED", lambda row: _hours(row["wasted_gpu_hours"]), right=True),
    Column("OF_THE_LOSS", lambda row: _ratio(row["recovered_ratio"]), right=True),
)
"""Where the loss to the oracle comes from: the rows ``parts`` of the report."""

ACCURACY: Sequence[Column[Document]] = (
    Column("PAST_RUNS", lambda row: row["past_runs"]),
    Column("JOBS", lambda row: f"{row['jobs']:,}", right=True),
    Column("GPU_HOURS", lambda row: _hours(row["gpu_hours"]), right=True),
    Column("WITHIN_2X", lambda row: _ratio(row["within_2x"]), right=True),
    Column("BELOW_1/4", lambda row: _ratio(row["below_quarter"]), right=True),
    Column("ABOVE_4X", lambda row: _ratio(row["above_4x"]), right=True),
    Column("TRUSTED", lambda row: _ratio(row["trusted"]), right=True),
)
"""How good the predictions were: the rows ``accuracy`` of the report."""

OVERLAP = (
    "A part is what the truth for these jobs alone would have changed; parts overlap and do not add up. Below 0%: chance,"
    " as between any two nearly equal schedules."
)


def value_command(
    since: SinceOption = None,
    until: UntilOption = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days", min=0.01, max=3650.0, help=f"Length of the period, instead of --since. Default: {VALUE_DAYS:g}."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=100_000, help="Replay at most so many jobs, the newest.")
    ] = VALUE_JOBS,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Policy, or POLICY:OPTION=VALUE. Default: that of the settings.",
            autocompletion=completion.policies,
        ),
    ] = CURRENT,
    workload: Annotated[
        Path | None,
        typer.Option(
            "--workload",
            dir_okay=False,
            help="Replay this table (sooner.workload/1) instead of the service's past; its jobs are predicted as they come.",
        ),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", dir_okay=False, help="With --workload: cluster file (sooner.cluster/1).")
    ] = None,
    first: FirstOption = None,
    workers: WorkersOption = None,
    network: NetworkOption = "reserved",
    seed: SeedOption = 0,
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay the service's past with what was predicted, with each expert's predictions, with the truth and without any.

    Shows what predictions were worth in this period and where the loss to the truth comes from. The jobs are read from
    the service's database; the service may be running.
    """
    from service.simulations.value import NoValue, stored_value, workload_value

    settings = settings_or_fail({"database_url": database_url, "data_dir": data_dir})
    try:
        plan = plan_of(policy, settings, "recorded", None)
    except (OptionError, SettingsError) as error:
        fail(f"--policy: {error}")
    options = SimulationOptions(
        checkpoint_s=settings.checkpoint_s, restart_s=settings.restart_s, network=network, seed=seed
    )

    def runner(setting: Setting, plans: list[Plan]) -> list[Result]:
        return [each.result for each in run_all(setting, plans, workers)]

    try:
        if workload is None:
            if cluster is not None or first is not None:
                fail("--cluster and --first need --workload; the service's past is replayed on its own servers")
            when = _window(since, until, days)
            with own_database(database_url, data_dir) as (_, database):
                found = stored_value(database, settings, when, jobs, plan, options, runner)
        else:
            if cluster is None:
                fail("--workload needs --cluster: a table lists no servers")
            if (since, until, days, database_url, data_dir) != (None,) * 5:
                fail("--workload cannot be combined with --since, --until, --days, --database-url or --data-dir")
            machines, table = InputOptions(workload, cluster, first).read()
            found = workload_value(table, machines, jobs, plan, options, runner)
    except WorkloadError as error:
        fail(str(error))
    except (NoValue, SimulationStuck) as error:
        fail(str(error), EXIT_FAILED)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _window(since: str | None, until: str | None, days: float | None) -> Window:
    if days is not None and since is not None:
        fail("--days and --since are both given")
    found = window(since, until)
    if since is not None:
        return found
    end_s = time.time() if found.until_s is None else found.until_s
    return Window(end_s - (VALUE_DAYS if days is None else days) * _DAY_S, found.until_s)


def schedule_rows(found: Document) -> list[Document]:
    """Rows of :data:`SCHEDULES`: without predictions, served, the truth, what happened, then the experts from the best on."""
    oracle_s = found["schedules"]["oracle"]["mean_jct_s"]
    predicted = {"none": 0, "oracle": found["jobs"], "actual": found["predicted"], "served": found["predicted"]}
    rows = [
        {"name": name, "jobs": predicted[name], **found["schedules"][name]}
        for name in ("none", "served", "oracle", "actual")
        if name in found["schedules"]
    ]
    return [
        {**row, "over_oracle": row["mean_jct_s"] / oracle_s if oracle_s > 0.0 else None}
        for row in (*rows, *found["experts"])
    ]


def worth_words(found: Document) -> str:
    """What the served predictions saved against none, in a sentence."""
    return f"Saved by the predictions, against none: {_saved(found['worth'], found['schedules']['none'])}."


def loss_words(found: Document) -> str:
    """What the truth would have saved on top, in a sentence."""
    return f"Saved by the truth, against the predictions: {_saved(found['loss'], found['schedules']['served'])}."


def _saved(saved: Document, before: Document) -> str:
    change = -saved["mean_jct_s"] / before["mean_jct_s"] if before["mean_jct_s"] > 0.0 else 0.0
    waited, gpu = _hours(saved["waiting_hours"]), _hours(saved["gpu_hours"])
    # Adding 0.0 takes the minus sign from a zero.
    return f"{waited} waiting hours and {gpu} GPU-hours; mean completion time {round(change, 3) + 0.0:+.1%}"


def _print(found: Document) -> None:
    typer.echo(printable(_opening(found)))
    for note in _notes(found):
        typer.echo(printable(note), err=True)
    typer.echo("")
    print_table(SCHEDULES, schedule_rows(found))
    typer.echo(f"\n{worth_words(found)}\n{loss_words(found)}\n")
    print_table(PARTS, found["parts"])
    typer.echo(f"\n{OVERLAP}\n")
    print_table(ACCURACY, found["accuracy"])


def _opening(found: Document) -> str:
    if found["workload"] is not None:
        where = f"of {found['workload']}"
    else:
        where = f"since {datetime.fromtimestamp(found['start_s'], UTC).isoformat(sep=' ', timespec='seconds')}"
    return (
        f"{count_of(found['jobs'])} {where}, {found['predicted']:,} of them predicted; policy {found['policy']} on"
        f" {count_of(found['servers'], 'server')} with {count_of(found['gpus'], 'GPU')}"
    )


def _notes(found: Document) -> list[str]:
    notes = left_out_notes(found["left_out"])
    if found["carried"]:
        notes.insert(0, f"{count_of(found['carried'])} submitted before the period, with what was left to do")
    if found["older_jobs"]:
        kept = found["jobs"] - found["carried"]
        notes.insert(0, f"left out {count_of(found['older_jobs'])}: older than the newest {kept:,} (--jobs)")
    if found["servers_down"]:
        notes.append(f"not used because they are down: {', '.join(found['servers_down'])}")
    return notes
