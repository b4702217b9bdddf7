"""The tables of several services on one database: who there is, and what a service tells the leader of its attempts."""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _document, _seconds, _seconds_or_null


class ServiceRow(Base, table=True):
    """One ``sooner serve``, by the identity of its data folder. ``seen_at_s`` is its last sign of life on the database's clock.

    ``lease_s``: so long after its last sign of life do its supervisors stop what runs. ``condemned_at_s`` is set when
    somebody relied on that: the service is alive again only when it has made sure that nothing of its attempts runs.
    """

    __tablename__ = "services"

    id: str = Field(primary_key=True)
    name: str
    url: str
    version: str
    lease_s: float = _seconds()
    started_at_s: float = _seconds()
    seen_at_s: float = _seconds()
    condemned_at_s: float | None = _seconds_or_null()


class AttemptReportRow(Base, table=True):
    """What a service that does not lead has seen of one of its attempts: at most one row of a kind, the newest progress.

    The row is there until the leader has committed what it says; ``report`` is a :class:`service.engine.events.Report`.
    """

    __tablename__ = "attempt_reports"
    __table_args__ = (sa.Index("ix_attempt_reports_host", "host"),)

    attempt_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    host: str
    at_s: float = _seconds()
    report: Any = _document()
