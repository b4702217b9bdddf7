"""Why a job was predicted as it was: where the number comes from, what moved it, and past jobs to compare it with."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import Row

from policies.lifecycle import JobState
from policies.model.estimate import Unit
from predictor.explain import Contributions, Trust, history_basis, readable, trust_of
from predictor.recurrence import Level
from service.api.documents import PredictionDocument, instant, prediction_document

SIMILAR_MAX = 5


class ContributionDocument(BaseModel):
    """A feature, its value in words, and how many times longer (above 1) or shorter (below 1) it made the prediction."""

    feature: str
    words: str
    factor: float


class ContributionsDocument(BaseModel):
    """How a model came to its median, before calibration: ``total`` = ``history_median`` x ``usual_factor`` x every factor
    of ``top`` x ``others_factor``, in the prediction's unit."""

    model_version: str = Field(
        description="The model that is shown: XGBoost's; a forest that answered has none of its own."
    )
    history_median: float = Field(description="The median of the nearest past, from which the models start.")
    usual_factor: float = Field(description="What the model adds to every job.")
    top: list[ContributionDocument] = Field(description="The features that moved it most, strongest first.")
    others_factor: float
    total: float


class SimilarJobDocument(BaseModel):
    """A past job of the same user, project and name, or of the same user where there is none."""

    job_id: int
    name: str
    gpus: int
    state: JobState
    ended_at: datetime
    total: float | None = Field(description="In the prediction's unit; null for a job that did not report it.")
    link: str


class PredictionDetailsDocument(PredictionDocument):
    """A prediction and why it is what it is. Explained is the feature vector that was stored with it."""

    trust: Trust = Field(
        description="Who ranks the job: a model, the history of its group, or nothing but what it has had so far."
    )
    past_runs: int | None = Field(description="Runs of this program with as many GPUs that had ended. null: not known.")
    bucket: str | None = Field(description="Past runs as a class; intervals are calibrated in each class by itself.")
    level: Level | None = Field(description="The narrowest group that had a past.")
    contributions: ContributionsDocument | None
    contributions_reason: str | None = Field(description="Why there are no contributions; null where there are.")
    similar: list[SimilarJobDocument] = Field(
        description="Ended before it was predicted; nearest gang and newest first."
    )


def prediction_details(
    row: Row[Any], similar: Sequence[Row[Any]], contributions: Contributions | None
) -> PredictionDetailsDocument:
    """A whole row of ``predictions``, past jobs like its job, and what moved the model, where that can be said."""
    ground = history_basis(row.features) if readable(row.feature_schema, row.features) else None
    return PredictionDetailsDocument(
        **prediction_document(row).model_dump(),
        trust=trust_of(row.model_version, row.trusted),
        past_runs=ground.past_runs if ground is not None else None,
        bucket=ground.bucket if ground is not None else None,
        level=ground.level if ground is not None else None,
        contributions=None if contributions is None else ContributionsDocument(**asdict(contributions)),
        contributions_reason=None if contributions is not None else _no_contributions(row),
        similar=[_similar(each, Unit(row.unit)) for each in similar],
    )


def _no_contributions(row: Row[Any]) -> str:
    if not row.model_version:
        return "History alone was asked; no model moved it."
    if not readable(row.feature_schema, row.features):
        return "It was made from the features of another version of Sooner."
    return (
        f"Model {row.model_version.partition('/')[0]} is not on record any more, or has no part that can be explained."
    )


def _similar(row: Row[Any], unit: Unit) -> SimilarJobDocument:
    total = row.service_s if unit is Unit.SERVICE_S else row.iterations if row.reports_iterations else None
    return SimilarJobDocument(
        job_id=row.id,
        name=row.name,
        gpus=row.gpus,
        state=JobState(row.state),
        ended_at=instant(row.finished_at_s),
        total=total,
        link=f"/v1/jobs/{row.id}",
    )
