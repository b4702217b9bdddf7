"""``sooner model evaluate``: how wrong each model would have been on a workload, predicting only from what was known."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.fail import fail
from service.cli.output import Column, JsonFlag, print_json, print_table

CHUNKS_MAX = 1000

WorkloadOption = Annotated[Path, typer.Option("--workload", help="Workload table (sooner.workload/1).")]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="a,b,c", help="Models to train, by name; left out: all. Baselines are always scored."
    ),
]
ChunksOption = Annotated[
    int, typer.Option("--chunks", min=1, max=CHUNKS_MAX, help="How often the models are retrained in the test.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", file_okay=False, help="Folder for evaluation.json, predictions.csv and report.html."),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", dir_okay=False, help="Write numbers and pictures as one self-contained page.")
]
FirstOption = Annotated[int | None, typer.Option("--first", min=1, help="Take the first N rows of the file.")]
SkipInvalidFlag = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave out and count rows that break the table instead of ending there.")
]

_SHOWN = (
    ("MAE_S", "mae_s", ",.0f"),
    ("MEDIAN_APE", "median_ape", ".3f"),
    ("R2_LOG", "r2_log", ".3f"),
    ("WITHIN_2X", "within_2x", ".3f"),
    ("UNDER_4X", "under_4x", ".3f"),
    ("TAU", "kendall_tau", ".3f"),
    ("CONCORDANCE", "concordance", ".3f"),
    ("PINBALL", "pinball_log", ".4f"),
    ("COVERAGE_80", "coverage_80", ".3f"),
    ("FIT_S", "fit_s", ".2f"),
    ("PREDICT_MS", "predict_ms", ".3f"),
)


def evaluate_command(
    workload: WorkloadOption,
    models: ModelsOption = None,
    chunks: ChunksOption = 12,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal models.", min=0, max=2**31 - 1)] = 0,
    first: FirstOption = None,
    skip_invalid: SkipInvalidFlag = False,
    out: OutOption = None,
    html: HtmlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the last 40% of a workload, each job with what was known at its submission, and score it when it ends."""
    # Here and not above: the other commands of `sooner model` need neither numpy nor the tables of workloads.
    from service.cli.sim_options import check_file, make_folder, writing
    from service.cli.workload import report_skipped
    from service.reports.evaluation_files import write_evaluation, write_page
    from service.sim.evaluate import EvaluationError, evaluate
    from service.sim.workloads.files import WorkloadError
    from service.sim.workloads.table import read_workload

    kinds = None if models is None else [name.strip() for name in models.split(",")]
    try:
        jobs = read_workload(workload, first=first, skip_invalid=skip_invalid)
        report_skipped(jobs)
        make_folder("--out", out)
        check_file("--html", html)
        evaluation = evaluate(jobs, kinds, chunks=chunks, seed=seed, on_progress=_progress())
    except (WorkloadError, EvaluationError) as error:
        fail(str(error))
    if out is not None:
        with writing("--out"):
            write_evaluation(evaluation, out)
    if html is not None:
        with writing("--html"):
            write_page(evaluation, html)
    if as_json:
        print_json(evaluation.document)
    else:
        _print(evaluation.document)


def _progress() -> Any:
    """A line on the terminal, redrawn after each chunk; nothing where standard error is a file."""
    if not sys.stderr.isatty():
        return None
    return lambda done, rows: typer.echo(f"\rpredicted {done} of {rows} jobs", err=True, nl=done == rows)


def _print(document: dict[str, Any]) -> None:
    """The mix that would serve first, then from the least pinball loss to the most."""
    models: dict[str, dict[str, Any]] = document["models"]
    names = sorted(models, key=lambda name: (name != "served", models[name]["pinball_log"], name))
    columns = [Column[str]("MODEL", lambda name: name)]
    columns += [Column[str](header, _cell(models, key, form), right=True) for header, key, form in _SHOWN]
    print_table(columns, names)
    typer.echo(f"{document['test_jobs']} test jobs of {document['workload']}; served: {document['served']}", err=True)


def _cell(models: dict[str, dict[str, Any]], key: str, form: str) -> Any:
    def text(name: str) -> str:
        value = models[name][key]
        return "-" if value is None else format(value, form)

    return text
