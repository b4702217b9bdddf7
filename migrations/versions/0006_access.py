"""Who may do what: users, their projects and API keys; and the log of who did what."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# SQLite counts rows by itself only in a column of exactly the type INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log"
        " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''the audit log is append-only''; END'",
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log FOR EACH ROW EXECUTE FUNCTION refuse_change()",
    ),
}


def upgrade() -> None:
    """Four tables, and the trigger that keeps the log as it is."""
    op.create_table(
        "users",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("disabled_at_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "memberships",
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("added_at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_memberships_user_users")),
        sa.PrimaryKeyConstraint("user", "project", name=op.f("pk_memberships")),
    )
    op.create_index("ix_memberships_project_user", "memberships", ["project", "user"], unique=False)
    _keys()
    _log()
    for statement in APPEND_ONLY[op.get_context().dialect.name]:
        op.execute(statement)


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("projects", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=True),
        sa.Column("revoked_at_s", sa.Double(), nullable=True),
        sa.Column("last_used_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'submitter', 'operator', 'admin')", name=op.f("ck_api_keys_role")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_api_keys_user_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index("ix_api_keys_created_at_s_id", "api_keys", ["created_at_s", "id"], unique=False)
    op.create_index("ix_api_keys_user", "api_keys", ["user"], unique=False)


def _log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("user", sa.String(), nullable=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("address", sa.String(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_at_s", "audit_log", ["at_s"], unique=False)
    op.create_index("ix_audit_log_target_id", "audit_log", ["target", "id"], unique=False)
    op.create_index("ix_audit_log_user_id", "audit_log", ["user", "id"], unique=False)
