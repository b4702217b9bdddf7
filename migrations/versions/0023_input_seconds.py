"""The seconds that a program has waited for input, as its progress reports say."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; empty where the program does not report it."""
    op.add_column("progress", sa.Column("input_s", sa.Double(), nullable=True))
