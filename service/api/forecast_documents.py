"""The documents of forecasts and plans. Never a lone number: quantiles, how many futures, and where the totals come from."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from service.api.documents import LATEST_S, instant
from service.domain.forecast_scores import Accuracy, Milestone, Tally
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.forecast.forecaster import PlannedJob


class SpreadDocument(BaseModel):
    """Three quantiles of an instant over sampled futures."""

    p10: datetime
    p50: datetime
    p90: datetime


class JobForecastDocument(BaseModel):
    """When a job will start and end, as seen at ``made_at``."""

    job_id: int
    made_at: datetime
    start_at: SpreadDocument | None = Field(description="null for a job that holds GPUs, or where 'reason' says why.")
    finish_at: SpreadDocument | None = Field(description="null where 'reason' says why.")
    samples: int = Field(description="Sampled futures behind it.")
    source: str = Field(description="Where the job's possible totals come from, in words.")
    reason: str | None = Field(description="Why something is missing.")


class ForecastsDocument(BaseModel):
    """The forecasts of one snapshot."""

    made_at: datetime
    samples: int
    forecasts: list[JobForecastDocument]


class TallyDocument(BaseModel):
    """The scores of many forecasts."""

    forecasts: int
    jobs: int
    coverage_80: float = Field(description="Share of them inside p10 to p90: 0.8 is right, more is too wide.")
    median_error_s: float = Field(description="p50 less actual: above 0 = told too late.")
    median_absolute_error_s: float
    median_relative_error: float | None = Field(
        description="Of the absolute error over the horizon; null where nothing lay ahead."
    )
    mean_pinball_s: float = Field(description="Mean pinball loss of the three quantiles, seconds.")


class HorizonDocument(TallyDocument):
    """Forecasts that looked so far ahead: horizon_s_min <= p50 less made_at < horizon_s_max; null = no end on that side."""

    horizon_s_min: float | None
    horizon_s_max: float | None


class GangDocument(TallyDocument):
    """Forecasts of gangs of gpus_min to gpus_max GPUs, both included."""

    gpus_min: int
    gpus_max: int


class MilestoneAccuracyDocument(BaseModel):
    """How right the forecasts of one milestone were. Classes without a forecast are left out."""

    all: TallyDocument | None = Field(description="null where none is scored.")
    by_horizon: list[HorizonDocument]
    by_gpus: list[GangDocument]


class AccuracyDocument(BaseModel):
    """How right the forecasts were that were made since ``since`` (the newest ones where there are very many)."""

    since: datetime
    forecasts: int = Field(description="Scored forecasts behind it.")
    start: MilestoneAccuracyDocument
    finish: MilestoneAccuracyDocument


class EstimateDocument(BaseModel):
    """What would be predicted: 10 %, 50 % and 90 % points of the total, in ``unit``."""

    p10: float
    p50: float
    p90: float
    unit: Unit
    source: str
    model_version: str | None
    seconds_per_unit: float | None


class PlacedDocument(BaseModel):
    """GPUs on one server."""

    server: str
    gpus: int


class PlanDocument(BaseModel):
    """What would become of a job that was submitted at ``made_at`` of its :class:`PlansDocument`."""

    name: str
    gpus: int
    prediction: EstimateDocument | None = Field(description="null where nothing is known of such jobs.")
    placement: list[PlacedDocument] = Field(
        description="The best one on the servers that take work, if nobody else were there; empty if they cannot hold it."
    )
    iteration_s: float | None = Field(description="Seconds an iteration there; null without a graph.")
    fits_now: bool = Field(description="Whether GPUs that are free now could hold it.")
    start_at: SpreadDocument | None
    finish_at: SpreadDocument | None
    samples: int | None
    source: str | None
    reason: str | None = Field(description="Why something is missing.")


class PlansDocument(BaseModel):
    """The jobs of one body, planned together, in its order."""

    made_at: datetime
    plans: list[PlanDocument]


def _spread_document(spread: Spread | None) -> SpreadDocument | None:
    if spread is None:
        return None
    p10, p50, p90 = (instant(min(at_s, LATEST_S)) for at_s in (spread.p10_s, spread.p50_s, spread.p90_s))
    return SpreadDocument(p10=p10, p50=p50, p90=p90)


def forecast_document(forecast: Forecast, job: JobForecast) -> JobForecastDocument:
    """One job of a forecast."""
    return JobForecastDocument(
        job_id=job.job,
        made_at=instant(forecast.now_s),
        start_at=_spread_document(job.start),
        finish_at=_spread_document(job.finish),
        samples=job.samples,
        source=job.source,
        reason=job.reason,
    )


def accuracy_document(since_s: float, found: Mapping[Milestone, Accuracy]) -> AccuracyDocument:
    """The accuracy of both milestones."""
    return AccuracyDocument(
        since=instant(max(0.0, since_s)),
        forecasts=sum(each.all.forecasts for each in found.values() if each.all is not None),
        start=_milestone_document(found[Milestone.START]),
        finish=_milestone_document(found[Milestone.FINISH]),
    )


def _milestone_document(found: Accuracy) -> MilestoneAccuracyDocument:
    return MilestoneAccuracyDocument(
        all=TallyDocument(**_tally(found.all)) if found.all is not None else None,
        by_horizon=[
            HorizonDocument(horizon_s_min=each.low, horizon_s_max=each.high, **_tally(each))
            for each in found.by_horizon
        ],
        by_gpus=[
            # Sizes are whole: below the next class's first means up to the one before it.
            GangDocument(gpus_min=int(each.low or 1), gpus_max=int(each.high or 2) - 1, **_tally(each))
            for each in found.by_gpus
        ],
    )


def _tally(found: Tally) -> dict[str, Any]:
    return {name: getattr(found, name) for name in TallyDocument.model_fields}


def plan_document(planned: PlannedJob, cluster: Cluster, failed: Sequence[int]) -> PlanDocument:
    """A planned job; ``failed`` are jobs in its ``after`` that have ended without success."""
    outlook = planned.outlook if not failed else None
    doomed = f"Job {failed[0]} in 'after' has not succeeded: this job would be cancelled at once." if failed else None
    best = planned.best
    return PlanDocument(
        name=planned.spec.name,
        gpus=planned.spec.gpus,
        prediction=_estimate_document(planned.estimate) if planned.estimate is not None else None,
        placement=[
            PlacedDocument(server=cluster.servers[share.server].name, gpus=share.gpus)
            for share in (best.placement.shares if best is not None else ())
        ],
        iteration_s=best.iteration_s if best is not None else None,
        fits_now=planned.fits_now,
        start_at=_spread_document(outlook.start) if outlook is not None else None,
        finish_at=_spread_document(outlook.finish) if outlook is not None else None,
        samples=outlook.samples if outlook is not None else None,
        source=outlook.source if outlook is not None else None,
        reason=doomed or planned.reason,
    )


def _estimate_document(estimate: Estimate) -> EstimateDocument:
    return EstimateDocument(
        p10=estimate.quantile(0.1),
        p50=estimate.median,
        p90=estimate.quantile(0.9),
        unit=estimate.unit,
        source=estimate.source,
        model_version=estimate.model_version or None,
        seconds_per_unit=estimate.seconds_per_unit,
    )
