"""Predictions, forecasts, plans and models as the API answers them."""

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import JobState
from policies.model.estimate import Unit
from predictor.explain import Trust
from predictor.recurrence import Level
from service.wire.jobs import PredictionDocument
from service.wire.plans import JobPlanDocument
from service.wire.times import Time


class SpreadDocument(TypedDict):
    """Three quantiles of a time over sampled futures."""

    p10: Time
    p50: Time
    p90: Time


class JobForecastDocument(TypedDict):
    """When a job will start and end, as seen at ``made_at``."""

    job_id: int
    made_at: Time
    start_at: Annotated[
        SpreadDocument | None, Field(description="null for a job that holds GPUs, or for the cause in 'reason'.")
    ]
    finish_at: Annotated[SpreadDocument | None, Field(description="null for the cause in 'reason'.")]
    samples: Annotated[int, Field(description="Number of sampled futures.")]
    source: Annotated[str, Field(description="Source of the job's possible totals, in words.")]
    reason: Annotated[str | None, Field(description="Why a forecast is missing.")]


class ForecastsDocument(TypedDict):
    """The forecasts of one snapshot."""

    made_at: Time
    samples: int
    forecasts: list[JobForecastDocument]


class TallyDocument(TypedDict):
    """The scores of several forecasts."""

    forecasts: int
    jobs: int
    coverage_80: Annotated[
        float,
        Field(
            description="Share of actual times between p10 and p90: 0.8 is ideal; above it, the intervals are too wide."
        ),
    ]
    median_error_s: Annotated[
        float, Field(description="p50 minus the actual time. Above 0: the forecasts were too late.")
    ]
    median_absolute_error_s: float
    median_relative_error: Annotated[
        float | None,
        Field(description="Median of the absolute error divided by the horizon; null if all horizons were 0."),
    ]
    mean_pinball_s: Annotated[float, Field(description="Mean pinball loss of the three quantiles, seconds.")]
    mean_width_s: Annotated[
        float,
        Field(description="Mean of p90 minus p10, seconds: of two with the same coverage, the smaller is sharper."),
    ]


class HorizonDocument(TallyDocument):
    """Forecasts with horizon_s_min <= p50 - made_at < horizon_s_max; null = no limit."""

    horizon_s_min: float | None
    horizon_s_max: float | None


class GangDocument(TallyDocument):
    """Forecasts of gangs of gpus_min to gpus_max GPUs, both included."""

    gpus_min: int
    gpus_max: int


class MilestoneAccuracyDocument(TypedDict):
    """The accuracy of the forecasts of one milestone. Classes without forecasts are omitted."""

    all: Annotated[TallyDocument | None, Field(description="null if no forecast is scored.")]
    by_horizon: list[HorizonDocument]
    by_gpus: list[GangDocument]


class AccuracyDocument(TypedDict):
    """The accuracy of the newest forecasts made since `since`."""

    since: Time
    forecasts: Annotated[int, Field(description="Number of scored forecasts.")]
    start: MilestoneAccuracyDocument
    finish: MilestoneAccuracyDocument


class EstimateDocument(TypedDict):
    """A prediction of the total: its 10%, 50% and 90% points, in `unit`."""

    p10: float
    p50: float
    p90: float
    unit: Unit
    source: str
    model_version: str | None
    seconds_per_unit: float | None


class PlacedDocument(TypedDict):
    """GPUs on one server."""

    server: str
    gpus: int


class PlanDocument(TypedDict):
    """The plan of a job that would be submitted at ``made_at`` of its :class:`PlansDocument`."""

    name: str
    gpus: int
    prediction: Annotated[EstimateDocument | None, Field(description="null if there is no history to predict from.")]
    placement: Annotated[
        list[PlacedDocument],
        Field(description="The best placement on empty servers, down or drained servers excluded; empty if none fits."),
    ]
    iteration_s: Annotated[
        float | None, Field(description="Seconds per iteration at that placement; null without a graph.")
    ]
    plan: Annotated[
        JobPlanDocument | None, Field(description="What the job's training plan asks of the cluster; null without one.")
    ]
    fits_now: Annotated[bool, Field(description="Whether the free GPUs could hold the job now.")]
    placement_now: Annotated[
        list[PlacedDocument],
        Field(description="The placement on the GPUs that are free now; empty if they cannot hold the job."),
    ]
    start_at: SpreadDocument | None
    finish_at: SpreadDocument | None
    samples: int | None
    source: str | None
    reason: Annotated[str | None, Field(description="Why a forecast is missing.")]


class PlansDocument(TypedDict):
    """The jobs of one body, planned together, in its order."""

    made_at: Time
    plans: list[PlanDocument]


