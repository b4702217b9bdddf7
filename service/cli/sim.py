"""``sooner sim run|compare|bounds``: simulate a workload with the production engine.

Only what a simulation needs is imported: no web framework, no database, no machine learning.
"""

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.options import OptionError
from policies.registry import make_policy
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import JsonFlag
from service.cli.workload import FirstOption, SkipInvalidFlag, report_skipped
from service.cluster_file import ClusterFileError, load_cluster
from service.sim.experiment import SimulationOptions, run
from service.sim.jobs import bounds_of, prepare
from service.sim.predictors import PredictorNameError
from service.sim.report import comparison_html
from service.sim.results import Result, Simulation, bounds_dict, comparison_dict, write_simulation
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload

app = typer.Typer(help="Simulate a workload with the production engine.", no_args_is_help=True)

_DEFAULTS = SimulationOptions()


def _finite(value: float | None) -> float | None:
    """Option callback: infinity and NaN pass a range check of the parser."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _seconds(flag: str, text: str) -> Any:
    return typer.Option(flag, min=0.0, callback=_finite, help=text)


WorkloadOption = Annotated[Path, typer.Option("--workload", help="Workload table (sooner.workload/1).")]
ClusterOption = Annotated[Path, typer.Option("--cluster", help="Cluster file (sooner.cluster/1).")]
PolicyOption = Annotated[str, typer.Option("--policy", help="Policy by name.")]
PoliciesOption = Annotated[str, typer.Option("--policies", help="Policies by name, separated by commas.")]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the policy; repeatable.")
]
PredictorOption = Annotated[str, typer.Option("--predictor", help="oracle, noisy:SIGMA, adversarial, trained or none.")]
PreemptionOption = Annotated[
    str | None, typer.Option("--preemption", help="never, guided or always; left out: the policy's own default.")
]
CheckpointOption = Annotated[float, _seconds("--checkpoint-s", "Seconds the GPUs stay held at a preemption.")]
RestartOption = Annotated[float, _seconds("--restart-s", "Seconds without progress at each start after the first.")]
PeriodOption = Annotated[
    float, _seconds("--checkpoint-period-s", "Seconds between checkpoints; a crash loses what follows the last one.")
]
NetworkOption = Annotated[str, typer.Option("--network", help="reserved: each GPU owns its share of the NIC.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", file_okay=False, help="Folder for result.json, jobs.csv and batsim_jobs.csv.")
]


HtmlOption = Annotated[
    Path | None, typer.Option("--html", dir_okay=False, help="Write the comparison as one self-contained page.")
]


@app.command("run")
def run_command(
    workload: WorkloadOption,
    cluster: ClusterOption,
    policy: PolicyOption = "asrpt",
    option: OptionOption = None,
    predictor: PredictorOption = "oracle",
    preemption: PreemptionOption = None,
    checkpoint_s: CheckpointOption = _DEFAULTS.checkpoint_s,
    restart_s: RestartOption = _DEFAULTS.restart_s,
    checkpoint_period_s: PeriodOption = 300.0,
    network: NetworkOption = "reserved",
    seed: SeedOption = _DEFAULTS.seed,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under one policy."""
    chosen = _policy(policy, option, preemption)
    _check_network(network)
    options = SimulationOptions(checkpoint_s, restart_s, checkpoint_period_s, seed=seed, skip_invalid=skip_invalid)
    machines, jobs = _inputs(cluster, workload, first, skip_invalid)
    _make_folder(out)
    simulation = _simulate(jobs, machines, chosen, predictor, options)
    if out is not None:
        _save(simulation, out, jobs.name)
    if as_json:
        typer.echo(json.dumps(simulation.result.to_dict(), allow_nan=False))
    else:
        _print_columns([simulation.result])
    _end([simulation.result])


