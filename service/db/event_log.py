"""The logs of the scheduling loop: changes of jobs' states, changes of servers, and cycles.

Only cycles write them, one transaction after another under the fencing token of the leader. So numbers become visible in
ascending order, and a reader that continues after the largest number it has read misses nothing.
Why: docs/explanation/decisions/0013-one-event-log.md.
"""

from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, func, select

from service.db.pages import page
from service.db.tables import CYCLES, EVENTS, JOBS, SERVER_EVENTS, SERVERS, columns

CYCLE_COLUMNS = tuple(column for column in CYCLES.c if column.name != "dump")

Entry = tuple[int, Row[Any]]
"""A number and its row."""


def job_events(connection: Connection, after: int, limit: int) -> list[Entry]:
    """At most ``limit`` changes of jobs' states after a number, in ascending order, each with columns that name its job."""
    job = columns(JOBS, "name user project gpus array_id array_index")
    of_jobs = select(EVENTS, *job).join(JOBS, JOBS.c.id == EVENTS.c.job_id)
    return [(row.id, row) for row in page(connection, of_jobs, [EVENTS.c.id], after, limit)]


def newest_job_event(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return _newest(connection, EVENTS.c.id)


def server_events(connection: Connection, after: int, limit: int) -> list[Entry]:
    """At most ``limit`` changes of servers after a number, in ascending order, each with the name of its server."""
    named = select(SERVER_EVENTS, SERVERS.c.name).join(SERVERS, SERVERS.c.position == SERVER_EVENTS.c.position)
    return [(row.id, row) for row in page(connection, named, [SERVER_EVENTS.c.id], after, limit)]


def newest_server_event(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return _newest(connection, SERVER_EVENTS.c.id)


def cycles(connection: Connection, after: int, limit: int) -> list[Entry]:
    """At most ``limit`` cycles after a number, in ascending order, without their dumps."""
    return [(row.number, row) for row in page(connection, select(*CYCLE_COLUMNS), [CYCLES.c.number], after, limit)]


def newest_cycle(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return _newest(connection, CYCLES.c.number)


def _newest(connection: Connection, number: Column[Any]) -> int:
    return int(connection.execute(_largest(number)).scalar() or 0)


@cache
def _largest(number: Column[Any]) -> Select[Any]:
    return select(func.max(number))
