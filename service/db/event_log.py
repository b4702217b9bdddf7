"""The streamed logs, changes of jobs' states and cycles, read by number."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, func, select

from service.db.tables import CYCLES, EVENTS, JOBS

Entry = tuple[int, Row[Any]]
"""A number and its row."""

Numbers = int | Sequence[int]
"""All numbers above one, or exactly these."""


def job_events(connection: Connection, numbers: Numbers, limit: int) -> list[Entry]:
    """Changes of jobs' states in the order of their numbers, each with its job's name, user and project."""
    statement = select(EVENTS, JOBS.c.name, JOBS.c.user, JOBS.c.project).join_from(
        EVENTS, JOBS, JOBS.c.id == EVENTS.c.job_id
    )
    return _entries(connection, statement, EVENTS.c.id, numbers, limit)


def newest_job_event(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return int(connection.execute(select(func.max(EVENTS.c.id))).scalar() or 0)


def cycles(connection: Connection, numbers: Numbers, limit: int) -> list[Entry]:
    """Cycles in the order of their numbers, without their dumps."""
    columns = [column for column in CYCLES.c if column.name != "dump"]
    return _entries(connection, select(*columns), CYCLES.c.number, numbers, limit)


def newest_cycle(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return int(connection.execute(select(func.max(CYCLES.c.number))).scalar() or 0)


def _entries(
    connection: Connection, statement: Select[Any], number: Column[int], numbers: Numbers, limit: int
) -> list[Entry]:
    wanted = number > numbers if isinstance(numbers, int) else number.in_(numbers)
    rows = connection.execute(statement.where(wanted).order_by(number).limit(limit))
    return [(row._mapping[number], row) for row in rows]
