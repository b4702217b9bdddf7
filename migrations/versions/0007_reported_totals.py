"""A job keeps the least total that its own reports of progress have named, and so does its label."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns; of what ran before nobody knows what it reported."""
    op.add_column("jobs", sa.Column("reported_iterations", sa.Double(), nullable=True))
    op.add_column("history", sa.Column("reported_iterations", sa.Double(), nullable=True))
