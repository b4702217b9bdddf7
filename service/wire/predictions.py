"""Predictions, forecasts, plans and models as the API answers them."""

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import JobState
from policies.model.estimate import Unit
from predictor.explain import Trust
from predictor.recurrence import Level
from service.wire.jobs import PredictionDocument
from service.wire.times import Time


class SpreadDocument(TypedDict):
    """Three quantiles of an instant over sampled futures."""

    p10: Time
    p50: Time
    p90: Time


class JobForecastDocument(TypedDict):
    """When a job will start and end, as seen at ``made_at``."""

    job_id: int
    made_at: Time
    start_at: Annotated[
        SpreadDocument | None, Field(description="null for a job that holds GPUs, or where 'reason' says why.")
    ]
    finish_at: Annotated[SpreadDocument | None, Field(description="null where 'reason' says why.")]
    samples: Annotated[int, Field(description="Number of sampled futures.")]
    source: Annotated[str, Field(description="Source of the job's possible totals, in words.")]
    reason: Annotated[str | None, Field(description="Why something is missing.")]


class ForecastsDocument(TypedDict):
    """The forecasts of one snapshot."""

    made_at: Time
    samples: int
    forecasts: list[JobForecastDocument]


class TallyDocument(TypedDict):
    """The scores of many forecasts."""

    forecasts: int
    jobs: int
    coverage_80: Annotated[
        float, Field(description="Share inside p10 to p90: 0.8 is ideal, more means too wide intervals.")
    ]
    median_error_s: Annotated[float, Field(description="p50 less actual: above 0 = the forecasts were too late.")]
    median_absolute_error_s: float
    median_relative_error: Annotated[
        float | None, Field(description="Of the absolute error over the horizon; null where nothing lay ahead.")
    ]
    mean_pinball_s: Annotated[float, Field(description="Mean pinball loss of the three quantiles, seconds.")]


class HorizonDocument(TallyDocument):
    """Forecasts that looked so far ahead: horizon_s_min <= p50 less made_at < horizon_s_max; null = no end on that side."""

    horizon_s_min: float | None
    horizon_s_max: float | None


class GangDocument(TallyDocument):
    """Forecasts of gangs of gpus_min to gpus_max GPUs, both included."""

    gpus_min: int
    gpus_max: int


class MilestoneAccuracyDocument(TypedDict):
    """The accuracy of the forecasts of one milestone. Classes without a forecast are left out."""

    all: Annotated[TallyDocument | None, Field(description="null where none is scored.")]
    by_horizon: list[HorizonDocument]
    by_gpus: list[GangDocument]


class AccuracyDocument(TypedDict):
    """The accuracy of the forecasts made since ``since`` (the newest ones where there are very many)."""

    since: Time
    forecasts: Annotated[int, Field(description="Number of scored forecasts.")]
    start: MilestoneAccuracyDocument
    finish: MilestoneAccuracyDocument


class EstimateDocument(TypedDict):
    """What would be predicted: 10 %, 50 % and 90 % points of the total, in ``unit``."""

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
    prediction: Annotated[EstimateDocument | None, Field(description="null where nothing is known of such jobs.")]
    placement: Annotated[
        list[PlacedDocument],
        Field(description="The best placement on the empty servers that take work; empty if they cannot hold the job."),
    ]
    iteration_s: Annotated[float | None, Field(description="Seconds an iteration there; null without a graph.")]
    fits_now: Annotated[bool, Field(description="Whether GPUs that are free now could hold it.")]
    start_at: SpreadDocument | None
    finish_at: SpreadDocument | None
    samples: int | None
    source: str | None
    reason: Annotated[str | None, Field(description="Why something is missing.")]


class PlansDocument(TypedDict):
    """The jobs of one body, planned together, in its order."""

    made_at: Time
    plans: list[PlanDocument]


class ContributionDocument(TypedDict):
    """A feature, its value in words, and how many times longer (above 1) or shorter (below 1) it made the prediction."""

    feature: str
    words: str
    factor: float


