"""Predictions with their reasons, and the state of the predictor, as documents of :mod:`service.wire.predictions`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from policies.model.estimate import Unit
from predictor.explain import Contributions, history_basis, readable, trust_of
from predictor.serving import PredictorStatus
from service.api.documents import document, instant, prediction_values
from service.wire.predictions import (
    BucketDocument,
    HeadDocument,
    PredictionDetailsDocument,
    PredictorDocument,
    SimilarJobDocument,
)

SIMILAR_MAX = 5
WEIGHT_MIN = 0.005
"""Smaller weights are not shown."""


def prediction_details(
    row: Row[Any], similar: Sequence[Row[Any]], contributions: Contributions | None
) -> PredictionDetailsDocument:
    """A whole row of ``predictions``, past jobs like its job, and what moved the model, where that can be computed."""
    ground = history_basis(row.features) if readable(row.feature_schema, row.features) else None
    return document(
        PredictionDetailsDocument,
        row,
        **prediction_values(row),
        trust=trust_of(row.model_version, row.trusted),
        past_runs=ground.past_runs if ground is not None else None,
        bucket=ground.bucket if ground is not None else None,
        level=ground.level if ground is not None else None,
        contributions=None if contributions is None else asdict(contributions),
        contributions_reason=None if contributions is not None else _no_contributions(row),
        similar=[_similar(each, Unit(row.unit)) for each in similar],
    )


def _no_contributions(row: Row[Any]) -> str:
    if not row.model_version:
        return "No model took part in the prediction."
    if not readable(row.feature_schema, row.features):
        return "The prediction was made from the features of another version of Sooner."
    model = row.model_version.partition("/")[0]
    return f"Model {model} has been deleted, or none of its parts can be explained."


def _similar(row: Row[Any], unit: Unit) -> SimilarJobDocument:
    total = row.service_s if unit is Unit.SERVICE_S else row.iterations
    ended_at = instant(row.finished_at_s)
    return document(SimilarJobDocument, row, job_id=row.id, ended_at=ended_at, total=total, link=f"/v1/jobs/{row.id}")


def predictor_document(status: PredictorStatus) -> PredictorDocument:
    """The sources of the predictions of new jobs."""
    return PredictorDocument(
        model_version=status.model_version or None,
        heads=[_head(status, unit) for unit in status.buckets],
    )


def _head(status: PredictorStatus, unit: Unit) -> HeadDocument:
    buckets = [
        document(
            BucketDocument,
            each,
            past_runs=each.bucket,
            weights={name: share for name, share in each.weights.items() if share >= WEIGHT_MIN},
            coverage_80=each.coverage,
        )
        for each in status.buckets[unit]
    ]
    return HeadDocument(
        unit=unit,
        known_jobs=status.known_jobs[unit],
        drifting=status.drifting[unit],
        recent_log_error=status.recent_log_error[unit],
        buckets=buckets,
    )
