"""The tables of webhooks and of what is delivered to them."""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _document, _seconds, _seconds_or_null, _serial

_PENDING = sa.text("state = 'pending'")


class WebhookRow(Base, table=True):
    """Where changes of jobs are told. ``owner`` added it (empty: the local token). ``user`` and ``project`` narrow whose jobs;
    NULL = everybody's. ``after_event``: only later rows of ``job_events`` are told.

    The secret signs, so it is kept as it is; it is nowhere else, and goes with the row.
    """

    __tablename__ = "webhooks"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = _serial()
    url: str
    events: Any = _document()
    owner: str
    user: str | None = None
    project: str | None = None
    secret: str
    after_event: int = Field(sa_type=sa.BigInteger)
    created_at_s: float = _seconds()


class DeliveryRow(Base, table=True):
    """One thing to tell one webhook: the outbox. ``event_id`` is the row of ``job_events``; NULL for a test.

    ``status`` and ``error`` are of the newest attempt: what was answered, or why nothing was.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        sa.UniqueConstraint("webhook_id", "event_id"),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="state"),
        sa.Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
        sa.Index(
            "ix_webhook_deliveries_pending",
            "webhook_id",
            "next_at_s",
            sqlite_where=_PENDING,
            postgresql_where=_PENDING,
        ),
        sa.Index("ix_webhook_deliveries_ended_at_s", "ended_at_s"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    webhook_id: int = Field(sa_column=sa.Column(sa.BigInteger, sa.ForeignKey("webhooks.id"), nullable=False))
    event_id: int | None = Field(default=None, sa_type=sa.BigInteger, nullable=True)
    event: str
    body: Any = _document()
    state: str
    attempts: int
    next_at_s: float = _seconds()
    created_at_s: float = _seconds()
    ended_at_s: float | None = _seconds_or_null()
    status: int | None = None
    error: str
