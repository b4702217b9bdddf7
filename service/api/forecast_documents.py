"""The documents of forecasts and plans. Never a lone number: quantiles, how many futures, and where the totals come from."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, Field

from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from service.api.documents import instant
from service.forecasting import PlannedJob
from service.sim.forecast import Forecast, JobForecast, Spread

LATEST_S = 253_402_128_000.0
"""9999-12-30: whatever comes later is told as this. ISO 8601 has four digits for a year, and every time zone must fit."""


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
