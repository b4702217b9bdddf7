"""Indexes for the attempts of the whole cluster in a period."""

from alembic import op

revision = "0026"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two indexes: attempts by when they were opened, and by when they ended."""
    op.create_index("ix_attempts_opened_at_s_id", "attempts", ["opened_at_s", "id"], unique=False)
    op.create_index("ix_attempts_ended_at_s_opened_at_s", "attempts", ["ended_at_s", "opened_at_s"], unique=False)
