"""Checks a database: its pages and references, its schema, and the invariants between its tables.

Reads one snapshot, also beside a running service. Each fault is one line that names the row.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from policies.lifecycle import HOLDS_GPUS, JobState
from policies.model.cluster import Server
from policies.model.ids import AttemptId
from policies.model.placement import Placement
from service.db.codec import decode
from service.db.dialects import damage
from service.db.migrate import SchemaState, revision_of, sentence_of, state, state_of
from service.db.rows import ENDED_JOBS, OPEN_ATTEMPTS
from service.db.session import open_database
from service.db.tables import (
    ARRAY_SPECS,
    ATTEMPTS,
    CYCLES,
    EVENTS,
    HISTORY,
    JOBS,
    PREDICTIONS,
    REQUESTS,
    SERVERS,
    SHARED_PREDICTIONS,
)
from service.engine.events import RequestKind

FAULTS_MAX = 20
"""Rows listed for one kind of fault; further ones are summarised."""

_HOLDING = tuple(state.value for state in HOLDS_GPUS)


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a check; sound if there are no ``faults``. ``revision`` is empty if the database has none."""

    schema: SchemaState
    revision: str
    jobs: int
    unfinished_jobs: int
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


def check(url: str) -> Health:
    """Check the database of a URL. Raises DatabaseUrlError and OperationalError."""
    if state(url) is SchemaState.EMPTY:  # which creates no file
        return Health(SchemaState.EMPTY, "", 0, 0, (sentence_of(SchemaState.EMPTY, url),))
    with closing(open_database(url)) as database, database.reading() as session:
        return check_connection(session.connection())


def check_connection(connection: Connection) -> Health:
    """Check the database behind a connection."""
    where = state_of(connection)
    if where is not SchemaState.CURRENT:
        revision = revision_of(connection) if where in (SchemaState.OLDER, SchemaState.NEWER) else ""
        return Health(where, revision, 0, 0, (where.sentence,))
    faults = [*damage(connection), *_jobs_without_an_end(connection), *_attempts(connection), *_gpus(connection)]
    faults += [
        *_events(connection),
        *_requests(connection),
        *_array_specs(connection),
        *_shared_predictions(connection),
    ]
    count = select(func.count()).select_from(JOBS)
    return Health(
        where,
        revision_of(connection),
        int(connection.execute(count).scalar_one()),
        int(connection.execute(count.where(JOBS.c.state.not_in(ENDED_JOBS))).scalar_one()),
        tuple(faults),
    )


def _jobs_without_an_end(connection: Connection) -> Iterator[str]:
    """No job waits for an admission that will never happen, and each has a consistent end."""
    pending = select(REQUESTS.c.job_id).where(
        REQUESTS.c.kind == RequestKind.SUBMITTED.value,
        REQUESTS.c.consumed_cycle.is_(None),
        REQUESTS.c.job_id.is_not(None),
    )
    jobs = JOBS.c
    # A cycle that admits a job raises its version, in the transaction that consumes its request.
    never = and_(jobs.version == 0, jobs.id.not_in(pending), jobs.state == JobState.QUEUED.value)
    yield from _named(connection, never, "was submitted, but no cycle will admit it")
    twice = and_(jobs.version > 0, jobs.id.in_(pending))
    yield from _named(connection, twice, "is admitted, but its submission is still pending")
    ended = jobs.state.in_(ENDED_JOBS)
    yield from _named(connection, and_(ended, jobs.finished_at_s.is_(None)), "has ended, but has no time of its end")
    yield from _named(
        connection, and_(~ended, jobs.finished_at_s.is_not(None)), "has a time of its end, but has not ended"
    )


def _attempts(connection: Connection) -> Iterator[str]:
    """A job holds GPUs exactly while one attempt of it is open, and counts its attempts."""
    jobs, attempts = JOBS.c, ATTEMPTS.c
    open_ones = select(attempts.job_id).where(attempts.state.in_(OPEN_ATTEMPTS))
    holds = jobs.state.in_(_HOLDING)
    yield from _named(
        connection, and_(holds, jobs.id.not_in(open_ones)), "holds GPUs, but none of its attempts is open"
    )
    yield from _named(connection, and_(~holds, jobs.id.in_(open_ones)), "holds no GPUs, but an attempt of it is open")
    several = open_ones.group_by(attempts.job_id).having(func.count() > 1)
    yield from _named(connection, jobs.id.in_(several), "has several open attempts")
    newest = select(func.max(attempts.number)).where(attempts.job_id == jobs.id).correlate(JOBS).scalar_subquery()
    counted = jobs.attempts != func.coalesce(newest, 0)
    yield from _named(connection, counted, "has another number of attempts than it counts")
    closed = select(attempts.id).where(attempts.state.not_in(OPEN_ATTEMPTS), attempts.ended_at_s.is_(None))
    yield from _listed("attempt", _few(connection, closed), "is closed, but has no time of its end")


