"""Requests take turns, so that a large submission does not keep others waiting."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column and the two indexes of the few requests that no cycle has taken."""
    op.add_column("facts", sa.Column("turn", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.drop_index("ix_facts_unconsumed", table_name="facts")
    unconsumed = sa.text("consumed_cycle IS NULL")
    for name, columns in (("turn_id", ["turn", "id"]), ("job_id", ["job_id"])):
        op.create_index(
            f"ix_facts_unconsumed_{name}",
            "facts",
            columns,
            unique=False,
            sqlite_where=unconsumed,
            postgresql_where=unconsumed,
        )
