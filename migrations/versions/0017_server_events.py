"""Drains by the engine of a cluster, reasons and changes of servers, and the GPUs that an attempt got."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Columns with the values that they had unwritten, and one table."""
    op.add_column("servers", sa.Column("engine_drained", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("servers", sa.Column("detail", sa.String(), server_default=sa.text("''"), nullable=False))
    op.add_column("attempts", sa.Column("got_gpu_ids", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "server_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_server_events_position_id", "server_events", ["position", "id"], unique=False)
    op.create_index("ix_server_events_at_s", "server_events", ["at_s"], unique=False)
