"""``sooner sim run|compare|bounds``: simulate a workload with the production engine.

Only what a simulation needs is imported: no web framework, no database, no machine learning.
"""

import json
from concurrent.futures.process import BrokenProcessPool

import typer

from service.cli.compare import Finished, Plan, Setting, compare
from service.cli.comparison_files import NoRasterizer, rasterizer, write_pngs, write_summaries
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import JsonFlag
from service.cli.sim_options import (
    CheckpointOption,
    ClusterOption,
    CrashOption,
    DrainOption,
    FaultsOption,
    HtmlOption,
    LaunchLatencyOption,
    MtbfOption,
    MttrOption,
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
    ShapeOption,
    StopLatencyOption,
    WorkersOption,
    WorkloadOption,
    check_file,
    inputs,
    make_folder,
    make_plans,
    plan_faults,
    policy_options,
    writing,
)
from service.cli.sim_tables import cell, end, print_results
from service.cli.workload import FirstOption, SkipInvalidFlag
from service.reports.comparison import comparison_html
from service.reports.comparison_charts import charts
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.jobs import bounds_of, prepare
from service.sim.predictors import PredictorNameError, make_predictor
from service.sim.results import bounds_dict, comparison_dict
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
    launch_latency_s: LaunchLatencyOption = _DEFAULTS.launch_latency_s,
    stop_latency_s: StopLatencyOption = _DEFAULTS.stop_latency_s,
    mtbf_s: MtbfOption = None,
    mttr_s: MttrOption = None,
    failure_shape: ShapeOption = None,
    crash_mtbf_s: CrashOption = None,
    drain: DrainOption = None,
    faults: FaultsOption = None,
    seed: SeedOption = _DEFAULTS.seed,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under one policy."""
    plan = Plan(policy, policy, policy_options(policy, option, preemption), predictor, out)
    machines, jobs = inputs(cluster, workload, first, skip_invalid)
    options = SimulationOptions(
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        checkpoint_period_s=checkpoint_period_s,
        launch_latency_s=launch_latency_s,
        stop_latency_s=stop_latency_s,
        network=network,
        seed=seed,
        skip_invalid=skip_invalid,
        faults=plan_faults(
            machines, faults, mtbf_s=mtbf_s, mttr_s=mttr_s, shape=failure_shape, crash_mtbf_s=crash_mtbf_s, drain=drain
        ),
    )
    make_folder("--out", out)
    finished = run_all(Setting(jobs, machines, options), [plan], 1)
    if as_json:
        typer.echo(json.dumps(finished[0].result.to_dict(), allow_nan=False))
    else:
        print_results(finished)
    end(finished)


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
    launch_latency_s: LaunchLatencyOption = _DEFAULTS.launch_latency_s,
    stop_latency_s: StopLatencyOption = _DEFAULTS.stop_latency_s,
    mtbf_s: MtbfOption = None,
    mttr_s: MttrOption = None,
    failure_shape: ShapeOption = None,
    crash_mtbf_s: CrashOption = None,
    drain: DrainOption = None,
    faults: FaultsOption = None,
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
    machines, jobs = inputs(cluster, workload, first, skip_invalid)
    options = SimulationOptions(
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        checkpoint_period_s=checkpoint_period_s,
        launch_latency_s=launch_latency_s,
        stop_latency_s=stop_latency_s,
        network=network,
        seed=seed,
        skip_invalid=skip_invalid,
        keep_spans=draw,
        faults=plan_faults(
            machines, faults, mtbf_s=mtbf_s, mttr_s=mttr_s, shape=failure_shape, crash_mtbf_s=crash_mtbf_s, drain=drain
        ),
    )
    make_folder("--out", out)
    make_folder("--png", png)
    check_file("--html", html)
    if png is not None:
        try:
            rasterizer()
        except NoRasterizer as error:
            fail(f"--png: {error}")
    finished = run_all(Setting(jobs, machines, options, draw), plans, workers)
    results = [each.result for each in finished]
    drawn = [each.figures for each in finished if each.figures is not None]
    if out is not None:
        with writing("--out"):
            write_summaries(results, out)
    if html is not None:
        with writing("--html"):
            html.write_text(comparison_html(drawn, jobs.name, machines), encoding="utf-8")
    if png is not None:
        with writing("--png"):
            write_pngs(charts(drawn, machines), png)
    if as_json:
        typer.echo(json.dumps(comparison_dict(results), allow_nan=False))
    else:
        print_results(finished)
    end(finished)


def run_all(setting: Setting, plans: list[Plan], workers: int | None) -> list[Finished]:
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
        fail(" ".join((str(error), *getattr(error, "__notes__", ()))), EXIT_FAILED)
    except BrokenProcessPool:
        fail("a worker process was killed; with fewer --workers less memory is needed", EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", EXIT_FAILED)


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
        typer.echo(f"{key:<26}{cell(value)}")
