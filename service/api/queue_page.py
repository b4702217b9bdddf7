"""A page of the queue: first the jobs in the order of the policy, then those that may not start now, by submission.

The policy's index gives a page, also of the jobs of some projects, so the length of the queue does not matter. Only for what the
index does not hold, the database lists the queued jobs first.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field
from sqlalchemy import Row

from policies.decision.queue_order import QueuePlace, QueueSlice, QueueWanted
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.state.keys import JobKey
from service.api.deps import ApiDependencies, Leader
from service.api.documents import document, instant
from service.api.paging import INSTANT, NUMBER, RANK, SIGNED, PageRequest, cursor
from service.db.queue import QueuedJob, queued_ids, queued_jobs, queued_rows
from service.domain.access import Identity
from service.domain.forecast_scores import Milestone
from service.forecast.forecast import Forecast, Spread
from service.wire.predictions import SpreadDocument
from service.wire.queue import QueuedJobDocument, QueueJobsDocument

SCOPE: Final = "queue"

_UNORDERED: Final = 2
"""The tier, in a cursor, of jobs without a position: after all others."""

_KEY: Final = (Annotated[int, Field(ge=0, le=_UNORDERED)], SIGNED, SIGNED, RANK, INSTANT, NUMBER)


class Listed(NamedTuple):
    """A job of the page: its key for the cursor, and its place unless it has none."""

    key: JobKey
    place: QueuePlace | None


def queue_page(
    dependencies: ApiDependencies, leader: Leader, caller: Identity, paging: PageRequest
) -> QueueJobsDocument:
    """The page after the cursor. Raises 422 for a foreign cursor."""
    position = paging.position(SCOPE, *_KEY)
    past = None if position is None else JobKey(*position)
    limit = paging.limit + 1  # one more shows whether a next page exists
    found: QueueSlice | None = None
    if past is None or past.tier < _UNORDERED:
        found = leader.queue(QueueWanted(past, limit, sees=None if caller.projects is None else caller.sees))
    if found is not None and len(found.jobs) == limit:
        with dependencies.reading() as connection:
            total = queued_jobs(connection, caller)
    else:
        with dependencies.reading() as connection:
            ids = queued_ids(connection, caller)
        found, total = leader.queue(QueueWanted(past, limit, ids)), len(ids)
    listed = _listed(found, past)
    shown = listed[: paging.limit]
    with dependencies.reading() as connection:
        rows = queued_rows(connection, [each.key.job for each in shown])
    now_s, kept = dependencies.now_s(), leader.forecaster.kept()
    return QueueJobsDocument(
        # A job that has started since the order was read is not queued any more.
        items=[_item(rows[each.key.job], each, now_s, kept) for each in shown if each.key.job in rows],
        next=cursor(SCOPE, shown[-1].key) if len(listed) > paging.limit else None,
        total=total,
        ordered=found.ordered,
        cycle=dependencies.scheduler.status().cycle,
        policy=dependencies.settings.policy,
        note=found.note or None,
    )


def _listed(found: QueueSlice, past: JobKey | None) -> Sequence[Listed]:
    """The jobs with a place, and after the last of them those without one."""
    done = past.job if past is not None and past.tier == _UNORDERED else 0
    others = [JobKey(_UNORDERED, 0, 0, 0.0, 0.0, job) for job in found.others if job > done]
    return [*(Listed(place.key, place) for place in found.jobs), *(Listed(key, None) for key in others)]


def _item(found: QueuedJob, listed: Listed, now_s: float, kept: Forecast | None) -> QueuedJobDocument:
    row, place = found.job, listed.place
    start, end = _spreads(found, kept)
    return document(
        QueuedJobDocument,
        row,
        position=None if place is None else place.position,
        job_id=row.id,
        user=row.user or None,
        project=row.project or None,
        guarded=listed.key.tier == 0,
        level=listed.key.project_level,
        rank=None if place is None else place.rank,
        reason_sentence=Reason(row.reason).sentence,
        waiting_s=max(0.0, now_s - row.submitted_at_s),
        start=start,
        end=end,
    )


def _spreads(found: QueuedJob, kept: Forecast | None) -> tuple[SpreadDocument | None, SpreadDocument | None]:
    """Start and end. Those of a job are recorded ever more rarely, so a newer forecast that the leader keeps comes first."""
    recorded = [found.forecasts.get(each) for each in (Milestone.START, Milestone.FINISH)]
    newest = kept.jobs.get(JobId(found.job.id)) if kept is not None else None
    if kept is None or newest is None or any(row is not None and row.made_at_s > kept.now_s for row in recorded):
        start, end = recorded
        return _spread(start), _spread(end)
    return _spread(newest.start), _spread(newest.finish)


def _spread(found: Spread | Row[Any] | None) -> SpreadDocument | None:
    return (
        None
        if found is None
        else SpreadDocument(p10=instant(found.p10_s), p50=instant(found.p50_s), p90=instant(found.p90_s))
    )
