"""Is the database sound: its pages and references, its schema, and what must hold between the tables.

Read from one snapshot beside a running service. Whatever is found is one line that names the rows, for a person.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from policies.lifecycle import ATTEMPT_OPEN, HOLDS_GPUS, TERMINAL, JobState
from policies.model.cluster import Server
from policies.model.ids import AttemptId
from policies.model.placement import Placement
from service.db.codec import decode
from service.db.dialects import damage
from service.db.migrate import SchemaState, revision_of, state, state_of
from service.db.session import open_database
from service.db.tables import (
    ATTEMPTS,
    CYCLES,
    EVENTS,
    FACTS,
    JOBS,
    SERVERS,
)
from service.engine.events import FactKind

FAULTS_MAX = 20
"""Rows named of one kind of fault; of more, their number is told."""

_OPEN = tuple(state.value for state in ATTEMPT_OPEN)
_HOLDING = tuple(state.value for state in HOLDS_GPUS)
_ENDED = tuple(state.value for state in TERMINAL)


@dataclass(frozen=True, slots=True)
class Health:
    """What a check found; sound if there are no ``faults``. ``revision`` is empty where there is none."""

    schema: SchemaState
    revision: str
    jobs: int
    unfinished_jobs: int
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def check(url: str) -> Health:
    """Look through the database of a URL. Raises DatabaseUrlError and OperationalError."""
    if state(url) is SchemaState.EMPTY:  # which creates no file
        return Health(SchemaState.EMPTY, "", 0, 0, (SchemaState.EMPTY.sentence,))
    database = open_database(url)
    try:
        with database.reading() as session:
            return check_connection(session.connection())
    finally:
        database.close()


def check_connection(connection: Connection) -> Health:
    """Look through the database behind a connection."""
    where = state_of(connection)
    if where is not SchemaState.CURRENT:
        revision = revision_of(connection) if where in (SchemaState.OLDER, SchemaState.NEWER) else ""
        return Health(where, revision, 0, 0, (where.sentence,))
    faults = [*damage(connection), *_jobs_without_an_end(connection), *_attempts(connection), *_gpus(connection)]
    faults += [*_stories(connection), *_requests(connection)]
    count = select(func.count()).select_from(JOBS)
    return Health(
        where,
        revision_of(connection),
        int(connection.execute(count).scalar_one()),
        int(connection.execute(count.where(JOBS.c.state.not_in(_ENDED))).scalar_one()),
        tuple(faults),
    )


def _jobs_without_an_end(connection: Connection) -> Iterator[str]:
    """No job may wait for something that will never come, and none may be both ended and not."""
    pending = select(FACTS.c.job_id).where(
        FACTS.c.kind == FactKind.SUBMITTED.value, FACTS.c.consumed_cycle.is_(None), FACTS.c.job_id.is_not(None)
    )
    jobs = JOBS.c
    # A cycle that admits a job raises its version, in the transaction that consumes its request.
    never = and_(jobs.version == 0, jobs.id.not_in(pending), jobs.state == JobState.QUEUED.value)
    yield from _named(connection, never, "was submitted, but no cycle will admit it")
    twice = and_(jobs.version > 0, jobs.id.in_(pending))
    yield from _named(connection, twice, "is admitted, but its submission is still to be taken in")
    ended = jobs.state.in_(_ENDED)
    yield from _named(connection, and_(ended, jobs.finished_at_s.is_(None)), "has ended, but nobody knows when")
    yield from _named(connection, and_(~ended, jobs.finished_at_s.is_not(None)), "has an end, but has not ended")


def _attempts(connection: Connection) -> Iterator[str]:
    """A job holds GPUs exactly while one attempt of it is open, and counts its attempts."""
    jobs, attempts = JOBS.c, ATTEMPTS.c
    open_ones = select(attempts.job_id).where(attempts.state.in_(_OPEN))
    holds = jobs.state.in_(_HOLDING)
    yield from _named(
        connection, and_(holds, jobs.id.not_in(open_ones)), "holds GPUs, but none of its attempts is open"
    )
    yield from _named(connection, and_(~holds, jobs.id.in_(open_ones)), "holds no GPUs, but an attempt of it is open")
    several = open_ones.group_by(attempts.job_id).having(func.count() > 1)
    yield from _named(connection, jobs.id.in_(several), "has several open attempts")
    newest = select(func.max(attempts.number)).where(attempts.job_id == jobs.id).correlate(JOBS).scalar_subquery()
    counted = jobs.attempts != func.coalesce(newest, 0)
    yield from _named(connection, counted, "counts other attempts than it had")
    closed = select(attempts.id).where(attempts.state.not_in(_OPEN), attempts.ended_at_s.is_(None))
    yield from _listed("attempt", _few(connection, closed), "is closed, but nobody knows since when")


def _gpus(connection: Connection) -> Iterator[str]:
    """No GPU is held twice, and each held one is there."""
    servers = {
        int(position): decode(Server, spec)
        for position, spec in connection.execute(select(SERVERS.c.position, SERVERS.c.spec))
    }
    holders: dict[tuple[int, int], list[AttemptId]] = defaultdict(list)
    held = select(ATTEMPTS.c.id, ATTEMPTS.c.placement, ATTEMPTS.c.gpu_ids).where(ATTEMPTS.c.state.in_(_OPEN))
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


def _stories(connection: Connection) -> Iterator[str]:
    """The newest line of a job's story says the state that the job is in. Jobs whose story was pruned have none."""
    events = EVENTS.c
    told = select(events.target).where(events.job_id == JOBS.c.id).order_by(events.id.desc()).limit(1)
    other = told.correlate(JOBS).scalar_subquery() != JOBS.c.state  # NULL, where there is no story, is not true
    yield from _named(connection, other, "is in another state than its story says")


def _requests(connection: Connection) -> Iterator[str]:
    """Requests are consumed by cycles that were, and refer to servers that are."""
    facts = FACTS.c
    cycles = CYCLES.c
    newest = select(func.coalesce(func.max(cycles.number), 0)).scalar_subquery()
    future = select(facts.id).where(facts.consumed_cycle > newest)
    yield from _listed("request", _few(connection, future), "was consumed by a cycle that never was")
    count, last = connection.execute(select(func.count(), func.max(SERVERS.c.position)).select_from(SERVERS)).one()
    if count and last != count - 1:
        yield f"there are {count} servers, but the last one's position is {last}: they must follow each other from 0"


def _named(connection: Connection, condition: ColumnElement[bool], fault: str) -> Iterator[str]:
    return _listed("job", _few(connection, select(JOBS.c.id).where(condition).order_by(JOBS.c.id)), fault)


def _few(connection: Connection, statement: Select[tuple[object]]) -> list[object]:
    return list(connection.execute(statement.limit(FAULTS_MAX + 1)).scalars())


def _listed(kind: str, found: list[object], fault: str) -> Iterator[str]:
    yield from (f"{kind} {number} {fault}" for number in found[:FAULTS_MAX])
    if len(found) > FAULTS_MAX:
        yield f"and more than {FAULTS_MAX} where a {kind} {fault}"
