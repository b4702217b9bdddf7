"""Jobs that were submitted as elements of an array say of which, and where they stand in it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns and the index of the few jobs that have them."""
    op.add_column("jobs", sa.Column("array_id", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("array_index", sa.Integer(), nullable=True))
    op.create_index(
        "ix_jobs_array_id_id",
        "jobs",
        ["array_id", "id"],
        unique=False,
        sqlite_where=sa.text("array_id IS NOT NULL"),
        postgresql_where=sa.text("array_id IS NOT NULL"),
    )
