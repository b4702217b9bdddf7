"""The report of the shadow policy as documents of :mod:`service.wire.shadow`."""

from service.api.documents import document
from service.shadow.agreement import Difference, Tally
from service.shadow.live import Disagreement, ShadowReport
from service.wire.predictions import PlacedDocument
from service.wire.shadow import (
    DisagreementDocument,
    ShadowCycleDocument,
    ShadowDocument,
    ShadowStartsDocument,
    ShadowStopsDocument,
)


def shadow_document(report: ShadowReport) -> ShadowDocument:
    """The whole report."""
    return document(
        ShadowDocument,
        report.state,
        report,
        report.totals,
        status_reason=report.state.reason or None,
        starts=document(ShadowStartsDocument, report.totals.starts, report.totals),
        preemptions=_stops_document(report.totals.preemptions),
        disagreements=[_disagreement_document(each) for each in report.disagreements],
        cycles=[_cycle_document(each) for each in report.differences],
    )


def _stops_document(tally: Tally) -> ShadowStopsDocument:
    return document(
        ShadowStopsDocument,
        tally,
        both_lost_gpu_s=tally.both_gpu_s,
        first_only_lost_gpu_s=tally.first_only_gpu_s,
        shadow_only_lost_gpu_s=tally.shadow_only_gpu_s,
    )


def _disagreement_document(each: Disagreement) -> DisagreementDocument:
    return document(
        DisagreementDocument,
        each,
        job_id=each.job,
        shadow_wants=each.wants,
        servers=[PlacedDocument(server=name, gpus=gpus) for name, gpus in each.servers],
        for_job_id=each.for_job,
        first_reason=each.first.reason,
        first_sentence=each.first.sentence,
        shadow_sentence=each.sentence,
    )


def _cycle_document(each: Difference) -> ShadowCycleDocument:
    return document(
        ShadowCycleDocument,
        each,
        starts_first_only=list(each.starts_first),
        starts_shadow_only=list(each.starts_shadow),
        preemptions_both=each.stops_both,
        preemptions_first_only=list(each.stops_first),
        preemptions_shadow_only=list(each.stops_shadow),
    )
