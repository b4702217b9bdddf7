"""What services that do not lead tell the leader of their attempts, through the database.

A report is there until the leader has committed what it says. It may come twice: the engine sorts that out, as it does for
an executor's own.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, and_, delete, insert, or_, select, update
from sqlmodel import Session

from policies.model.ids import AttemptId
from service.db.codec import decode, encode
from service.db.session import Database
from service.db.tables import REPORTS
from service.engine.events import Report, ReportKind

PER_READ_MAX = 1000
"""Reports that the leader takes in at once."""


def tell(session: Session, host: str, reports: Sequence[Report]) -> None:
    """Store reports of attempts. Of each kind an attempt has one: of progress the newest, of the rest the first."""
    connection = session.connection()
    for report in reports:
        if report.attempt is None:
            continue
        same = (REPORTS.c.attempt_id == report.attempt) & (REPORTS.c.kind == report.kind.value)
        values = {"host": host, "at_s": report.at_s, "report": encode(report)}
        if _is_there(connection, report):
            if report.kind is ReportKind.PROGRESS:
                connection.execute(update(REPORTS).where(same).values(**values))
        else:
            connection.execute(insert(REPORTS), values | {"attempt_id": report.attempt, "kind": report.kind.value})


def told(database: Database) -> list[Report]:
    """What the leader has not acknowledged, in the order in which it happened."""
    with database.reading() as session:
        statement = select(REPORTS.c.report).order_by(REPORTS.c.at_s, REPORTS.c.attempt_id).limit(PER_READ_MAX)
        return [decode(Report, document) for document in session.connection().execute(statement).scalars()]


def forget(database: Database, reports: Sequence[Report]) -> None:
    """These are committed. A newer progress report that came meanwhile stays."""
    conditions = [
        and_(
            REPORTS.c.attempt_id == report.attempt,
            REPORTS.c.kind == report.kind.value,
            REPORTS.c.at_s <= report.at_s,
        )
        for report in reports
        if report.attempt is not None
    ]
    if conditions:
        with database.writing() as session:
            session.connection().execute(delete(REPORTS).where(or_(*conditions)))


def drop(database: Database, attempts: Collection[AttemptId]) -> None:
    """These attempts are closed: nobody waits for what was told of them."""
    with database.writing() as session:
        session.connection().execute(delete(REPORTS).where(REPORTS.c.attempt_id.in_(attempts)))


def _is_there(connection: Connection, report: Report) -> bool:
    same = (REPORTS.c.attempt_id == report.attempt) & (REPORTS.c.kind == report.kind.value)
    return connection.execute(select(REPORTS.c.kind).where(same)).first() is not None
