"""``sooner sim what-if``: other policies or other servers, on the service's own past or on its queue as it is."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.options import OptionError
from service.cli.fail import EXIT_FAILED, fail, settings_or_fail
from service.cli.options import DatabaseOption, DataDirOption, NetworkOption, SeedOption
from service.cli.output import Column, JsonFlag, print_json, print_table, printable
from service.cli.past import SinceOption, UntilOption, own_database, window
from service.cli.replay import read_snapshot
from service.cli.result_table import print_results
from service.cli.sim import run_all
from service.cli.sim_options import (
    OptionOption,
    PoliciesOption,
    WorkersOption,
    make_plans,
    names_in,
)
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.settings import Settings, SettingsError
from service.domain.counts import count_of
from service.domain.duration import words_of
from service.forecast.forecast import ForecastOptions, NoForecast
from service.forecast.whatif import Outlook, Outlooks, outlooks
from service.sim.workloads.files import WorkloadError
from service.simulations.present import JOBS_MAX, candidates_of, outlook_report
from service.simulations.request import (
    CURRENT,
    NO_SHADOW,
    RECORDED,
    SAMPLES,
    SHADOW,
    Window,
    current_plan,
    machines_of,
    more_servers,
    shadow_plan,
)
from service.simulations.runs import Finished, Plan
from service.simulations.words import held_notes, left_out_notes, nothing_to_run

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from service.db.session import Database
    from service.history.workload import OwnHistory

_JOBS_SHOWN = 40


def what_if_command(
    policies: PoliciesOption,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot",
            dir_okay=False,
            help="File that `sooner sim snapshot` wrote: simulate sampled futures from it.",
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            metavar="+N|FILE",
            help="+N: add N servers like the last one. FILE: use the servers of this cluster file.",
        ),
    ] = None,
    predictor: Annotated[
        str,
        typer.Option(
            "--predictor",
            help="recorded (the service's predictions at the time), oracle, noisy:SIGMA, adversarial, trained or none.",
        ),
    ] = RECORDED,
    option: OptionOption = None,
    preemption: Annotated[
        str | None,
        typer.Option("--preemption", help="never, guided or always, for all policies. Default: each policy's default."),
    ] = None,
    network: NetworkOption = "reserved",
    samples: Annotated[
        int, typer.Option("--samples", min=5, max=1000, help="With --snapshot: number of sampled futures.")
    ] = SAMPLES,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate policies on the service's past jobs, beside the actual schedule; or, with --snapshot, on a saved queue.

    `current` stands for the active policy of the settings, and `shadow` for the shadow policy. The past jobs are read
    from the service's database; the service may be running.
    """
    ours = settings_or_fail({"database_url": database_url, "data_dir": data_dir})
    if snapshot is not None:
        if since is not None or until is not None or servers is not None:
            fail("--snapshot cannot be combined with --since, --until or --servers")
        _from_now_on(snapshot, policies, option, preemption, ForecastOptions(samples, JOBS_MAX, seed), ours, as_json)
        return
    when = window(since, until)
    plans = _plans(policies, option, preemption, predictor, ours)
    past_under(
        plans,
        when,
        own_database(database_url, data_dir),
        servers=servers,
        network=network,
        seed=seed,
        workers=workers,
        as_json=as_json,
    )


def past_under(
    plans: Sequence[Plan],
    when: Window,
    own: "AbstractContextManager[tuple[Settings, Database]]",
    *,
    servers: str | None = None,
    network: str = "reserved",
    seed: int = 0,
    workers: int | None = None,
    with_workers: bool = True,
    as_json: bool = False,
) -> None:
    """Simulate the service's past of the window under each plan, and print the results beside the real outcome."""
    from service.simulations.past import prepare_past, read_past

    with own as (settings, database):
        history, present, _ = read_past(database, settings, when, carry=True)
    if not history.jobs:
        fail(nothing_to_run(history), EXIT_FAILED)
    machines = _machines(present, servers)
    try:
        past = prepare_past(history, present, machines, settings, network, seed)
    except WorkloadError as error:
        fail(str(error))
    finished = run_all(past.setting, past.as_recorded(plans), workers, with_workers=with_workers)
    if as_json:
        print_json(past.report([each.result for each in finished]))
        return
    typer.echo(_opening(history, machines), err=True)
    for note in [*left_out_notes(history.left_out), *held_notes(history)]:
        typer.echo(note, err=True)
    print_results([Finished(past.actual, None), *finished])


