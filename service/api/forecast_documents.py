"""Forecasts and plans: from what was computed to the documents of :mod:`service.wire.predictions`."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from policies.choose import Candidate
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.documents import document, instant
from service.api.plans import job_plan_document
from service.domain.forecast_scores import Accuracy, Milestone
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.forecast.forecaster import PlannedJob
from service.wire.plans import JobPlanDocument
from service.wire.predictions import (
    AccuracyDocument,
    EstimateDocument,
    GangDocument,
    HorizonDocument,
    JobForecastDocument,
    MilestoneAccuracyDocument,
    PlacedDocument,
    PlanDocument,
    SpreadDocument,
    TallyDocument,
)


def _spread_document(spread: Spread | None) -> SpreadDocument | None:
    return None if spread is None else document(SpreadDocument, spread)


def forecast_document(forecast: Forecast, job: JobForecast) -> JobForecastDocument:
    """One job of a forecast."""
    return document(
        JobForecastDocument,
        job,
        job_id=job.job,
        made_at=instant(forecast.now_s),
        start_at=_spread_document(job.start),
        finish_at=_spread_document(job.finish),
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
        all=document(TallyDocument, found.all) if found.all is not None else None,
        by_horizon=[
            document(HorizonDocument, each, horizon_s_min=each.low, horizon_s_max=each.high)
            for each in found.by_horizon
        ],
        by_gpus=[
            # Sizes are whole numbers: a class ends one below the first of the next.
            document(GangDocument, each, gpus_min=int(each.low or 1), gpus_max=int(each.high or 2) - 1)
            for each in found.by_gpus
        ],
    )


def plan_documents(planned: Sequence[PlannedJob], cluster: Cluster, failed: AbstractSet[JobId]) -> list[PlanDocument]:
    """The planned jobs of one body; ``failed`` are jobs that have ended without success. The training plan that all elements
    of an array have is evaluated once.
    """
    found: list[PlanDocument] = []
    before: JobSpec | None = None
    plan: JobPlanDocument | None = None
    for each in planned:
        spec = each.spec
        if before is None or spec.array is None or replace(before, array=spec.array) != spec:
            plan = job_plan_document(spec, cluster)
        found.append(_plan_document(each, cluster, plan, sorted(failed & set(spec.after))))
        before = spec
    return found


def _plan_document(
    planned: PlannedJob, cluster: Cluster, plan: JobPlanDocument | None, failed: Sequence[int]
) -> PlanDocument:
    """A planned job; ``failed`` are jobs in its ``after`` that have ended without success."""
    outlook = planned.outlook if not failed else None
    reason = f"Job {failed[0]} in 'after' has not succeeded: this job would be cancelled at once." if failed else None
    best = planned.best
    return PlanDocument(
        name=planned.spec.name,
        gpus=planned.spec.gpus,
        prediction=_estimate_document(planned.estimate) if planned.estimate is not None else None,
        placement=_placed(best, cluster),
        iteration_s=best.iteration_s if best is not None and planned.spec.stage_graph is not None else None,
        plan=plan,
        fits_now=planned.now is not None,
        placement_now=_placed(planned.now, cluster),
        start_at=_spread_document(outlook.start) if outlook is not None else None,
        finish_at=_spread_document(outlook.finish) if outlook is not None else None,
        samples=outlook.samples if outlook is not None else None,
        source=outlook.source if outlook is not None else None,
        reason=reason or planned.reason,
    )


def _placed(found: Candidate | None, cluster: Cluster) -> list[PlacedDocument]:
    shares = found.placement.shares if found is not None else ()
    return [PlacedDocument(server=cluster.servers[share.server].name, gpus=share.gpus) for share in shares]


def _estimate_document(estimate: Estimate) -> EstimateDocument:
    return document(
        EstimateDocument,
        estimate,
        p10=estimate.quantile(0.1),
        p50=estimate.median,
        p90=estimate.quantile(0.9),
        model_version=estimate.model_version or None,
    )
