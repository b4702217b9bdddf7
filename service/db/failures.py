"""What the database knows of failures: changes of servers, and attempts that ended or run, each since an instant."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, or_, select

from policies.lifecycle import AttemptState
from policies.model.ids import ServerIndex
from policies.model.placement import Placement
from service.db.codec import decode
from service.db.servers import NOT_LISTED
from service.db.tables import ATTEMPTS, CYCLES, JOBS, SERVER_EVENTS, SERVERS

_FAILED = frozenset({AttemptState.FAILED.value, AttemptState.LOST.value})


class RanAttempt(NamedTuple):
    """An attempt whose program began. ``ended_at_s`` None: it is open. ``requeued``: it failed, and the job went on."""

    servers: tuple[ServerIndex, ...]
    began_at_s: float
    ended_at_s: float | None
    lost: bool
    requeued: bool


def first_cycle_s(connection: Connection, since_s: float) -> float | None:
    """The first cycle since an instant, as far as cycles are kept."""
    found: float | None = connection.execute(select(func.min(CYCLES.c.at_s)).where(CYCLES.c.at_s >= since_s)).scalar()
    return found


def server_changes(connection: Connection, since_s: float) -> Sequence[tuple[int, float, str]]:
    """The position, time and kind of each change of a server since an instant, oldest first."""
    events = SERVER_EVENTS.c
    wanted = select(events.position, events.at_s, events.kind).where(events.at_s >= since_s).order_by(events.id)
    return [(position, at_s, kind) for position, at_s, kind in connection.execute(wanted)]


def listed_servers(connection: Connection) -> dict[ServerIndex, bool]:
    """Whether each server is down; without those that the cluster file no longer lists."""
    servers = SERVERS.c
    wanted = select(servers.position, servers.down).where(or_(~servers.down, servers.detail != NOT_LISTED))
    return {ServerIndex(position): down for position, down in connection.execute(wanted)}


def ran_attempts(connection: Connection, since_s: float, newest: int) -> list[RanAttempt]:
    """The newest attempts that were opened since an instant and whose program began."""
    attempts = ATTEMPTS.c
    wanted = (
        select(attempts.placement, attempts.state, attempts.started_at_s, attempts.ended_at_s, attempts.number)
        .add_columns(JOBS.c.attempts, JOBS.c.finished_at_s)
        .join_from(ATTEMPTS, JOBS, JOBS.c.id == attempts.job_id)
        .where(attempts.opened_at_s >= since_s, attempts.started_at_s.is_not(None))
        .order_by(attempts.opened_at_s.desc(), attempts.id.desc())
        .limit(newest)
    )
    return [
        RanAttempt(
            tuple(decode(Placement, row.placement).servers),
            row.started_at_s,
            row.ended_at_s,
            row.state == AttemptState.LOST.value,
            row.state in _FAILED and (row.attempts > row.number or row.finished_at_s is None),
        )
        for row in connection.execute(wanted)
    ]
