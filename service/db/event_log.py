"""The logs of the scheduling loop: changes of jobs' states, and cycles.

Only cycles write them, one transaction after another under the fencing token of the leader. So numbers become visible in
ascending order, and a reader that continues after the largest number it has read misses nothing.
Why: docs/explanation/decisions/0013-one-event-log.md.
"""

from typing import Any

from sqlalchemy import Column, Connection, Row, func, select

from service.db.tables import CYCLES, EVENTS, JOBS, columns

Entry = tuple[int, Row[Any]]
"""A number and its row."""


def job_events(connection: Connection, after: int, limit: int) -> list[Entry]:
    """At most ``limit`` changes of jobs' states after a number, in ascending order, each with columns that name its job."""
    job = columns(JOBS, "name user project gpus array_id array_index")
    statement = select(EVENTS, *job).join(JOBS, JOBS.c.id == EVENTS.c.job_id).where(EVENTS.c.id > after)
    return [(row.id, row) for row in connection.execute(statement.order_by(EVENTS.c.id).limit(limit))]


def newest_job_event(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return _newest(connection, EVENTS.c.id)


def cycles(connection: Connection, after: int, limit: int) -> list[Entry]:
    """At most ``limit`` cycles after a number, in ascending order, without their dumps."""
    statement = select(*(column for column in CYCLES.c if column.name != "dump")).where(CYCLES.c.number > after)
    return [(row.number, row) for row in connection.execute(statement.order_by(CYCLES.c.number).limit(limit))]


def newest_cycle(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return _newest(connection, CYCLES.c.number)


def _newest(connection: Connection, number: Column[Any]) -> int:
    return int(connection.execute(select(func.max(number))).scalar() or 0)
