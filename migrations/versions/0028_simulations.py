"""What-if runs of the service."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table. Open runs are found through a partial index."""
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "simulations",
        sa.Column("id", serial, autoincrement=True, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("user", sa.String(), nullable=True),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=True),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=True),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("eta_s", sa.Double(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_simulations_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_simulations")),
        sqlite_autoincrement=True,
    )
    where = sa.text("state IN ('queued', 'running')")
    op.create_index("ix_simulations_open", "simulations", ["id"], sqlite_where=where, postgresql_where=where)
