"""The logs that are streamed: changes of jobs' states, and cycles. Read by number, whatever the order of commits."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, func, select

from service.db.tables import CycleRow, JobEventRow, JobRow, table

Entry = tuple[int, Row[Any]]
"""A number and what stands under it."""

Numbers = int | Sequence[int]
"""All above one number, or exactly these."""

_EVENTS, _JOBS, _CYCLES = table(JobEventRow), table(JobRow), table(CycleRow)


def job_events(connection: Connection, numbers: Numbers, limit: int) -> list[Entry]:
    """Changes of jobs' states in the order of their numbers, each with its job's name, user and project."""
    statement = select(_EVENTS, _JOBS.c.name, _JOBS.c.user, _JOBS.c.project).join_from(
        _EVENTS, _JOBS, _JOBS.c.id == _EVENTS.c.job_id
    )
    return _entries(connection, statement, _EVENTS.c.id, numbers, limit)


def newest_job_event(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return int(connection.execute(select(func.max(_EVENTS.c.id))).scalar() or 0)


def cycles(connection: Connection, numbers: Numbers, limit: int) -> list[Entry]:
    """Cycles in the order of their numbers, without their dumps."""
    columns = [column for column in _CYCLES.c if column.name != "dump"]
    return _entries(connection, select(*columns), _CYCLES.c.number, numbers, limit)


def newest_cycle(connection: Connection) -> int:
    """The largest number; 0 where there is none."""
    return int(connection.execute(select(func.max(_CYCLES.c.number))).scalar() or 0)


def _entries(
    connection: Connection, statement: Select[Any], number: Column[int], numbers: Numbers, limit: int
) -> list[Entry]:
    wanted = number > numbers if isinstance(numbers, int) else number.in_(numbers)
    rows = connection.execute(statement.where(wanted).order_by(number).limit(limit))
    return [(row._mapping[number], row) for row in rows]
