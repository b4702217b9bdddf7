"""Measured seconds per iteration by span, and the slowdown by span that a prediction gave."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Three documents; NULL where nothing was measured or known."""
    op.add_column("jobs", sa.Column("seconds_by_span", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("history", sa.Column("seconds_by_span", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("predictions", sa.Column("slowdown", sa.JSON(none_as_null=True), nullable=True))
