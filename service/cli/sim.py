"""``sooner sim run|compare|bounds``: simulate a workload with the production engine, and print the results.

Only what a simulation needs is imported: no web framework, no database, no machine learning.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from service.cli.compare import Interrupted, compare, name_of
from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import check_file, make_folder, writing
from service.cli.output import JsonFlag, print_json
from service.cli.result_table import cell, label, print_results
from service.cli.sim_options import (
    InputOptions,
    OutOption,
    PoliciesOption,
    PolicyOption,
    PredictorOption,
    SeedsOption,
    SimulationFlags,
    WorkersOption,
    make_plans,
    parse_seeds,
    policy_options,
)
from service.domain.counts import count_of
from service.runtime.workers import WorkerLost
from service.sim.drive import SimulationStuck
from service.sim.jobs import bounds_of, prepare
from service.sim.predictors import PredictorNameError, make_predictor
from service.sim.results import bounds_dict, comparison_dict
from service.sim.workloads.files import WorkloadError
from service.simulations.kept import InUse
from service.simulations.runs import Finished, Plan, Setting
from service.simulations.sweep import Failed, Keeping

_FORESEEN = (SimulationStuck, WorkerLost, MemoryError)
"""Errors of a run that need no traceback."""
_INTERRUPTED = 130
_NAMED_MAX = 5
"""Unfinished jobs of a run that are named; the count covers all."""


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
    _end(finished)


def compare_command(
    flags: SimulationFlags,
    policies: PoliciesOption,
    predictor: PredictorOption = "oracle",
    predictors: Annotated[
        str | None,
        typer.Option("--predictors", help="Predictors, comma-separated. Every policy runs with every predictor."),
    ] = None,
    seeds: SeedsOption = None,
    workers: WorkersOption = None,
    out: OutOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Make all runs, also those that an earlier command finished in --out.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write a self-contained HTML report to this file.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", file_okay=False, help="Folder for the charts as PNG files (needs sooner[png])."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Simulate a workload under several policies in parallel, with everything else equal.

    Options after a policy's name apply to that policy only: asrpt:preemption=never. With --out, finished runs are kept:
    the same command makes only the runs that are missing, after Ctrl-C too. Pictures show the first of the --seeds.
    """
    wanted = parse_seeds(seeds)
    plans = make_plans(policies, predictors or predictor, flags.option, flags.preemption, out, wanted)
    draw = html is not None or png is not None
    machines, jobs = flags.read()
    options = flags.options(machines, keep_spans=draw)
    if wanted:
        options = replace(options, seed=wanted[0])
    make_folder("--out", out)
    make_folder("--png", png)
    check_file("--html", html)
    if png is not None:
        # What draws takes a third of the start of a single run.
        from service.cli.comparison_files import NoRasterizer, rasterizer

        try:
            rasterizer()
        except NoRasterizer as error:
            fail(f"--png: {error}")
    keeping = None if out is None else Keeping(out, again)
    setting = Setting(jobs, machines, options, draw)
    outcomes = _outcomes(setting, plans, workers, keeping, quiet=quiet)
    finished = [each for each in outcomes if isinstance(each, Finished)]
    failed = [each for each in outcomes if isinstance(each, Failed)]
    if not finished:
        _end_failed(failed, plans)
    _write(finished, setting, out, html, png)
    if as_json:
        print_json(comparison_dict([each.result for each in finished]))
    else:
        print_results(finished)
    if failed:
        _end_failed(failed, plans)
    _end(finished)


def _write(
    finished: Sequence[Finished], setting: Setting, out: Path | None, html: Path | None, png: Path | None
) -> None:
    """The files of the whole comparison."""
    results = [each.result for each in finished]
    if out is not None:
        from service.cli.comparison_files import write_summaries

        with writing("--out"):
            write_summaries(results, out)
    drawn = [each.figures for each in finished if each.figures is not None]
    if html is not None and drawn:
        from service.reports.comparison import comparison_html

        with writing("--html"):
            html.write_text(comparison_html(drawn, setting.workload.name, setting.cluster, results), encoding="utf-8")
    if png is not None and drawn:
        from service.cli.comparison_files import write_pngs
        from service.reports.comparison_charts import charts

        with writing("--png"):
            write_pngs(charts(drawn, setting.cluster), png)


