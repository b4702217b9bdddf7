"""Many jobs in a database, made by copying one, so that a million take seconds."""

import sqlite3
from contextlib import closing
from dataclasses import replace

from sqlalchemy import text

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from service.db.migrate import upgrade
from service.db.rows import new_job_values
from service.db.session import Database, open_database, sqlite_path
from service.db.tables import JOBS
from service.engine.record import JobRecord


def fill(database: Database, count: int, state: JobState) -> None:
    """Copies of one job, by fifty users in seven projects, a thousand programs."""
    spec = JobSpec("program", "u", 2, project="p", command=("python", "train.py"), env={"LR": "0.1"})
    record = JobRecord(JobId(0), spec, 1.0, state=state, reason=Reason.NEW, version=1)
    if state is JobState.SUCCEEDED:
        record = replace(record, reason=Reason.COMPLETED, finished_at_s=2.0)
    with database.writing(600.0) as session:
        connection = session.connection()
        values = new_job_values(spec, 1.0, record)
        first = connection.execute(JOBS.insert().returning(JOBS.c.id), values).scalar_one()
        changed = {"user": "'u' || (i % 50)", "project": "'p' || (i % 7)", "name": "'n' || (i % 1000)"}
        columns = [column.name for column in JOBS.c if column.name != "id"]
        chosen = ", ".join(changed.get(name, f'jobs."{name}"') for name in columns)
        names = ", ".join(f'"{name}"' for name in columns)
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1})"
        connection.execute(
            text(f"{numbers} INSERT INTO jobs ({names}) SELECT {chosen} FROM n, jobs WHERE jobs.id = {first}")
        )
    _settle(database)


def _settle(database: Database) -> None:
    """Statistics, and the journal of the rows that no service writes at once: else the next commit would have to move it."""
    path = sqlite_path(database.engine.url)
    if path is not None:
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("ANALYZE jobs")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    with database.engine.begin() as connection:
        connection.execute(text("ANALYZE jobs"))


def fill_new(url: str, count: int, state: JobState) -> None:
    """The same in a database without a schema, before any service starts on it."""
    upgrade(url)
    with closing(open_database(url)) as database:
        fill(database, count, state)
