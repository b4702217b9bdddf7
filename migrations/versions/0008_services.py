"""Several services on one database: who they are, whose attempt is whose, and what they tell the leader."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables and a column. Attempts without a host belong to whoever holds their folder, and he says so at his start."""
    op.add_column("attempts", sa.Column("host", sa.String(), nullable=False, server_default=sa.text("''")))
    op.create_table(
        "services",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.Column("seen_at_s", sa.Double(), nullable=False),
        sa.Column("condemned_at_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_services")),
    )
    op.create_table(
        "attempt_reports",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "kind", name=op.f("pk_attempt_reports")),
    )
    op.create_index("ix_attempt_reports_host", "attempt_reports", ["host"], unique=False)
