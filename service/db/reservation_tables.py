"""The table of servers that are set aside for a time."""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import _SERIAL, Base, _document, _seconds, _seconds_or_null


class ReservationRow(Base, table=True):
    """One reservation, written together with the fact that tells the engine, whose number is its ``id``.

    ``window`` is the engine's document of it; the two times repeat it so that past ones need not be read.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        sa.CheckConstraint("ends_at_s >= starts_at_s", name="times"),
        sa.Index("ix_reservations_ends_at_s", "ends_at_s"),
    )

    id: int = Field(sa_column=sa.Column(_SERIAL, primary_key=True, autoincrement=False))
    window: Any = _document()
    starts_at_s: float = _seconds()
    ends_at_s: float = _seconds()
    reason: str = ""
    created_at_s: float = _seconds()
    cancelled_at_s: float | None = _seconds_or_null()
