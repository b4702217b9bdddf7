"""Ended jobs as labels: what ran here and what was imported, in one stream for training and for warming a predictor."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from sqlalchemy import RowMapping, Select, Text, and_, cast, func, insert, select, true
from sqlmodel import Session

from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from service.db.codec import encode
from service.db.dialects import take_locks
from service.db.rows import OWN_HISTORY, label_values, stored_label
from service.db.session import Database
from service.db.specs import RecentSpecs, SpecReader
from service.db.tables import HISTORY, JOBS

_ROWS_PER_STATEMENT = 1000

_COLUMNS = [column for column in HISTORY.c if column.name != "spec"]

OWN_LABEL: Final = and_(HISTORY.c.source == OWN_HISTORY, HISTORY.c.source_key == cast(JOBS.c.id, Text))
"""Joins jobs with their labels by an index. An ended job has one; that of a failed job includes the work that is lost with it."""

HISTORY_ROWS_MAX = 40_000
"""Newest ended jobs that a predictor reads at once. Older ones only matter to groups with few jobs."""


class ImportedJob(NamedTuple):
    """An imported job: its name in its source, and its label (``label.job`` has no meaning here)."""

    key: str
    label: EndedJob


def import_history(session: Session, source: str, past: Iterable[ImportedJob]) -> int:
    """Add labels under the name of their source; returns how many are new. Importing the same jobs twice changes nothing.

    Raises ValueError for the source name that is reserved for jobs that ran here.
    """
    if source == OWN_HISTORY:
        raise ValueError(f"{source!r} is reserved for the jobs of this service")
    connection = session.connection()
    take_locks(connection, "history")
    rows = iter(past)
    added = 0
    while part := {job.key: job.label for job in islice(rows, _ROWS_PER_STATEMENT)}:
        known = select(HISTORY.c.source_key).where(HISTORY.c.source == source, HISTORY.c.source_key.in_(part))
        for key in list(connection.execute(known).scalars()):
            del part[key]
        values = [
            {"source": source, "source_key": key, "job_id": None, "spec": encode(label.spec), **label_values(label)}
            for key, label in part.items()
        ]
        if values:
            connection.execute(insert(HISTORY), values)
        added += len(values)
    return added


def last_label(database: Database) -> int:
    """The number of the label that was written last; 0 where there is none."""
    return int(database.value(select(func.max(HISTORY.c.id))) or 0)


def last_imported(database: Database) -> int:
    """The number of the imported label that was written last; 0 where there is none."""
    return int(database.value(select(func.max(HISTORY.c.id)).where(HISTORY.c.source != OWN_HISTORY)) or 0)


def ended_jobs(database: Database, *, newest: int | None = None, last: int | None = None) -> Iterator[EndedJob]:
    """Labels in the order in which the jobs ended (at most the ``newest``), streamed from one snapshot.

    ``last``: none that was written after this one (see :func:`last_label`).

    Jobs that never ran are left out: they have no run time to learn from. The id of an imported job is negative, so it cannot
    be mistaken for a job of this service.
    """
    with database.reading() as session:
        connection = session.connection()
        wanted, history = _statement(), HISTORY
        known = true() if last is None else history.c.id <= last
        if newest is not None:
            order = (history.c.ended_at_s.desc(), history.c.id.desc())
            ran = select(history.c.id).where(history.c.service_s > 0.0, known).order_by(*order).limit(newest)
            known = history.c.id.in_(ran)
        wanted = wanted.where(known)
        rows = connection.execute(wanted, execution_options={"yield_per": _ROWS_PER_STATEMENT})
        specs = SpecReader(connection, RecentSpecs())
        for row in rows.mappings():
            yield _label(row, specs)


def _statement() -> Select[tuple[object, ...]]:
    joined = HISTORY.outerjoin(JOBS, JOBS.c.id == HISTORY.c.job_id)
    return (
        select(*_COLUMNS, cast(func.coalesce(HISTORY.c.spec, JOBS.c.spec), Text).label("spec_text"))
        .select_from(joined)
        .where(HISTORY.c.service_s > 0.0)
        .order_by(HISTORY.c.ended_at_s, HISTORY.c.id)
    )


def _label(row: RowMapping, specs: SpecReader) -> EndedJob:
    number = -row["id"] if row["job_id"] is None else row["job_id"]
    return stored_label(JobId(number), specs.read(row["spec_text"]), row)
