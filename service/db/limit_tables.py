"""The table of what operators allow users, projects and the whole queue."""

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _seconds
from service.engine.limits import Scope

_SCOPES = ", ".join(repr(scope.value) for scope in (Scope.QUEUE, Scope.USER, Scope.PROJECT))


class LimitRow(Base, table=True):
    """One owner's limits, as the newest request about each of them left it. The HTTP side writes it together with the fact
    that tells the engine; a row that limits nothing any more is deleted.

    ``name`` is empty exactly for the whole queue. ``gpus_running_max``: GPUs held at a time; ``jobs_queued_max``: unfinished
    jobs; NULL = any number. ``paused``: nothing starts, for ``pause_reason``.
    """

    __tablename__ = "queue_limits"
    __table_args__ = (
        sa.CheckConstraint(f"scope IN ({_SCOPES})", name="scope"),
        sa.CheckConstraint("(scope = 'queue') = (name = '')", name="name"),
        sa.CheckConstraint("gpus_running_max >= 0", name="gpus_running_max"),
        sa.CheckConstraint("jobs_queued_max >= 0", name="jobs_queued_max"),
    )

    scope: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    gpus_running_max: int | None = None
    jobs_queued_max: int | None = None
    paused: bool = False
    pause_reason: str = ""
    changed_at_s: float = _seconds()
