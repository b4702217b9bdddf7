"""Servers can be set aside for a time."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    op.create_table(
        "reservations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("window", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("starts_at_s", sa.Double(), nullable=False),
        sa.Column("ends_at_s", sa.Double(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("cancelled_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint("ends_at_s >= starts_at_s", name=op.f("ck_reservations_times")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
    )
    op.create_index("ix_reservations_ends_at_s", "reservations", ["ends_at_s"], unique=False)
