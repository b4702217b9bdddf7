"""The reason for which the service itself has drained a server."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; empty where an operator drained the server."""
    op.add_column("servers", sa.Column("health_reason", sa.String(), server_default=sa.text("''"), nullable=False))
