"""The store port on a database: the engine's reads, the API's inserts, and one guarded commit per cycle."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from sqlalchemy import Connection, and_, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from service.db.codec import PAYLOAD_FIELDS, RequestPayload
from service.db.commit import apply_batch
from service.db.dialects import SERVERS_LOCK, insert_numbered, insert_rows, take_locks
from service.db.lease import LEADER_LEASE, check_fence
from service.db.limits import keep_request, limits_of_engine
from service.db.reservations import keep_reservation, open_windows
from service.db.rows import (
    OPEN_ATTEMPTS,
    UNFINISHED_JOBS,
    JobReader,
    attempt_record,
    by_job,
    chunks,
    new_job_values,
    request_record,
    request_values,
    server_record,
)
from service.db.session import Database
from service.db.specs import RecentSpecs, SpecsOfArrays, keep_array_specs, spec_document
from service.db.tables import ATTEMPTS, CYCLES, JOBS, REQUESTS, SERVERS, columns
from service.engine.crash_points import CrashPoint, reached
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import CycleBatch, StoreUnavailable
from service.engine.record import JobRecord, StoredWorld

T = TypeVar("T")

_ARRAYS_KEPT_MAX = 1_024
"""Arrays whose specs stay in memory. That of another is read again when one of its elements is."""


class DuplicateServer(ValueError):
    """A server of that name exists, or is about to be added."""


class SqlStore:
    """Implements :class:`service.engine.ports.Store`.

    With a ``fencing_token`` every commit first checks that it is still the newest token of ``lease``. So a leader that lost
    its lease unnoticed writes nothing.
    """

    def __init__(self, database: Database, *, fencing_token: int | None = None, lease: str = LEADER_LEASE) -> None:
        self._database = database
        self._fencing_token = fencing_token
        self._lease = lease
        self._arrays = RecentSpecs(_ARRAYS_KEPT_MAX)

    # The engine's side.

    def load(self) -> StoredWorld:
        """All unfinished jobs that a cycle has admitted, servers, and where the loop stood. Raises StoreUnavailable."""
        return self._read(lambda connection: _load(connection, self._arrays))

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Those jobs as committed, in ascending id; unknown ones are left out. Raises StoreUnavailable."""
        return self._read(lambda connection: _jobs(connection, sorted(set(ids)), self._arrays))

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """As the port says; submissions take turns (see ``RequestRow``). Raises StoreUnavailable."""
        return self._read(lambda connection: _pending(connection, limit))

    def has_requests(self) -> bool:
        """Whether any request is unconsumed: one lookup in a small index. Raises StoreUnavailable."""
        statement = select(REQUESTS.c.id).where(REQUESTS.c.consumed_cycle.is_(None)).limit(1)
        return self._read(lambda connection: connection.execute(statement).first() is not None)

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Apply the batch in one transaction; return the jobs whose part was left out. Raises StoreUnavailable."""
        try:
            with self._database.writing(lease=True) as session:
                connection = session.connection()
                if self._fencing_token is not None:
                    check_fence(connection, self._lease, self._fencing_token)
                dropped = apply_batch(connection, batch)
                reached(CrashPoint.WRITTEN)
            return dropped
        except DBAPIError as error:
            raise StoreUnavailable(f"cycle {batch.cycle} was not committed: {error.orig}") from error

    # The API's side, in the API's own transactions.

    def submit(
        self, session: Session, specs: Sequence[JobSpec], now_s: float, sizes: Sequence[int] | None = None
    ) -> list[JobId]:
        """Insert jobs and their SUBMITTED requests; the ids are in the order of the specs.

        ``sizes``: how many jobs each submission has, in their order; left out where all jobs are of one submission.
        """
        if not specs:
            return []
        connection = session.connection()
        ids: list[JobId] = []
        for run in _runs(specs):
            ids += _insert_array(connection, run, now_s) if run[0].array else _insert_jobs(connection, run, now_s)
        positions = [position for size in sizes or [len(ids)] for position in range(size)]
        requests = [
            request_values(RequestKind.SUBMITTED, now_s, job, RequestPayload(), position)
            for job, position in zip(ids, positions, strict=True)
        ]
        insert_rows(connection, REQUESTS, requests)
        return ids

    def add_requests(self, session: Session, requests: Sequence[EngineRequest]) -> None:
        """Insert accepted requests about jobs, in their order (their ids are ignored)."""
        rows = [
            request_values(request.kind, request.at_s, request.job, _payload(request), position)
            for position, request in enumerate(requests)
        ]
        if rows:
            session.connection().execute(insert(REQUESTS), rows)

    def add_request(self, session: Session, request: EngineRequest) -> int:
        """Insert an accepted request and return its id (``request.id`` is ignored). Raises :class:`DuplicateServer`."""
        connection = session.connection()
        if request.server_spec is not None:
            take_locks(connection, SERVERS_LOCK)
        if request.server_spec is not None and _server_known(connection, request.server_spec.name):
            raise DuplicateServer(f"a server named {request.server_spec.name!r} exists already")
        if request.owner is not None:
            keep_request(connection, request.owner, request)
        values = request_values(request.kind, request.at_s, request.job, _payload(request))
        number = int(connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), values).scalar_one())
        keep_reservation(connection, request, number)
        return number

    def _read(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._database.reading() as session:
                return query(session.connection())
        except DBAPIError as error:
            raise StoreUnavailable(f"the database cannot be read: {error.orig}") from error


def _payload(request: EngineRequest) -> RequestPayload:
    return RequestPayload(**{name: getattr(request, name) for name in PAYLOAD_FIELDS})


def _runs(specs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    """The specs cut into stretches that are inserted together: each array alone, whatever is between arrays as one."""
    at = 0
    while at < len(specs):
        array = specs[at].array
        end = at + array.count if array is not None else at + 1
        while array is None and end < len(specs) and specs[end].array is None:
            end += 1
        yield specs[at:end]
        at = end


def _insert_jobs(connection: Connection, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
    rows = [new_job_values(spec, now_s, _new_job(spec, now_s)) for spec in specs]
    return [JobId(number) for number in insert_numbered(connection, JOBS, rows)]


def _insert_array(connection: Connection, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
    """Insert the elements of one array and its spec. The array's id is that of its first job, which the database assigns."""
    [first] = _insert_jobs(connection, specs[:1], now_s)
    named = [replace(spec, array=replace(spec.array, id=first)) for spec in specs if spec.array is not None]
    changed = {"array_id": first, "spec": spec_document(named[0])}
    connection.execute(update(JOBS).where(JOBS.c.id == first).values(changed))
    keep_array_specs(connection, named[:1])
    return [first, *_insert_jobs(connection, named[1:], now_s)]