def run_all(setting: Setting, plans: list[Plan], workers: int | None, *, with_workers: bool = True) -> list[Finished]:
    """Run, or end with one line that gives the reason. ``with_workers``: whether the command has ``--workers``."""
    outcomes = _outcomes(setting, plans, workers)
    failed = [each for each in outcomes if isinstance(each, Failed)]
    if failed:
        _end_failed(failed, plans, with_workers=with_workers)
    return [each for each in outcomes if isinstance(each, Finished)]


def _outcomes(
    setting: Setting, plans: list[Plan], workers: int | None, keeping: Keeping | None = None, *, quiet: bool = False
) -> list[Finished | Failed]:
    """What became of each run; ends the command with one line where no run can succeed, and at Ctrl-C."""
    try:
        for plan in plans:
            # Before the first of them has run for an hour; the trained one has no parameter to be wrong.
            if plan.predictor != "trained":
                make_predictor(plan.predictor, (), setting.options.seed)
        return compare(setting, plans, workers, keeping, quiet=quiet)
    except PredictorNameError as error:
        fail(f"--predictor: {error}")
    except WorkloadError as error:
        fail(str(error))
    except InUse:
        assert keeping is not None
        fail(f"--out {keeping.folder}: another command writes its results there", EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", EXIT_FAILED)
    except Interrupted as error:
        if len(plans) == 1:
            raise
        fail(_interrupted(error.made, len(plans), keeping), _INTERRUPTED)


def _interrupted(made: int, runs: int, keeping: Keeping | None) -> str:
    if keeping is None:
        return f"interrupted after {made} of {count_of(runs, 'run')}; none is kept (--out keeps them)"
    repeat = "repeat the command" if not keeping.again else "repeat the command without --again"
    return (
        f"interrupted: {made} of {count_of(runs, 'run')} are kept in {keeping.folder}; {repeat} to make only the others"
    )


def _end_failed(failed: Sequence[Failed], plans: Sequence[Plan], *, with_workers: bool = True) -> NoReturn:
    """Name the runs that failed, with their errors, and end the command."""
    for each in failed:
        if not isinstance(each.error, _FORESEEN):
            typer.echo(each.trace, err=True)
    lines = [f"{name_of(each.plan, plans)}: {_reason(each.error, with_workers=with_workers)}" for each in failed]
    if len(plans) > 1:
        lines.insert(0, f"{len(failed)} of {count_of(len(plans), 'run')} failed")
    fail("\n  ".join(lines), EXIT_FAILED)


def _reason(error: Exception, *, with_workers: bool) -> str:
    if isinstance(error, WorkerLost):
        return f"{error}{'; use fewer --workers' if with_workers else ''}"
    if isinstance(error, _FORESEEN) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def bounds_command(flags: InputOptions, as_json: JsonFlag = False) -> None:
    """Compute a lower bound on the mean JCT of every schedule of this workload on this cluster."""
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
        # Without jobs there are no means.
        typer.echo(f"{label(key):<26}{cell(key, value if bounds.jobs or not key.endswith('_s') else None)}")


def _end(runs: Sequence[Finished]) -> None:
    """Exit code 1 if a run left jobs behind; says which, and why."""
    behind = [_behind(run) for run in runs if run.unfinished]
    if behind:
        fail(f"jobs that did not finish: {'; '.join(behind)}", EXIT_FAILED)


def _behind(run: Finished) -> str:
    named = [f"{job.job_id} {job.reason}" for job in run.unfinished[:_NAMED_MAX]]
    if len(run.unfinished) > _NAMED_MAX:
        named.append("...")
    return f"{run.result.policy}: {len(run.unfinished)} ({', '.join(named)})"
