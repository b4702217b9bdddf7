"""The documents of the shadow policy: where it stands, what was counted, and the jobs on which it disagrees now."""

from datetime import datetime

from pydantic import BaseModel, Field

from policies.model.reasons import Reason
from service.api.documents import instant
from service.api.forecast_documents import PlacedDocument
from service.shadow.agreement import Difference, Tally
from service.shadow.live import Disagreement, ShadowReport, Want
from service.shadow.shadow import Status


class ShadowStartsDocument(BaseModel):
    """Starts. The GPU-seconds of the first two were held by attempts so far; those of ``shadow_only`` were free on GPUs that
    the shadow would have used."""

    both: int
    first_only: int
    shadow_only: int = Field(
        description="However often it came up, the wish to start a job counts once until it starts."
    )
    agreement_ratio: float | None = Field(description="both / all; null where nobody wanted anything.")
    both_gpu_s: float
    first_only_gpu_s: float
    shadow_only_gpu_s: float
    granted_later: int = Field(description="Of shadow_only: those that the first policy made in a later pass.")
    granted_later_s: float = Field(description="Seconds from the wish to that, over all of them.")
    same_placement: int = Field(description="Of both: on the same servers, with the same GPUs on each.")
    fewer_servers: int = Field(description="Of both: the shadow would have used fewer servers.")
    more_servers: int
    other_servers: int = Field(description="Of both: as many servers, but others, or other shares.")


class ShadowStopsDocument(BaseModel):
    """Preemptions. GPU-seconds are the work that each would lose because no checkpoint holds it."""

    both: int
    first_only: int
    shadow_only: int
    agreement_ratio: float | None
    both_lost_gpu_s: float
    first_only_lost_gpu_s: float
    shadow_only_lost_gpu_s: float


class DisagreementDocument(BaseModel):
    """A job on which the two policies disagree now."""

    job_id: int
    name: str
    gpus: int
    since: datetime
    shadow_wants: Want = Field(
        description="start: it waits, and would start now. wait: it runs, and would not have been started. "
        "stop: it runs, and would be stopped now."
    )
    servers: list[PlacedDocument] = Field(description="Where it would start.")
    for_job_id: int | None = Field(description="For which job it would be stopped.")
    first_reason: Reason
    first_sentence: str
    shadow_sentence: str


class ShadowCycleDocument(BaseModel):
    """A pass in which the two did not want the same: jobs by number."""

    cycle: int | None = Field(description="null for a pass in which nothing happened.")
    at: datetime
    starts_both: int
    starts_first_only: list[int]
    starts_shadow_only: list[int] = Field(description="Wishes that came up in this pass, and not in the one before.")
    preemptions_both: int
    preemptions_first_only: list[int]
    preemptions_shadow_only: list[int]


class ShadowDocument(BaseModel):
    """A second policy that decides beside the first and changes nothing."""

    policy: str
    options: dict[str, str]
    first_policy: str
    first_options: dict[str, str]
    status: Status
    status_reason: str | None = Field(description="Why it does not watch.")
    since: datetime = Field(description="What is counted began then.")
    at: datetime = Field(description="The newest pass.")
    passes: int = Field(description="Passes of the loop in which both decided.")
    skipped: int = Field(description="Passes without the shadow.")
    overruns: int = Field(description="Decisions that took longer than shadow_budget_s.")
    failures: int
    rejected: int = Field(description="Decisions that broke a rule, and counted for nothing.")
    starts: ShadowStartsDocument
    preemptions: ShadowStopsDocument
    disagreements: list[DisagreementDocument] = Field(description="Of now, oldest first; at most 100.")
    disagreements_total: int
    cycles: list[ShadowCycleDocument] = Field(
        description="The newest passes with a difference, newest first; at most 100."
    )


def shadow_document(report: ShadowReport) -> ShadowDocument:
    """The whole report."""
    standing, totals = report.standing, report.totals
    return ShadowDocument(
        policy=standing.policy,
        options=dict(standing.options),
        first_policy=standing.first_policy,
        first_options=dict(report.first_options),
        status=standing.status,
        status_reason=standing.reason or None,
        since=instant(report.since_s),
        at=instant(report.at_s),
        passes=totals.passes,
        skipped=totals.skipped,
        overruns=standing.overruns,
        failures=standing.failures,
        rejected=standing.rejected,
        starts=ShadowStartsDocument(
            both=totals.starts.both,
            first_only=totals.starts.first_only,
            shadow_only=totals.starts.shadow_only,
            agreement_ratio=totals.starts.agreement_ratio,
            both_gpu_s=totals.starts.both_gpu_s,
            first_only_gpu_s=totals.starts.first_only_gpu_s,
            shadow_only_gpu_s=totals.starts.shadow_only_gpu_s,
            granted_later=totals.granted_later,
            granted_later_s=totals.granted_later_s,
            same_placement=totals.same_placement,
            fewer_servers=totals.fewer_servers,
            more_servers=totals.more_servers,
            other_servers=totals.other_servers,
        ),
        preemptions=_stops_document(totals.preemptions),
        disagreements=[_disagreement_document(each) for each in report.disagreements],
        disagreements_total=report.disagreements_total,
        cycles=[_cycle_document(each) for each in report.differences],
    )


def _stops_document(tally: Tally) -> ShadowStopsDocument:
    return ShadowStopsDocument(
        both=tally.both,
        first_only=tally.first_only,
        shadow_only=tally.shadow_only,
        agreement_ratio=tally.agreement_ratio,
        both_lost_gpu_s=tally.both_gpu_s,
        first_only_lost_gpu_s=tally.first_only_gpu_s,
        shadow_only_lost_gpu_s=tally.shadow_only_gpu_s,
    )


def _disagreement_document(each: Disagreement) -> DisagreementDocument:
    return DisagreementDocument(
        job_id=each.job,
        name=each.name,
        gpus=each.gpus,
        since=instant(each.since_s),
        shadow_wants=each.wants,
        servers=[PlacedDocument(server=name, gpus=gpus) for name, gpus in each.servers],
        for_job_id=each.for_job,
        first_reason=each.first.reason,
        first_sentence=each.first.sentence,
        shadow_sentence=each.sentence,
    )


def _cycle_document(each: Difference) -> ShadowCycleDocument:
    return ShadowCycleDocument(
        cycle=each.cycle,
        at=instant(each.at_s),
        starts_both=each.starts_both,
        starts_first_only=[int(job) for job in each.starts_first],
        starts_shadow_only=[int(job) for job in each.starts_shadow],
        preemptions_both=each.stops_both,
        preemptions_first_only=[int(job) for job in each.stops_first],
        preemptions_shadow_only=[int(job) for job in each.stops_shadow],
    )
