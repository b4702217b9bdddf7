"""Sums over jobs and servers, in a few statements whose answers do not grow with the queue."""

from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, func, or_, select

from policies.lifecycle import HOLDS_GPUS, JobState
from policies.model.reasons import Reason
from service.db.rows import UNFINISHED_JOBS
from service.db.tables import JOBS, MODELS, SERVERS, columns
from service.domain.waiting import NOT_WAITING_FOR_GPUS


class OldestJob(NamedTuple):
    """The queued job that has waited longest for GPUs."""

    id: int
    submitted_at_s: float
    project: str
    user: str


class UnfinishedJobs(NamedTuple):
    """Numbers of unfinished jobs: by state, and of the queued ones by reason."""

    states: dict[JobState, int]
    reasons: dict[Reason, int]
    gpus_held: int
    oldest: OldestJob | None


def unfinished(connection: Connection) -> UnfinishedJobs:
    """Count the unfinished jobs. One pass over them in the database."""
    numbers = (func.count(), func.min(JOBS.c.id), func.sum(JOBS.c.gpus))
    of = (JOBS.c.state, JOBS.c.reason)
    rows = connection.execute(select(*of, *numbers).where(JOBS.c.state.in_(UNFINISHED_JOBS)).group_by(*of))
    states: dict[JobState, int] = {}
    reasons: dict[Reason, int] = {}
    gpus_held, waiting = 0, []
    for state, text, jobs, first, gpus in rows:
        reason = Reason(text)
        states[JobState(state)] = states.get(JobState(state), 0) + jobs
        if JobState(state) is JobState.QUEUED:
            reasons[reason] = jobs
            if reason not in NOT_WAITING_FOR_GPUS:
                waiting.append(first)
        elif JobState(state) in HOLDS_GPUS:
            gpus_held += gpus
    return UnfinishedJobs(states, reasons, gpus_held, _oldest(connection, waiting))


def _oldest(connection: Connection, first_of_reasons: list[int]) -> OldestJob | None:
    """The first of these jobs. Jobs are numbered in the order of their submission."""
    if not first_of_reasons:
        return None
    of_job = columns(JOBS, "id submitted_at_s project user")
    row = connection.execute(select(*of_job).where(JOBS.c.id == min(first_of_reasons))).one()
    return OldestJob(*row)


def troubled_servers(connection: Connection) -> list[Row[Any]]:
    """The servers that take no new jobs, by position: name and state."""
    state = columns(SERVERS, "position name drained down detail health_reason")
    troubled = or_(SERVERS.c.drained, SERVERS.c.down, SERVERS.c.engine_drained)
    return list(connection.execute(select(*state).where(troubled).order_by(SERVERS.c.position)).all())


def trained_at_s(connection: Connection, model: str) -> float | None:
    """When the model was made; None for an unknown one."""
    return connection.execute(select(MODELS.c.created_at_s).where(MODELS.c.id == model)).scalar_one_or_none()
