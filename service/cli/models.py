"""``sooner model ...``: trained models, training and promotion by an operator, and the evaluation of models on a workload."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED, fail
from service.cli.job_tables import amount, when
from service.cli.options import (
    FirstOption,
    HtmlOption,
    SkipInvalidFlag,
    WorkloadOption,
    check_file,
    make_folder,
    report_skipped,
    seconds_option,
    writing,
)
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    pause,
    print_json,
    print_result,
    print_table,
    printable,
    show,
    show_rows,
    show_service,
)
from service.client import Client
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.wire.predictions import (
        BucketDocument,
        HeadDocument,
        ModelDocument,
        PredictorDocument,
        TrainingRunDocument,
    )


TRAIN_POLL_S = 0.5
CHUNKS_MAX = 1000

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model's id.")]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="a,b,c", help="Models to train, comma-separated. Default: all. Baselines are always scored."
    ),
]
ChunksOption = Annotated[
    int, typer.Option("--chunks", min=1, max=CHUNKS_MAX, help="Number of trainings during the test.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", file_okay=False, help="Folder for evaluation.json, predictions.csv and report.html."),
]

MODELS: Table[ModelDocument] = Table(
    columns=(
        Column("MODEL", lambda model: model["id"]),
        Column("STATE", lambda model: model["state"]),
        Column("CHAMPIONS", lambda model: model["kind"], long=True),
        Column("JOBS", lambda model: amount(model["rows"]), right=True),
        Column("TRAINED_UNTIL", lambda model: when(model["trained_until"])),
        Column("CREATED", lambda model: when(model["created_at"])),
    ),
    key=lambda model: model["id"],
    hidden=(
        Column("FEATURES", lambda model: model["feature_schema"]),
        Column("SHA256", lambda model: model["sha256"]),
        Column(
            "LIBRARIES",
            lambda model: " ".join(f"{name} {value}" for name, value in model["libraries"].items()),
            long=True,
        ),
    ),
    name="models",
)


WEIGHT_SHOWN_MIN = 0.05
"""The least weight that ``sooner model serving`` names."""


class Served(NamedTuple):
    """One line of ``sooner model serving``."""

    head: HeadDocument
    bucket: BucketDocument


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _weights(weights: Mapping[str, float]) -> str:
    """The experts with at least 5%, the largest weight first."""
    shown = sorted(((share, name) for name, share in weights.items() if share >= WEIGHT_SHOWN_MIN), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in shown)


SERVED: Table[Served] = Table(
    columns=(
        Column("UNIT", lambda served: served.head["unit"]),
        Column("PAST_RUNS", lambda served: served.bucket["past_runs"]),
        Column("JOBS", lambda served: amount(served.bucket["jobs"]), right=True),
        Column("COVERAGE_80", lambda served: _share(served.bucket["coverage_80"]), right=True),
        Column("WEIGHTS", lambda served: _weights(served.bucket["weights"]), long=True),
    ),
    key=lambda served: f"{served.head['unit']}/{served.bucket['past_runs']}",
    hidden=(
        Column("KNOWN_JOBS", lambda served: amount(served.head["known_jobs"]), right=True),
        Column("DRIFTING", lambda served: "yes" if served.head["drifting"] else "no"),
        Column("LOG_ERROR", lambda served: f"{served.head['recent_log_error']:.2f}", right=True),
    ),
)


def list_command(how: Style) -> None:
    """List all models, newest first."""
    show_service(MODELS, lambda client: client.models.list(), how)


def show_command(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Show one model with its metrics."""
    with connect() as client:
        found = client.models.show(model)
    if as_json:
        print_json(MODELS.answer([found]).document)
        return
    for column in (*MODELS.columns, *MODELS.hidden):
        typer.echo(printable(f"{column.header.lower():<14} {column.text(found)}"))
    typer.echo("metrics")
    typer.echo(json.dumps(found["metrics"], indent=2, ensure_ascii=True))


def buckets_answer(predictor: PredictorDocument) -> Answer[Served]:
    """Who predicts, bucket by bucket, as a table and as a document."""
    rows = [Served(head, bucket) for head in predictor["heads"] for bucket in head["buckets"]]
    return Answer(rows, {"schema": "sooner.predictor/1", "predictor": predictor})


