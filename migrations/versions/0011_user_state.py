"""A user's list narrowed to a state is found in one index: no other row is looked at."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One index instead of another."""
    op.drop_index("ix_jobs_user_id", table_name="jobs")
    op.create_index("ix_jobs_user_id_state", "jobs", ["user", "id", "state"], unique=False)