def _gpus(connection: Connection) -> Iterator[str]:
    """No GPU is held twice, and each held GPU exists."""
    servers = {
        int(position): decode(Server, spec)
        for position, spec in connection.execute(select(SERVERS.c.position, SERVERS.c.spec))
    }
    holders: dict[tuple[int, int], list[AttemptId]] = defaultdict(list)
    held = select(ATTEMPTS.c.id, ATTEMPTS.c.placement, ATTEMPTS.c.gpu_ids).where(ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
    for attempt, placement, gpu_ids in connection.execute(held):
        for position, ids in zip(decode(Placement, placement).servers, gpu_ids, strict=True):
            for gpu in ids:
                holders[position, gpu].append(AttemptId(attempt))
    for (at, gpu), attempts in sorted(holders.items()):
        server = servers.get(at)
        name = f"GPU {gpu} of server {server.name if server is not None else at}"
        if server is None or gpu >= server.gpus:
            yield f"{name} is held by attempt {attempts[0]}, but there is no such GPU"
        if len(attempts) > 1:
            yield f"{name} is held by several attempts: {', '.join(sorted(attempts))}"


def _events(connection: Connection) -> Iterator[str]:
    """The newest event of a job has the job's state as its target. Jobs whose events were pruned have none."""
    events = EVENTS.c
    newest = select(events.target).where(events.job_id == JOBS.c.id).order_by(events.id.desc()).limit(1)
    other = newest.correlate(JOBS).scalar_subquery() != JOBS.c.state  # NULL, without an event, is not true
    yield from _named(connection, other, "is in another state than its newest event")


def _array_specs(connection: Connection) -> Iterator[str]:
    """Each array of which a job or a label is left has its spec."""
    stored = select(ARRAY_SPECS.c.id)
    jobs, labels = (and_(rows.c.array_id.is_not(None), rows.c.array_id.not_in(stored)) for rows in (JOBS, HISTORY))
    yield from _named(connection, jobs, "is an element of an array whose spec is missing")
    yield from _listed(
        "label", _few(connection, select(HISTORY.c.id).where(labels)), "belongs to an array whose spec is missing"
    )


def _shared_predictions(connection: Connection) -> Iterator[str]:
    """The numbers of each prediction are there."""
    lost = and_(PREDICTIONS.c.shared_id.is_not(None), PREDICTIONS.c.shared_id.not_in(select(SHARED_PREDICTIONS.c.id)))
    yield from _listed(
        "prediction", _few(connection, select(PREDICTIONS.c.id).where(lost)), "has lost the numbers that it shares"
    )


def _requests(connection: Connection) -> Iterator[str]:
    """Requests are consumed by existing cycles, and the positions of servers are consecutive."""
    requests = REQUESTS.c
    cycles = CYCLES.c
    newest = select(func.coalesce(func.max(cycles.number), 0)).scalar_subquery()
    future = select(requests.id).where(requests.consumed_cycle > newest)
    yield from _listed("request", _few(connection, future), "was consumed by a cycle that does not exist")
    count, last = connection.execute(select(func.count(), func.max(SERVERS.c.position)).select_from(SERVERS)).one()
    if count and last != count - 1:
        yield f"there are {count} servers, but the last one's position is {last}: positions must be consecutive from 0"


def _named(connection: Connection, condition: ColumnElement[bool], fault: str) -> Iterator[str]:
    return _listed("job", _few(connection, select(JOBS.c.id).where(condition).order_by(JOBS.c.id)), fault)


def _few(connection: Connection, statement: Select[tuple[object]]) -> list[object]:
    return list(connection.execute(statement.limit(FAULTS_MAX + 1)).scalars())


def _listed(kind: str, found: list[object], fault: str) -> Iterator[str]:
    yield from (f"{kind} {number} {fault}" for number in found[:FAULTS_MAX])
    if len(found) > FAULTS_MAX:
        yield f"and more than {FAULTS_MAX} where a {kind} {fault}"
