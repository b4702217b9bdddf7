"""The queued jobs of a project, without a look at those that have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One partial index: it grows with the queue alone."""
    where = sa.text("state = 'queued'")
    op.create_index("ix_jobs_queued", "jobs", ["project", "user", "id"], sqlite_where=where, postgresql_where=where)