@app.command("compare")
def compare_command(
    workload: WorkloadOption,
    cluster: ClusterOption,
    policies: PoliciesOption,
    option: OptionOption = None,
    predictor: PredictorOption = "oracle",
    preemption: PreemptionOption = None,
    checkpoint_s: CheckpointOption = _DEFAULTS.checkpoint_s,
    restart_s: RestartOption = _DEFAULTS.restart_s,
    checkpoint_period_s: PeriodOption = 300.0,
    network: NetworkOption = "reserved",
    seed: SeedOption = _DEFAULTS.seed,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    out: OutOption = None,
    html: HtmlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under several policies, everything else being equal."""
    names = [name.strip() for name in policies.split(",")]
    if len(set(names)) != len(names):
        fail(f"--policies: {policies!r} names a policy twice")
    chosen = [_policy(name, option, preemption) for name in names]
    _check_network(network)
    options = SimulationOptions(checkpoint_s, restart_s, checkpoint_period_s, seed=seed, skip_invalid=skip_invalid)
    machines, jobs = _inputs(cluster, workload, first, skip_invalid)
    _make_folder(out)
    results: list[Result] = []
    for each in chosen:
        simulation = _simulate(jobs, machines, each, predictor, options)
        results.append(simulation.result)
        if out is not None:
            _save(simulation, out / each.name, jobs.name)
    if html is not None:
        _write_page(html, comparison_html(results, jobs.name, machines.name))
    if as_json:
        typer.echo(json.dumps(comparison_dict(results), allow_nan=False))
    else:
        _print_columns(results)
    _end(results)


@app.command("bounds")
def bounds_command(
    workload: WorkloadOption,
    cluster: ClusterOption,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """The lower bound on the mean JCT that no schedule of this workload on this cluster can beat."""
    machines, jobs = _inputs(cluster, workload, first, skip_invalid)
    try:
        bounds = bounds_of(prepare(jobs, machines, skip_invalid=skip_invalid).jobs, machines)
    except WorkloadError as error:
        fail(str(error))
    document = bounds_dict(bounds)
    if as_json:
        typer.echo(json.dumps(document, allow_nan=False))
        return
    for key, value in document.items():
        typer.echo(f"{key:<26}{_cell(value)}")


def _inputs(cluster: Path, workload: Path, first: int | None, skip_invalid: bool) -> tuple[Cluster, Workload]:
    try:
        machines = load_cluster(cluster)
        jobs = read_workload(workload, first=first, skip_invalid=skip_invalid)
    except (ClusterFileError, WorkloadError) as error:
        fail(str(error))
    report_skipped(jobs)
    return machines, jobs


def _policy(name: str, options: list[str] | None, preemption: str | None) -> Policy[Any]:
    values: dict[str, str] = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            fail(f"--option {text!r} is not NAME=VALUE")
        if key in values:
            fail(f"--option {key} is given twice")
        values[key] = value
    if preemption is not None:
        if "preemption" in values:
            fail("--preemption and --option preemption=... are both given")
        values["preemption"] = preemption
    try:
        return make_policy(name, values)
    except OptionError as error:
        fail(str(error))


def _check_network(network: str) -> None:
    if network == "contended":
        fail("--network contended is not available in this version; use reserved")
    if network != "reserved":
        fail(f"--network {network!r} is unknown; use reserved")


def _simulate(
    workload: Workload, cluster: Cluster, policy: Policy[Any], predictor: str, options: SimulationOptions
) -> Simulation:
    started_s = time.perf_counter()
    on_progress = _progress_line(policy.name) if sys.stderr.isatty() else None
    try:
        simulation = run(workload, cluster, policy, predictor, options, on_progress)
    except PredictorNameError as error:
        fail(f"--predictor: {error}")
    except WorkloadError as error:
        fail(str(error))
    finally:
        if on_progress is not None:
            typer.echo("", err=True)
    result = replace(simulation.result, wall_s=round(time.perf_counter() - started_s, 3))
    return replace(simulation, result=result)


def _progress_line(name: str) -> Any:
    """A line on the terminal that counts the finished jobs, redrawn once for each percent."""
    shown = -1

    def show(finished: int, jobs: int) -> None:
        nonlocal shown
        percent = 100 * finished // jobs
        if percent != shown:
            shown = percent
            typer.echo(f"\r{name}: {percent:3d}% of {jobs} jobs", err=True, nl=False)

    return show


def _make_folder(out: Path | None) -> None:
    """Before the run: nobody wants to learn after an hour that the folder cannot be made."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"--out {out}: {error.strerror or error}")


def _save(simulation: Simulation, folder: Path, workload_name: str) -> None:
    try:
        write_simulation(simulation, folder, workload_name)
    except OSError as error:
        fail(f"{folder}: {error.strerror or error}", EXIT_FAILED)


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        fail(f"--html {path}: {error.strerror or error}", EXIT_FAILED)


def _print_columns(results: list[Result]) -> None:
    """One line a measure, one column a run."""
    documents = [result.to_dict() for result in results]
    for key in documents[0]:
        if key != "schema":
            typer.echo(f"{key:<24}" + "".join(f"{_cell(document[key]):>18}" for document in documents))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


def _end(results: list[Result]) -> None:
    """Exit code 1 if a run left jobs behind."""
    behind = [
        f"{result.policy}: {result.jobs - result.finished}" for result in results if result.finished < result.jobs
    ]
    if behind:
        fail(f"jobs that did not finish: {', '.join(behind)}", EXIT_FAILED)
