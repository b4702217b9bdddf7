"""Sessions of browsers, and the codes that open one."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table; a row is deleted when it is used (a code), at a sign-out, or after its end."""
    op.create_table(
        "web_sessions",
        sa.Column("token_sha256", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('session', 'code')", name=op.f("ck_web_sessions_kind")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_web_sessions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_web_sessions")),
    )
    op.create_index("ix_web_sessions_expires_at_s", "web_sessions", ["expires_at_s"])
