"""The losses that training programs report, thinned out."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two documents; NULL where no loss was reported."""
    op.add_column("jobs", sa.Column("loss_curve", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("history", sa.Column("loss_curve", sa.JSON(none_as_null=True), nullable=True))
