"""Webhooks, and what is delivered to them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# SQLite counts rows by itself only in a column of exactly the type INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Two tables with their indexes."""
    op.create_table(
        "webhooks",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=True),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("after_event", sa.BigInteger(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=True),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at_s", sa.Double(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name=op.f("ck_webhook_deliveries_state")),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("webhook_id", "event_id", name=op.f("uq_webhook_deliveries_webhook_id_event_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhook_deliveries_webhook_id_id", "webhook_deliveries", ["webhook_id", "id"], unique=False)
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["webhook_id", "next_at_s"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_webhook_deliveries_ended_at_s", "webhook_deliveries", ["ended_at_s"], unique=False)
