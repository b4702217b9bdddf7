"""``sooner model ...``: what was trained, and an operator's wish to train or promote."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED, fail
from service.cli.job_tables import amount, when
from service.cli.options import seconds_option
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    pause,
    print_json,
    print_result,
    printable,
    show,
    show_rows,
)
from service.client import Client

if TYPE_CHECKING:
    from service.wire.predictions import (
        BucketDocument,
        HeadDocument,
        ModelDocument,
        PredictorDocument,
        TrainingRunDocument,
    )


TRAIN_POLL_S = 0.5

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model's id.")]

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


class Served(NamedTuple):
    """One line of ``sooner model serving``."""

    head: HeadDocument
    bucket: BucketDocument


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


SERVED: Table[Served] = Table(
    columns=(
        Column("UNIT", lambda served: served.head["unit"]),
        Column("PAST_RUNS", lambda served: served.bucket["past_runs"]),
        Column("TRUST", lambda served: served.bucket["trust"]),
        Column("DISTRIBUTION", lambda served: served.bucket["distribution"]),
        Column("POINT", lambda served: served.bucket["point"]),
        Column("JOBS", lambda served: amount(served.bucket["jobs"]), right=True),
        Column("COVERAGE_80", lambda served: _share(served.bucket["coverage_80"]), right=True),
        Column("CONCORDANCE", lambda served: _share(served.bucket["concordance"]), right=True),
        Column("REASON", lambda served: served.bucket["reason"], long=True),
    ),
    key=lambda served: f"{served.head['unit']}/{served.bucket['past_runs']}",
    hidden=(
        Column("KNOWN_JOBS", lambda served: amount(served.head["known_jobs"]), right=True),
        Column("DRIFTING", lambda served: "yes" if served.head["drifting"] else "no"),
        Column("LOG_ERROR", lambda served: f"{served.head['recent_log_error']:.2f}", right=True),
    ),
)


def list_command(how: Style) -> None:
    """All models, newest first."""
    with connect() as client:
        show_rows(MODELS, client.models, how)


def show_command(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """One model with its metrics."""
    with connect() as client:
        found = client.model(model)
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
    """Who predicts now for jobs that were seen so often before, how well, and how far that is trusted."""
    with connect() as client:
        show(SERVED, lambda: buckets_answer(client.predictor()), how)


def train_command(
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the new model and show it.")] = False,
    timeout_s: Annotated[float, seconds_option("--timeout-s", "Wait at most this long.")] = 900.0,
    as_json: JsonFlag = False,
) -> None:
    """Train the models now, from all jobs that have ended. A better one becomes the champion by itself."""
    with connect() as client:
        run = client.train()
        if not wait:
            document = {"schema": "sooner.training/1", "training_run": run}
            print_result(document, f"training run {run} started", as_json)
            return
        typer.echo(f"training run {run} started", err=True)
        ended = wait_for_training(client, run, timeout_s)
        if ended is None:
            fail(f"training run {run} is still under way after {timeout_s:g} s", EXIT_FAILED)
        typer.echo(printable(f"training run {run}: {ended['outcome']}: {ended['detail']}"), err=True)
        if ended["outcome"] not in ("promoted", "not_promoted"):
            raise typer.Exit(EXIT_FAILED)
        show_rows(MODELS, lambda: client.models()[:1], Style(as_json))


def wait_for_training(client: Client, run: int, timeout_s: float) -> TrainingRunDocument | None:
    """How the training ended; None if it has not in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = client.training_run(run)
        if found["outcome"] is not None:
            return found
        if time.monotonic() >= deadline_s:
            return None
        pause(TRAIN_POLL_S)


def promote_command(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Let this model predict new jobs from the next cycle on."""
    with connect() as client:
        champion = client.promote(model)
    document = {"schema": "sooner.promotion/1", "champion": champion}
    print_result(document, printable(f"{champion} is the champion"), as_json)