class ContributionsDocument(TypedDict):
    """How a model came to its median, before calibration: ``total`` = ``history_median`` x ``usual_factor`` x every factor
    of ``top`` x ``others_factor``, in the prediction's unit."""

    model_version: Annotated[
        str, Field(description="The model that is shown: XGBoost's; a forest that answered has none of its own.")
    ]
    history_median: Annotated[float, Field(description="The median of the nearest past, from which the models start.")]
    usual_factor: Annotated[float, Field(description="What the model adds to every job.")]
    top: Annotated[list[ContributionDocument], Field(description="The features that moved it most, strongest first.")]
    others_factor: float
    total: float


class SimilarJobDocument(TypedDict):
    """A past job of the same user, project and name, or of the same user where there is none."""

    job_id: int
    name: str
    gpus: int
    state: JobState
    ended_at: Time
    total: Annotated[
        float | None, Field(description="In the prediction's unit; null for a job that did not report it.")
    ]
    link: str


class PredictionDetailsDocument(PredictionDocument):
    """A prediction and why it is what it is. Explained is the feature vector that was stored with it."""

    trust: Annotated[
        Trust,
        Field(description="What ranks the job: a model, the history of its group, or its attained service."),
    ]
    past_runs: Annotated[
        int | None, Field(description="Runs of this program with as many GPUs that had ended. null: not known.")
    ]
    bucket: Annotated[
        str | None, Field(description="Past runs as a class; intervals are calibrated in each class by itself.")
    ]
    level: Annotated[Level | None, Field(description="The narrowest group that had a past.")]
    contributions: ContributionsDocument | None
    contributions_reason: Annotated[
        str | None, Field(description="Why there are no contributions; null where there are.")
    ]
    similar: Annotated[
        list[SimilarJobDocument], Field(description="Ended before it was predicted; nearest gang and newest first.")
    ]


class BucketDocument(TypedDict):
    """Jobs with this number of past runs: their champions, and what ranks them."""

    past_runs: str
    distribution: Annotated[str, Field(description="Champion of the distribution, by which jobs are ranked.")]
    point: Annotated[str, Field(description="Champion of the single best guess, which is shown to users.")]
    jobs: Annotated[
        int,
        Field(description="Scored jobs behind that choice, at most 2,000; those of the model's own test count too."),
    ]
    trust: Annotated[
        Trust,
        Field(description="model = the champions; history = the group's past runs; attained_service = no prediction."),
    ]
    reason: Annotated[str, Field(description='Why jobs are not ranked by a model; "" if they are.')]
    coverage_80: Annotated[
        float | None, Field(description="Share of the champions' newest 80% intervals that held; null under 50.")
    ]
    concordance: Annotated[
        float | None,
        Field(
            description="Share of pairs of the newest jobs that the champions put in the right order; null under 500 pairs."
        ),
    ]


class HeadDocument(TypedDict):
    """One of the two things that are predicted."""

    unit: Unit
    known_jobs: int
    drifting: Annotated[bool, Field(description="Errors have grown; a training is due.")]
    recent_log_error: Annotated[float, Field(description="Mean |ln(actual / predicted)| of the newest jobs.")]
    buckets: list[BucketDocument]


class PredictorDocument(TypedDict):
    """What predicts new jobs now. The trust level changes automatically."""

    model_version: Annotated[str | None, Field(description="null where history alone predicts.")]
    switches: Annotated[int, Field(description="Changes of the trust level on record.")]
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
    """The learnt speed of a recurring gang on a GPU type and a number of servers."""

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
    """A retraining that has been started."""

    training_run: int


class TrainingRunDocument(TypedDict):
    """A retraining. ``outcome`` is null while it is under way: promoted, not_promoted, too_little, timeout, failed, stopped
    or lost (the service died meanwhile)."""

    id: int
    started_at: Time
    ended_at: Time | None
    outcome: str | None
    detail: str


class PromotionDocument(TypedDict):
    """The model that serves from now on."""

    champion: str