class ContributionDocument(TypedDict):
    """A feature, its value, and the factor by which it changed the prediction (above 1: longer)."""

    feature: str
    words: str
    factor: float


class ContributionsDocument(TypedDict):
    """The factors of a model's median before calibration, in the prediction's unit: `total` = `history_median` x `usual_factor`
    x all factors of `top` x `others_factor`.
    """

    model_version: Annotated[
        str, Field(description="The explained model. For a forest it is the XGBoost model of the same training.")
    ]
    history_median: Annotated[
        float, Field(description="Where the models start: the nearest median, or alike runs scaled to the arguments.")
    ]
    usual_factor: Annotated[float, Field(description="The model's constant factor for every job.")]
    top: Annotated[
        list[ContributionDocument], Field(description="The features with the largest effect, largest first.")
    ]
    others_factor: float
    total: float


class SimilarJobDocument(TypedDict):
    """A past job of the same user, project and name; if there is none, of the same user."""

    job_id: int
    name: str
    gpus: int
    state: JobState
    ended_at: Time
    total: Annotated[float | None, Field(description="In the prediction's unit; null if the job did not report it.")]
    link: str


class PredictionDetailsDocument(PredictionDocument):
    """A prediction and its explanation, computed from the feature vector that was stored with it."""

    trust: Annotated[
        Trust,
        Field(description="What ranks the job: a model, the history of its group, or its attained service."),
    ]
    past_runs: Annotated[
        int | None, Field(description="Ended runs of this program with as many GPUs; null if unknown.")
    ]
    bucket: Annotated[
        str | None,
        Field(description="Class of the number of past runs. Intervals are calibrated separately for each class."),
    ]
    level: Annotated[Level | None, Field(description="The narrowest group with past runs.")]
    contributions: ContributionsDocument | None
    contributions_reason: Annotated[str | None, Field(description="Why there are no contributions; null if there are.")]
    similar: Annotated[
        list[SimilarJobDocument],
        Field(description="Jobs that had ended before the prediction; closest gang size first, then newest."),
    ]


class CoverageDocument(TypedDict):
    """How often the actual total was at most a quantile."""

    level: float
    observed: Annotated[
        float,
        Field(description="Share of the jobs. Equal to `level`: calibrated; above it, the predictions are too long."),
    ]


class CalibrationDocument(TypedDict):
    """The calibration of the first predictions of the newest ended jobs."""

    jobs: int
    coverage: Annotated[list[CoverageDocument], Field(description="Ascending by level; empty without scored jobs.")]


class BucketDocument(TypedDict):
    """Jobs with this number of past runs, and the experts whose predictions are combined for them."""

    past_runs: str
    weights: Annotated[
        dict[str, float],
        Field(description="Weight of each expert in the median, from 0.5%: a kind of model, a baseline or the past."),
    ]
    jobs: Annotated[
        int, Field(description="Number of scored jobs behind the weights, including the model's test jobs.")
    ]
    coverage_80: Annotated[
        float | None,
        Field(description="Share of the newest 80% intervals that contained the truth; null with fewer than 50."),
    ]


class HeadDocument(TypedDict):
    """One of the two predicted quantities."""

    unit: Unit
    known_jobs: int
    drifting: Annotated[
        bool, Field(description="Whether the drift alarm is on: errors have grown, and a training is due.")
    ]
    recent_log_error: Annotated[float, Field(description="Mean |ln(actual / predicted)| of the newest jobs.")]
    buckets: list[BucketDocument]


class PredictorDocument(TypedDict):
    """The sources of the predictions of new jobs. They change automatically."""

    model_version: Annotated[str | None, Field(description="null if only history predicts.")]
    heads: list[HeadDocument]


class ModelDocument(TypedDict):
    """One trained model."""

    id: str
    kind: str
    state: str
    trained_until: Time
    rows: int
    feature_schema: str
    libraries: dict[str, Any]
    metrics: dict[str, Any]
    sha256: str
    created_at: Time


class ThroughputDocument(TypedDict):
    """The measured speed of a program on a GPU type and a number of servers."""

    user: str
    project: str
    name: str
    gpus: int
    gpu_type: str
    servers_spanned: int
    median_s_per_iteration: float
    count: int
    updated_at: Time


class TrainingDocument(TypedDict):
    """A started training."""

    training_run: int


class TrainingRunDocument(TypedDict):
    """A training. `outcome` is null while it runs, then promoted, not_promoted, too_little, timeout, failed, stopped or lost
    (the service died).
    """

    id: int
    started_at: Time
    ended_at: Time | None
    outcome: str | None
    detail: str


class PromotionDocument(TypedDict):
    """The new champion."""

    champion: str
