"""The table of what was forecast, and how right it was."""

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _job, _seconds, _seconds_or_null, _serial

_UNSCORED = sa.text("scored_at_s IS NULL")


class ForecastRow(Base, table=True):
    """When a job was expected to reach a milestone (``start``: to hold GPUs next; ``finish``: to end), told at ``made_at_s``.

    ``scored_at_s`` is NULL until it is known what became of it. ``error_s`` = p50 - actual: above 0 it was told too late;
    NULL with ``scored_at_s`` given where nothing can be compared (the job was cancelled). ``pinball_s`` is the mean of the
    three quantiles' pinball losses, in seconds.
    """

    __tablename__ = "forecasts"
    __table_args__ = (
        sa.CheckConstraint("milestone IN ('start', 'finish')", name="milestone"),
        sa.Index("ix_forecasts_job_id_id", "job_id", "id"),
        sa.Index("ix_forecasts_made_at_s", "made_at_s"),
        # What scoring has still to look at.
        sa.Index("ix_forecasts_unscored", "job_id", sqlite_where=_UNSCORED, postgresql_where=_UNSCORED),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    job_id: int = _job()
    milestone: str
    made_at_s: float = _seconds()
    cycle: int
    policy: str
    model_version: str
    source: str
    samples: int
    gpus: int
    p10_s: float = _seconds()
    p50_s: float = _seconds()
    p90_s: float = _seconds()
    actual_at_s: float | None = _seconds_or_null()
    scored_at_s: float | None = _seconds_or_null()
    error_s: float | None = _seconds_or_null()
    inside: bool | None = Field(default=None)
    pinball_s: float | None = _seconds_or_null()
