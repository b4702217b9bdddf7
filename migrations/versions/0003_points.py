"""A prediction keeps its point where that is not the middle of its distribution."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; for what was said before, the point is the median."""
    op.add_column("predictions", sa.Column("point", sa.Double(), nullable=True))
