"""The quantiles of forecasts before calibration."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Three columns. Forecasts of older releases were shown as they were drawn, so theirs stay NULL."""
    for name in ("drawn_p10_s", "drawn_p50_s", "drawn_p90_s"):
        op.add_column("forecasts", sa.Column(name, sa.Double(), nullable=True))
