"""``sooner sim run|compare|bounds``: simulate a workload with the production engine.

Only what a simulation needs is imported: no web framework, no database, no machine learning.
"""

import json
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer

from service.cli.compare import Finished, Plan, Setting, compare
from service.cli.comparison_files import NoRasterizer, rasterizer, write_pngs, write_summaries
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import Column, JsonFlag, print_table
from service.cli.sim_options import (
    CheckpointOption,
    ClusterOption,
    HtmlOption,
    NetworkOption,
    OptionOption,
    OutOption,
    PeriodOption,
    PngOption,
    PoliciesOption,
    PolicyOption,
    PredictorOption,
    PredictorsOption,
    PreemptionOption,
    RestartOption,
    SeedOption,
    WorkersOption,
    WorkloadOption,
    inputs,
    make_folder,
    make_plans,
    policy_options,
)
from service.cli.workload import FirstOption, SkipInvalidFlag
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.jobs import bounds_of, prepare
from service.sim.predictors import PredictorNameError, make_predictor
from service.sim.report import comparison_html
from service.sim.report_charts import charts
from service.sim.results import Result, bounds_dict, comparison_dict
from service.sim.workloads.files import WorkloadError

app = typer.Typer(help="Simulate a workload with the production engine.", no_args_is_help=True)

_DEFAULTS = SimulationOptions()


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
    plan = Plan(policy, policy, policy_options(policy, option, preemption), predictor, out)
    options = SimulationOptions(
        checkpoint_s, restart_s, checkpoint_period_s, network=network, seed=seed, skip_invalid=skip_invalid
    )
    machines, jobs = inputs(cluster, workload, first, skip_invalid)
    make_folder("--out", out)
    result = _run_all(Setting(jobs, machines, options), [plan], 1)[0].result
    if as_json:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        _print_results([result])
    _end([result])


@app.command("compare")
def compare_command(
    workload: WorkloadOption,
    cluster: ClusterOption,
    policies: PoliciesOption,
    option: OptionOption = None,
    predictor: PredictorOption = "oracle",
    predictors: PredictorsOption = None,
    preemption: PreemptionOption = None,
    checkpoint_s: CheckpointOption = _DEFAULTS.checkpoint_s,
    restart_s: RestartOption = _DEFAULTS.restart_s,
    checkpoint_period_s: PeriodOption = 300.0,
    network: NetworkOption = "reserved",
    seed: SeedOption = _DEFAULTS.seed,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    workers: WorkersOption = None,
    out: OutOption = None,
    html: HtmlOption = None,
    png: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under several policies, everything else being equal, in parallel processes.

    A policy may carry options of its own: asrpt:preemption=never.
    """
    plans = make_plans(policies, predictors or predictor, option, preemption, out)
    draw = html is not None or png is not None
    options = SimulationOptions(
        checkpoint_s,
        restart_s,
        checkpoint_period_s,
        network=network,
        seed=seed,
        skip_invalid=skip_invalid,
        keep_spans=draw,
    )
    machines, jobs = inputs(cluster, workload, first, skip_invalid)
    make_folder("--out", out)
    make_folder("--png", png)
    if png is not None:
        try:
            rasterizer()
        except NoRasterizer as error:
            fail(f"--png: {error}")
    finished = _run_all(Setting(jobs, machines, options, draw), plans, workers)
    results = [each.result for each in finished]
    drawn = [each.figures for each in finished if each.figures is not None]
    if out is not None:
        with _writing("--out"):
            write_summaries(results, out)
    if html is not None:
        with _writing("--html"):
            html.write_text(comparison_html(drawn, jobs.name, machines), encoding="utf-8")
    if png is not None:
        with _writing("--png"):
            write_pngs(charts(drawn, machines), png)
    if as_json:
        typer.echo(json.dumps(comparison_dict(results), allow_nan=False))
    else:
        _print_results(results)
    _end(results)


def _run_all(setting: Setting, plans: list[Plan], workers: int | None) -> list[Finished]:
    """Run, or end with one line that says why not."""
    try:
        for plan in plans:
            # Before the first of them has run for an hour; the trained one has no parameter to be wrong.
            if plan.predictor != "trained":
                make_predictor(plan.predictor, (), setting.options.seed)
        return compare(setting, plans, workers)
    except PredictorNameError as error:
        fail(f"--predictor: {error}")
    except WorkloadError as error:
        fail(str(error))
    except SimulationStuck as error:
        fail(str(error), EXIT_FAILED)
    except BrokenProcessPool:
        fail("a worker process was killed; with fewer --workers less memory is needed", EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", EXIT_FAILED)


@contextmanager
def _writing(flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"{flag} {error.filename}: {error.strerror or error}", EXIT_FAILED)


@app.command("bounds")
def bounds_command(
    workload: WorkloadOption,
    cluster: ClusterOption,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """The lower bound on the mean JCT that no schedule of this workload on this cluster can beat."""
    machines, jobs = inputs(cluster, workload, first, skip_invalid)
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


_COLUMNS_MAX = 6
"""Runs that stand side by side; more are told one a line, by the measures that decide."""
_DECISIVE = (
    *("ratio_to_lower_bound", "mean_jct_s", "p99_jct_s", "mean_queueing_delay_s", "mean_slowdown"),
    *("utilization_ratio", "preemptions", "wasted_gpu_s"),
)


def _print_results(results: list[Result]) -> None:
    """One line a measure and one column a run, or the other way round where there are many runs."""
    documents = [result.to_dict() for result in results]
    if len(results) <= _COLUMNS_MAX:
        wide = max(18, *(2 + len(result.policy) for result in results))
        for key in documents[0]:
            if key != "schema":
                typer.echo(f"{key:<24}" + "".join(f"{_cell(document[key]):>{wide}}" for document in documents))
        return
    columns = [Column[dict[str, Any]](key, partial(_value, key)) for key in ("policy", "predictor")]
    columns += [Column(key, partial(_value, key), right=True) for key in _DECISIVE]
    print_table(columns, documents)


def _value(key: str, document: dict[str, Any]) -> str:
    return _cell(document[key])


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
