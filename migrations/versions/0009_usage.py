"""What was used of the GPUs is summed up by day, for attempts of the past too."""

from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

DAY_S = 86_400.0

Sums = defaultdict[tuple[int, str, str], list[float]]


def upgrade() -> None:
    """One table, filled from the attempts and jobs that have ended."""
    usage = op.create_table(
        "usage",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("held_gpu_s", sa.Double(), nullable=False),
        sa.Column("useful_gpu_s", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "user", "project", name=op.f("pk_usage")),
    )
    assert usage is not None
    rows = [
        {
            "day": day,
            "user": user,
            "project": project,
            "held_gpu_s": held,
            "useful_gpu_s": useful,
            "attempts": int(attempts),
            "preemptions": int(preemptions),
            "jobs": int(jobs),
        }
        for (day, user, project), (held, useful, attempts, preemptions, jobs) in _past().items()
    ]
    if rows:
        op.bulk_insert(usage, rows)


def _past() -> Sums:
    sums: Sums = defaultdict(lambda: [0.0] * 5)
    jobs = sa.table(
        "jobs",
        *(sa.column(name) for name in ("id", "user", "project", "gpus", "service_s", "finished_at_s")),
    )
    attempts = sa.table(
        "attempts",
        *(sa.column(name) for name in ("job_id", "number", "state", "opened_at_s", "ended_at_s", "resume_service_s")),
    )
    both = (
        sa.select(attempts, jobs.c.user, jobs.c.project, jobs.c.gpus, jobs.c.service_s)
        .join_from(attempts, jobs, attempts.c.job_id == jobs.c.id)
        .order_by(attempts.c.job_id, attempts.c.number.desc())
    )
    connection = op.get_bind()
    later: Any = None
    for row in connection.execute(both.execution_options(stream_results=True)):
        # What counted of an attempt is what the next one went on from, or where the job stands.
        reached_s = later.resume_service_s if later is not None and later.job_id == row.job_id else row.service_s
        later = row
        if row.ended_at_s is not None:
            _add(sums, row, reached_s - row.resume_service_s)
    ended = sa.select(jobs.c.user, jobs.c.project, jobs.c.finished_at_s).where(jobs.c.finished_at_s.is_not(None))
    for row in connection.execute(ended):
        sums[int(row.finished_at_s // DAY_S), row.user, row.project][4] += 1
    return sums


def _add(sums: Sums, row: Any, counted_s: float) -> None:
    length_s = row.ended_at_s - row.opened_at_s
    useful = min(1.0, max(0.0, counted_s) / length_s) if length_s > 0.0 else 0.0
    last = int(row.ended_at_s // DAY_S)
    for day in range(int(row.opened_at_s // DAY_S), last + 1):
        seconds = min(row.ended_at_s, (day + 1) * DAY_S) - max(row.opened_at_s, day * DAY_S)
        if seconds > 0.0:
            entry = sums[day, row.user, row.project]
            entry[0] += row.gpus * seconds
            entry[1] += row.gpus * seconds * useful
    entry = sums[last, row.user, row.project]
    entry[2] += 1
    entry[3] += row.state == "preempted"