def serving_command(how: Style) -> None:
    """Show which source predicts new jobs, by number of past runs, with its accuracy."""
    with connect() as client:
        show(SERVED, lambda: buckets_answer(client.predictions.predictor()), how)


def train_command(
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the new model and show it.")] = False,
    timeout_s: Annotated[float, seconds_option("--timeout-s", "Wait at most this long.")] = 900.0,
    as_json: JsonFlag = False,
) -> None:
    """Train the models now on all ended jobs. A better model is promoted automatically."""
    with connect() as client:
        run = client.models.train()
        if not wait:
            document = {"schema": "sooner.training/1", "training_run": run}
            print_result(document, f"training run {run} started", as_json)
            return
        typer.echo(f"training run {run} started", err=True)
        ended = wait_for_training(client, run, timeout_s)
        if ended is None:
            fail(f"training run {run} has not ended after {timeout_s:.15g} s", EXIT_FAILED)
        typer.echo(printable(f"training run {run}: {ended['outcome']}: {ended['detail']}"), err=True)
        if ended["outcome"] not in ("promoted", "not_promoted"):
            raise typer.Exit(EXIT_FAILED)
        show_rows(MODELS, lambda: client.models.list()[:1], Style(as_json))


def wait_for_training(client: Client, run: int, timeout_s: float) -> TrainingRunDocument | None:
    """How the training ended; None if it has not in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = client.models.training_run(run)
        if found["outcome"] is not None:
            return found
        if time.monotonic() >= deadline_s:
            return None
        pause(TRAIN_POLL_S)


def promote_command(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Make this model the champion. It predicts new jobs from the next cycle."""
    with connect() as client:
        champion = client.models.promote(model)
    document = {"schema": "sooner.promotion/1", "champion": champion}
    print_result(document, printable(f"{champion} is the champion"), as_json)


_SHOWN = (  # The header, the key of the document, and the format; "": a duration.
    ("MAE", "mae_s", ""),
    ("MEDIAN_APE", "median_ape", ".3f"),
    ("R2_LOG", "r2_log", ".3f"),
    ("WITHIN_2X", "within_2x", ".3f"),
    ("UNDER_4X", "under_4x", ".3f"),
    ("TAU", "kendall_tau", ".3f"),
    ("CONCORDANCE", "concordance", ".3f"),
    ("PINBALL", "pinball_log", ".4f"),
    ("COVERAGE_80", "coverage_80", ".3f"),
    ("FIT", "fit_s", ""),
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
    """Evaluate models on a workload: predict each of the last 40% of its jobs from what was known at its submission."""
    # Here and not above: the other commands of `sooner model` need neither numpy nor the tables of workloads.
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
        evaluation = evaluate(jobs, kinds, chunks=chunks, seed=seed, on_progress=_evaluation_progress())
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
        _print_scores(evaluation.document)


def _evaluation_progress() -> Any:
    """A line on the terminal, redrawn after each chunk; nothing where standard error is a file."""
    if not sys.stderr.isatty():
        return None
    return lambda done, rows: typer.echo(f"\rpredicted {done} of {rows} jobs", err=True, nl=done == rows)


def _print_scores(document: dict[str, Any]) -> None:
    """What is served first, then from the least pinball loss to the most."""
    models: dict[str, dict[str, Any]] = document["models"]
    names = sorted(models, key=lambda name: (name != "served", models[name]["pinball_log"], name))
    columns = [Column[str]("MODEL", lambda name: name)]
    columns += [Column[str](header, _score_cell(models, key, form), right=True) for header, key, form in _SHOWN]
    print_table(columns, names)
    typer.echo(f"{document['test_jobs']} test jobs of {document['workload']}; served: {document['served']}", err=True)


def _score_cell(models: dict[str, dict[str, Any]], key: str, form: str) -> Any:
    def text(name: str) -> str:
        value = models[name][key]
        if value is None:
            return "-"
        return format(value, form) if form else words_of(value)

    return text
