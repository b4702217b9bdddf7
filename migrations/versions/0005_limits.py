"""Quotas of users and projects, and pauses of the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "queue_limits",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("gpus_running_max", sa.Integer(), nullable=True),
        sa.Column("jobs_queued_max", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("pause_reason", sa.String(), nullable=False),
        sa.Column("changed_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("scope IN ('queue', 'user', 'project')", name=op.f("ck_queue_limits_scope")),
        sa.CheckConstraint("(scope = 'queue') = (name = '')", name=op.f("ck_queue_limits_name")),
        sa.CheckConstraint("gpus_running_max >= 0", name=op.f("ck_queue_limits_gpus_running_max")),
        sa.CheckConstraint("jobs_queued_max >= 0", name=op.f("ck_queue_limits_jobs_queued_max")),
        sa.PrimaryKeyConstraint("scope", "name", name=op.f("pk_queue_limits")),
    )
