"""Predictions, models, the throughput table, and an operator's requests to train and promote."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Response
from sqlalchemy import Row

from policies.model.estimate import Estimate, Unit
from service.api.access import Caller
from service.api.changes import Change
from service.api.deps import Deps, Refused, ToLeader
from service.api.documents import document, prediction_document
from service.api.idempotency import Answer, Effect
from service.api.paging import INSTANT, NUMBER, SERIAL, TEXT, Page, Paging
from service.api.permissions import LIST_JOBS, OPERATE, READ
from service.api.prediction_documents import predictor_document
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes, found_or_404
from service.db import reads
from service.db.prediction_log import scored_predictions
from service.domain.calibration import LEVELS, coverages
from service.wire.base import TEXT_MAX
from service.wire.bodies import Id
from service.wire.jobs import PredictionDocument
from service.wire.predictions import (
    CalibrationDocument,
    CoverageDocument,
    ModelDocument,
    PredictorDocument,
    PromotionDocument,
    ThroughputDocument,
    TrainingDocument,
    TrainingRunDocument,
)

routes = Routes("learning")

CALIBRATED_MAX = 2_000
"""Newest ended jobs behind an answer on calibration: a row holds kilobytes, so these are read in a tenth of a second."""

ModelPath = Annotated[str, Path(min_length=1, max_length=TEXT_MAX)]


@routes.read("/predictions", LIST_JOBS, "List predictions, newest first")
def list_predictions(
    caller: Caller, dependencies: Deps, paging: Paging, job: Id | None = None
) -> Page[PredictionDocument]:
    """Of one job, or of all jobs that the caller may see. A prediction is scored when its job ends."""
    scope = f"predictions {job}"
    before = paging.position(scope, SERIAL)
    with dependencies.reading() as connection:
        rows = reads.predictions(connection, job, before, paging.limit + 1, caller)
    return paging.page(scope, rows, lambda row: (row.id,), prediction_document)


@routes.read("/predictions/calibration", READ, "Show how well predictions are calibrated", computes=True)
def show_calibration(dependencies: Deps) -> CalibrationDocument:
    """Of the first predictions of the newest ended jobs (at most 2,000). Jobs that did no work are left out."""
    rows = scored_predictions(dependencies.database, CALIBRATED_MAX)
    found = coverages([(_quantiles(row), row.actual) for row in rows])
    return CalibrationDocument(jobs=len(rows), coverage=[document(CoverageDocument, each) for each in found])


def _quantiles(row: Row[Any]) -> list[float]:
    estimate = Estimate(tuple(row.points), Unit(row.unit), row.source)
    return [estimate.quantile(level) for level in LEVELS]


@routes.read("/models", READ, "List models, newest first")
def list_models(dependencies: Deps, paging: Paging) -> Page[ModelDocument]:
    """Candidates, the champion, and retired ones."""
    before = paging.position("models", INSTANT, TEXT)
    with dependencies.reading() as connection:
        rows = reads.models(connection, before, paging.limit + 1)
    return paging.page("models", rows, lambda row: (row.created_at_s, row.id), partial(document, ModelDocument))


@routes.read("/models/{model_id}", READ, "Show a model", 404)
def show_model(dependencies: Deps, model_id: ModelPath) -> ModelDocument:
    """With its metrics."""
    with dependencies.reading() as connection:
        return document(ModelDocument, found_or_404(reads.model(connection, model_id), f"model {model_id!r}"))


@routes.read("/predictor", READ, "Show which source predicts new jobs")
def show_predictor(leader: ToLeader) -> PredictorDocument:
    """The weights of the experts in each history bucket, and how well their intervals hold."""
    return predictor_document(leader.predictor_status())


@routes.change("POST", "/models/train", OPERATE, "Train the models now", TrainingDocument)
def train(leader: ToLeader, change: Change, body: NoBody = None) -> Response:
    """The training runs in a separate process. A better model is promoted automatically."""

    def prepare() -> Effect:
        try:
            run = leader.train()
        except Refused as refusal:
            raise Problem(ProblemType.CONFLICT, str(refusal)) from None
        answer = Answer(202, TrainingDocument(training_run=run))
        return lambda session: answer

    return change.make_outside(prepare)


@routes.read("/training-runs/{run}", READ, "Show a training", 404)
def show_training_run(dependencies: Deps, run: Annotated[Id, Path()]) -> TrainingRunDocument:
    """Its outcome, or null while it runs."""
    with dependencies.reading() as connection:
        row = found_or_404(reads.training_run(connection, run), f"training run {run}")
    return document(TrainingRunDocument, row)


@routes.change(
    "POST", "/models/{model_id}/promote", OPERATE, "Make a model the champion", PromotionDocument, 404, status=200
)
def promote(dependencies: Deps, leader: ToLeader, change: Change, model_id: ModelPath, body: NoBody = None) -> Response:
    """The model predicts new jobs from the next cycle. Promoting the current champion has no effect."""

    def prepare() -> Effect:
        with dependencies.reading() as connection:
            found_or_404(reads.model(connection, model_id), f"model {model_id!r}")
        try:
            leader.promote(model_id)
        except Refused as refusal:
            raise Problem(ProblemType.CONFLICT, str(refusal)) from None
        answer = Answer(200, PromotionDocument(champion=model_id))
        return lambda session: answer

    return change.make_outside(prepare)


@routes.read("/throughput", LIST_JOBS, "List measured throughput")
def list_throughput(caller: Caller, dependencies: Deps, paging: Paging) -> Page[ThroughputDocument]:
    """Median seconds per iteration by user, project, name, GPUs, GPU type and number of servers."""
    after = paging.position("throughput", TEXT, TEXT, TEXT, NUMBER, TEXT, NUMBER)
    with dependencies.reading() as connection:
        rows = reads.throughput(connection, after, paging.limit + 1, caller)
    return paging.page(
        "throughput",
        rows,
        lambda row: (row.user, row.project, row.name, row.gpus, row.gpu_type, row.servers_spanned),
        partial(document, ThroughputDocument),
    )
