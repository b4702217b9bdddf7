"""Reports of attempts that services without the lead pass to the leader through the database.

A report stays until the leader has committed it. It may arrive twice: the engine handles that as it does for an executor.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import bindparam, delete, select
from sqlmodel import Session

from policies.model.ids import AttemptId
from service.db.codec import decode, encode
from service.db.dialects import insert_missing, upsert
from service.db.rows import Values, chunks
from service.db.session import Database
from service.db.tables import REPORTS
from service.engine.events import Report, ReportKind

REPORTS_PER_READ_MAX = 1000
"""Reports that the leader reads at once."""

_DELETE_COMMITTED = delete(REPORTS).where(
    REPORTS.c.attempt_id == bindparam("committed"),
    REPORTS.c.kind == bindparam("of_kind"),
    REPORTS.c.at_s <= bindparam("until_s"),
)


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
    committed = [
        {"committed": report.attempt, "of_kind": report.kind.value, "until_s": report.at_s}
        for report in reports
        if report.attempt is not None
    ]
    if committed:
        with database.writing() as session:
            session.connection().execute(_DELETE_COMMITTED, committed)


def delete_of_attempts(database: Database, attempts: Collection[AttemptId]) -> None:
    """Delete all reports of closed attempts, which nothing reads any more."""
    with database.writing() as session:
        for part in chunks(sorted(attempts)):
            session.connection().execute(delete(REPORTS).where(REPORTS.c.attempt_id.in_(part)))
