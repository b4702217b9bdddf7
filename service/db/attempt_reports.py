"""Reports of attempts that services without the lead pass to the leader through the database.

A report stays until the leader has committed it. It may arrive twice: the engine handles that as it does for an executor.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, delete, or_, select
from sqlmodel import Session

from policies.model.ids import AttemptId
from service.db.codec import decode, encode
from service.db.dialects import insert_missing, upsert
from service.db.rows import Values
from service.db.session import Database
from service.db.tables import REPORTS
from service.engine.events import Report, ReportKind

REPORTS_PER_READ_MAX = 1000
"""Reports that the leader reads at once."""


def store_reports(session: Session, host: str, reports: Sequence[Report]) -> None:
    """Store reports of attempts. Of each kind an attempt keeps one: of progress the newest, of the others the first."""
    connection = session.connection()
    for report in reports:
        if report.attempt is None:
            continue
        row: Values = {"attempt_id": report.attempt, "kind": report.kind.value, "host": host, "at_s": report.at_s}
        row["report"] = encode(report)
        if report.kind is ReportKind.PROGRESS:
            upsert(connection, REPORTS, [row])
        else:
            insert_missing(connection, REPORTS, row)


def pending_reports(database: Database) -> list[Report]:
    """Reports that the leader has not acknowledged, in the order in which they happened."""
    statement = select(REPORTS.c.report).order_by(REPORTS.c.at_s, REPORTS.c.attempt_id).limit(REPORTS_PER_READ_MAX)
    return [decode(Report, document) for [document] in database.rows(statement)]


def delete_committed(database: Database, reports: Sequence[Report]) -> None:
    """Delete reports that are committed. A newer progress report that arrived meanwhile stays."""
    committed = [and_(_same(report), REPORTS.c.at_s <= report.at_s) for report in reports if report.attempt is not None]
    if committed:
        database.execute(delete(REPORTS).where(or_(*committed)))


def delete_of_attempts(database: Database, attempts: Collection[AttemptId]) -> None:
    """Delete all reports of closed attempts, which nothing reads any more."""
    database.execute(delete(REPORTS).where(REPORTS.c.attempt_id.in_(attempts)))


def _same(report: Report) -> ColumnElement[bool]:
    return and_(REPORTS.c.attempt_id == report.attempt, REPORTS.c.kind == report.kind.value)
