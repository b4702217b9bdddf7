"""Quotas and pauses in the database: those of the engine, changes by operators, and current use."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, func, literal, select

from policies.lifecycle import HOLDS_GPUS
from service.db.dialects import Likely, upsert
from service.db.queue import QUEUED_LITERALLY
from service.db.rows import UNFINISHED_JOBS, chunks
from service.db.tables import JOBS, LIMITS
from service.engine.events import EngineRequest, limit_after
from service.engine.limits import LimitOwner, OwnerLimit, Scope

_HOLDING = frozenset(state.value for state in HOLDS_GPUS)


class StoredLimit(NamedTuple):
    """All limits of one owner; ``jobs_queued_max``: unfinished jobs (None: unlimited)."""

    owner: LimitOwner
    limit: OwnerLimit
    jobs_queued_max: int | None

    @property
    def empty(self) -> bool:
        """Whether it limits nothing."""
        return not self.limit.limits and self.jobs_queued_max is None


class Use(NamedTuple):
    """An owner's current use: unfinished jobs, and GPUs held."""

    jobs: int = 0
    gpus_running: int = 0


def limits_of_engine(connection: Connection) -> dict[LimitOwner, OwnerLimit]:
    """The limits that the engine applies, by owner."""
    return {stored.owner: stored.limit for stored in stored_limits(connection) if stored.limit.limits}


def stored_limits(connection: Connection) -> list[StoredLimit]:
    """Every owner with a limit, in the order of scope and name."""
    rows = connection.execute(select(LIMITS).order_by(LIMITS.c.scope, LIMITS.c.name))
    return [_stored(row) for row in rows]


def stored_limit(connection: Connection, owner: LimitOwner, *, for_update: bool = False) -> StoredLimit:
    """One owner's limits; empty if there are none. ``for_update`` locks them until the transaction ends."""
    statement = select(LIMITS).where(_of(owner))
    row = connection.execute(statement.with_for_update() if for_update else statement).one_or_none()
    return StoredLimit(owner, OwnerLimit(), None) if row is None else _stored(row)


def limits_of(connection: Connection, owners: Sequence[LimitOwner], *, for_update: bool) -> list[StoredLimit]:
    """The existing limits of these owners. ``for_update`` locks them until the transaction ends."""
    wanted, found = set(owners), []
    for part in chunks(owners):
        names = {owner.name for owner in part}
        # By name alone: a name of both a user and a project locks both.
        statement = select(LIMITS).where(LIMITS.c.name.in_(sorted(names))).order_by(LIMITS.c.scope, LIMITS.c.name)
        rows = connection.execute(statement.with_for_update() if for_update else statement)
        found += [_stored(row) for row in rows]
    return [stored for stored in found if stored.owner in wanted]


def keep_request(connection: Connection, owner: LimitOwner, request: EngineRequest) -> None:
    """Apply an accepted request about quotas or pauses to an owner's limits."""
    stored = stored_limit(connection, owner, for_update=True)
    store_limit(connection, stored._replace(limit=limit_after(stored.limit, request)), request.at_s)


def store_limit(connection: Connection, stored: StoredLimit, now_s: float) -> None:
    """Store an owner's limits, or delete the row if they limit nothing any more."""
    owner, limit = stored.owner, stored.limit
    if stored.empty:
        connection.execute(delete(LIMITS).where(_of(owner)))
        return
    row = {"scope": owner.scope.value, "name": owner.name, **asdict(limit), "jobs_queued_max": stored.jobs_queued_max}
    upsert(connection, LIMITS, [row | {"changed_at_s": now_s}])


def uses(connection: Connection) -> Mapping[LimitOwner, Use]:
    """The use of every owner with an unfinished job.

    One pass over the index of queued jobs alone, besides one look at each job that runs.
    """
    owner = (JOBS.c.project, JOBS.c.user)
    # Else SQLite would take the index of states, and look at the row of each job.
    queued = select(*owner, func.count(), literal(0)).where(Likely(QUEUED_LITERALLY)).group_by(*owner)
    holding = select(*owner, func.count(), func.sum(JOBS.c.gpus)).where(JOBS.c.state.in_(sorted(_HOLDING)))
    found: dict[LimitOwner, Use] = {}
    for statement in (queued, holding.group_by(*owner)):
        for project, user, jobs, gpus in connection.execute(statement):
            for each in (LimitOwner(Scope.QUEUE), LimitOwner(Scope.USER, user), LimitOwner(Scope.PROJECT, project)):
                before = found.get(each, Use())
                found[each] = Use(before.jobs + jobs, before.gpus_running + gpus)
    return found


def use_of_all(connection: Connection) -> Use:
    """The use of all owners together: counted in the index of states, besides one look at each job that runs."""
    jobs = select(func.count()).select_from(JOBS).where(JOBS.c.state.in_(UNFINISHED_JOBS))
    gpus = select(func.coalesce(func.sum(JOBS.c.gpus), 0)).where(JOBS.c.state.in_(sorted(_HOLDING)))
    return Use(int(connection.execute(jobs).scalar_one()), int(connection.execute(gpus).scalar_one()))


def unfinished_of(connection: Connection, owner: LimitOwner, at_most: int) -> int:
    """The number of an owner's unfinished jobs, counted up to ``at_most`` so that the cost is bounded by the limit."""
    column = JOBS.c.user if owner.scope is Scope.USER else JOBS.c.project
    found = 0
    for state in UNFINISHED_JOBS:
        # One index walk per state; a single statement with IN would first collect all matches.
        if found < at_most:
            some = select(JOBS.c.id).where(JOBS.c.state == state, column == owner.name).limit(at_most - found)
            found += int(connection.execute(select(func.count()).select_from(some.subquery())).scalar_one())
    return found


def _of(owner: LimitOwner) -> ColumnElement[bool]:
    return and_(LIMITS.c.scope == owner.scope.value, LIMITS.c.name == owner.name)


def _stored(row: Any) -> StoredLimit:
    limit = OwnerLimit(row.gpus_running_max, row.paused, row.pause_reason)
    return StoredLimit(LimitOwner(Scope(row.scope), row.name), limit, row.jobs_queued_max)
