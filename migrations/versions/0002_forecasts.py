"""Forecasts are stored, and scored once it is known how right they were."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# SQLite counts rows by itself only in a column of exactly the type INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """One table with its indexes."""
    op.create_table(
        "forecasts",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("milestone", sa.String(), nullable=False),
        sa.Column("made_at_s", sa.Double(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("model_version", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("p10_s", sa.Double(), nullable=False),
        sa.Column("p50_s", sa.Double(), nullable=False),
        sa.Column("p90_s", sa.Double(), nullable=False),
        sa.Column("actual_at_s", sa.Double(), nullable=True),
        sa.Column("scored_at_s", sa.Double(), nullable=True),
        sa.Column("error_s", sa.Double(), nullable=True),
        sa.Column("inside", sa.Boolean(), nullable=True),
        sa.Column("pinball_s", sa.Double(), nullable=True),
        sa.CheckConstraint("milestone IN ('start', 'finish')", name=op.f("ck_forecasts_milestone")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_forecasts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forecasts")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_forecasts_job_id_id", "forecasts", ["job_id", "id"], unique=False)
    op.create_index("ix_forecasts_made_at_s", "forecasts", ["made_at_s"], unique=False)
    op.create_index(
        "ix_forecasts_unscored",
        "forecasts",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("scored_at_s IS NULL"),
        postgresql_where=sa.text("scored_at_s IS NULL"),
    )