def _plans(
    policies: str, option: list[str] | None, preemption: str | None, predictor: str, settings: Settings
) -> list[Plan]:
    """The plans in the order of the names, ``current`` and ``shadow`` with the settings' policies."""
    names = names_in("--policies", policies)
    others = [name for name in names if name not in (CURRENT, SHADOW)]
    made = (
        {plan.label: plan for plan in make_plans(",".join(others), predictor, option, preemption, None)}
        if others
        else {}
    )
    if CURRENT in names:
        made[CURRENT] = current_plan(settings, predictor)
    if SHADOW in names:
        made[SHADOW] = _shadow_plan(settings, predictor)
    return [made[name] for name in names]


def _shadow_plan(settings: Settings, predictor: str) -> Plan:
    try:
        found = shadow_plan(settings, predictor)
    except SettingsError as error:
        fail(str(error))
    if found is None:
        fail(f"--policies: {NO_SHADOW}")
    return found


def _machines(present: Cluster, servers: str | None) -> Cluster:
    if servers is None:
        return present
    try:
        if more_servers(servers) is not None:
            return machines_of(present, servers)
        if servers.startswith("+") and not Path(servers).exists():
            fail(f"--servers {servers!r} is neither +N with N from 0 to 99999 nor a cluster file")
        return replace(load_cluster(Path(servers)), gangs=present.gangs)
    except ClusterFileError as error:
        fail(str(error))


def _opening(history: "OwnHistory", machines: Cluster) -> str:
    start = datetime.fromtimestamp(history.start_s, UTC).isoformat(sep=" ", timespec="seconds")
    carried = sum(job.carried for job in history.jobs)
    before = f", {carried} of them submitted earlier" if carried else ""
    servers, gpus = count_of(len(machines.servers), "server"), count_of(machines.gpus, "GPU")
    return f"{count_of(len(history.jobs))} from {start}{before}; {servers} with {gpus}"


# The present.


def _from_now_on(
    file: Path,
    policies: str,
    option: list[str] | None,
    preemption: str | None,
    options: ForecastOptions,
    settings: Settings,
    as_json: bool,
) -> None:
    recorded = read_snapshot(file)
    others = [name for name in names_in("--policies", policies) if name != CURRENT]
    plans = _plans(",".join(others), option, preemption, "none", settings) if others else []
    try:
        found = outlooks(recorded.world, candidates_of(recorded, plans), options)
    except OptionError as error:
        fail(f"{file}: {error}")
    except NoForecast as error:
        fail(f"{file}: {error}", EXIT_FAILED)
    jobs = {job.id: job for job in recorded.world.jobs}
    if as_json:
        print_json(outlook_report(recorded.cycle, recorded.policy, found))
        return
    typer.echo(
        printable(f"cycle {recorded.cycle}, {found.unfinished} unfinished jobs, current policy: {recorded.policy}"),
        err=True,
    )
    print_table(_policy_columns(found), found.outlooks)
    typer.echo("")
    columns = [
        Column[JobId]("JOB", str, right=True),
        Column("NAME", lambda job: jobs[job].spec.name, long=True),
        Column("GPUS", lambda job: str(jobs[job].spec.gpus), right=True),
        *(Column(f"END {each.label}", partial(_end, found.now_s, each), right=True) for each in found.outlooks),
    ]
    print_table(columns, found.jobs[:_JOBS_SHOWN])
    if len(found.jobs) > _JOBS_SHOWN:
        typer.echo(f"... and {len(found.jobs) - _JOBS_SHOWN} more jobs; --json has all", err=True)


def _end(now_s: float, outlook: Outlook, job: JobId) -> str:
    """When a job ends under a policy: p50 [p10-p90], from now."""
    end = outlook.finishes[job]
    p10, p50, p90 = (_ahead(at_s - now_s) for at_s in (end.p10_s, end.p50_s, end.p90_s))
    return f"{p50} [{p10}-{p90}]"


def _ahead(seconds: float) -> str:
    return words_of(max(0.0, seconds))


def _policy_columns(found: Outlooks) -> list[Column[Outlook]]:
    first = found.outlooks[0]
    return [
        Column("POLICY", lambda each: each.label),
        Column("MEAN JCT", lambda each: _ahead(each.mean_jct_s), right=True),
        Column(
            "P10-P90",
            lambda each: f"{_ahead(each.mean_jct_spread_s.p10_s)}-{_ahead(each.mean_jct_spread_s.p90_s)}",
            right=True,
        ),
        Column("AGAINST CURRENT", lambda each: f"{each.mean_jct_s / first.mean_jct_s - 1.0:+.1%}", right=True),
        Column(
            "BETTER IN",
            lambda each: "" if each is first else f"{each.better_in} of {count_of(found.samples, 'future')}",
            right=True,
        ),
    ]