def _new_job(spec: JobSpec, now_s: float) -> JobRecord:
    # The database assigns the id; nothing in the record depends on it.
    reason = Reason.HELD if spec.hold else Reason.NEW
    return JobRecord(JobId(0), spec, now_s, reason=reason, priority=spec.priority, held=spec.hold, anchor_s=now_s)


def _server_known(connection: Connection, name: str) -> bool:
    if connection.execute(select(SERVERS.c.position).where(SERVERS.c.name == name)).first() is not None:
        return True
    pending = select(REQUESTS).where(
        REQUESTS.c.kind == RequestKind.SERVER_ADDED.value, REQUESTS.c.consumed_cycle.is_(None)
    )
    specs = (request_record(row).server_spec for row in connection.execute(pending).mappings())
    return any(spec is not None and spec.name == name for spec in specs)


def _pending(connection: Connection, limit: int) -> list[EngineRequest]:
    waiting = select(REQUESTS).where(REQUESTS.c.consumed_cycle.is_(None))
    next_ones = waiting.order_by(REQUESTS.c.turn, REQUESTS.c.id).limit(limit)
    found = {row["id"]: row for row in connection.execute(next_ones).mappings()}
    # What was asked of one job is done in the order in which it was asked, and after the job's admission.
    jobs = {row["job_id"] for row in found.values() if row["kind"] != RequestKind.SUBMITTED.value}
    for part in chunks(sorted(jobs - {None})):
        newest = max(found)
        earlier = waiting.where(REQUESTS.c.job_id.in_(part), REQUESTS.c.id < newest)
        found |= {row["id"]: row for row in connection.execute(earlier).mappings()}
    return [request_record(found[number]) for number in sorted(found)]


def _load(connection: Connection, arrays: SpecsOfArrays) -> StoredWorld:
    open_attempts = connection.execute(select(ATTEMPTS).where(ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))).mappings()
    attempt_of = by_job(attempt_record(row) for row in open_attempts)
    unseen = select(REQUESTS.c.job_id).where(
        REQUESTS.c.consumed_cycle.is_(None),
        REQUESTS.c.kind == RequestKind.SUBMITTED.value,
        REQUESTS.c.job_id.is_not(None),
    )
    reader = JobReader(connection, arrays)
    unfinished = and_(JOBS.c.state.in_(UNFINISHED_JOBS), JOBS.c.id.not_in(unseen))
    known = select(*columns(SERVERS, "drained down engine_drained detail health_reason")).order_by(SERVERS.c.position)
    newest = connection.execute(
        select(CYCLES.c.number, CYCLES.c.at_s).order_by(CYCLES.c.number.desc()).limit(1)
    ).first()
    dump = select(CYCLES.c.dump).where(CYCLES.c.dump.is_not(None)).order_by(CYCLES.c.number.desc()).limit(1)
    return StoredWorld(
        jobs=reader.read_all(unfinished, attempt_of),
        servers=[server_record(row) for row in connection.execute(known).mappings()],
        cycle=newest.number if newest is not None else 0,
        policy_dump=connection.execute(dump).scalar(),
        limits=limits_of_engine(connection),
        windows=open_windows(connection, newest.at_s if newest is not None else -inf),
        at_s=newest.at_s if newest is not None else -inf,
    )


def _jobs(connection: Connection, ids: Sequence[JobId], arrays: SpecsOfArrays) -> list[JobRecord]:
    reader = JobReader(connection, arrays)
    found: list[JobRecord] = []
    for part in chunks(ids):
        theirs = select(ATTEMPTS).where(ATTEMPTS.c.job_id.in_(part), ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
        attempt_of = by_job(attempt_record(row) for row in connection.execute(theirs).mappings())
        found += reader.read(reader.query().where(JOBS.c.id.in_(part)), attempt_of)
    return found
