"""``sooner sim run|compare|bounds``: simulate a workload with the production engine.

Only what a simulation needs is imported: no web framework, no database, no machine learning.
"""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer

from service.cli.compare import Finished, Plan, Setting, compare
from service.cli.comparison_files import NoRasterizer, rasterizer, write_pngs, write_summaries
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import JsonFlag, print_json
from service.cli.sim_options import (
    InputOptions,
    OutOption,
    PoliciesOption,
    PolicyOption,
    PredictorOption,
    SimulationFlags,
    WorkersOption,
    check_file,
    make_folder,
    make_plans,
    policy_options,
    writing,
)
from service.cli.sim_tables import cell, end, print_results
from service.reports.comparison import comparison_html
from service.reports.comparison_charts import charts
from service.sim.drive import SimulationStuck
from service.sim.jobs import bounds_of, prepare
from service.sim.predictors import PredictorNameError, make_predictor
from service.sim.results import bounds_dict, comparison_dict
from service.sim.workloads.files import WorkloadError


def run_command(
    flags: SimulationFlags,
    policy: PolicyOption = "asrpt",
    predictor: PredictorOption = "oracle",
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under one policy."""
    plan = Plan(policy, policy, policy_options(policy, flags.option, flags.preemption), predictor, out)
    machines, jobs = flags.read()
    options = flags.options(machines)
    make_folder("--out", out)
    finished = run_all(Setting(jobs, machines, options), [plan], 1)
    if as_json:
        print_json(finished[0].result.to_dict())
    else:
        print_results(finished)
    end(finished)


def compare_command(
    flags: SimulationFlags,
    policies: PoliciesOption,
    predictor: PredictorOption = "oracle",
    predictors: Annotated[
        str | None,
        typer.Option("--predictors", help="Several predictors, separated by commas, each with every policy."),
    ] = None,
    workers: WorkersOption = None,
    out: OutOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write the comparison as one self-contained page.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", file_okay=False, help="Folder for each picture as PNG (needs sooner[png]).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under several policies, everything else being equal, in parallel processes.

    A policy may carry options of its own: asrpt:preemption=never.
    """
    plans = make_plans(policies, predictors or predictor, flags.option, flags.preemption, out)
    draw = html is not None or png is not None
    machines, jobs = flags.read()
    options = flags.options(machines, keep_spans=draw)
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
        print_json(comparison_dict(results))
    else:
        print_results(finished)
    end(finished)


def run_all(setting: Setting, plans: list[Plan], workers: int | None, *, with_workers: bool = True) -> list[Finished]:
    """Run, or end with one line that gives the reason. ``with_workers``: whether the command has ``--workers``."""
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
        advice = "; with fewer --workers less memory is needed" if with_workers else ", probably for lack of memory"
        fail(f"a worker process was killed{advice}", EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", EXIT_FAILED)


def bounds_command(flags: InputOptions, as_json: JsonFlag = False) -> None:
    """The lower bound on the mean JCT that no schedule of this workload on this cluster can beat."""
    machines, jobs = flags.read()
    try:
        bounds = bounds_of(prepare(jobs, machines, skip_invalid=flags.skip_invalid).jobs, machines)
    except WorkloadError as error:
        fail(str(error))
    document = bounds_dict(bounds)
    if as_json:
        print_json(document)
        return
    for key, value in document.items():
        typer.echo(f"{key:<26}{cell(value)}")
