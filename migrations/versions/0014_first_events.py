"""The cycle that admits a job writes its first event; until now the request did.

A job that no cycle has admitted yet has its first event from the request. Admission would write a second one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete the first events of jobs whose submission is still pending."""
    op.execute(
        sa.text(
            "DELETE FROM job_events WHERE source IS NULL AND job_id IN"
            " (SELECT job_id FROM facts WHERE kind = 'submitted' AND consumed_cycle IS NULL)"
        )
    )
