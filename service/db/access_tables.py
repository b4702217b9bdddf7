"""The tables of who may do what, and of who did what."""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _document, _seconds, _seconds_or_null, _serial
from service.domain.access import Role


class UserRow(Base, table=True):
    """Somebody with API keys. Whoever is disabled keeps his jobs, and his keys open nothing."""

    __tablename__ = "users"

    name: str = Field(primary_key=True)
    created_at_s: float = _seconds()
    disabled_at_s: float | None = _seconds_or_null()


class MembershipRow(Base, table=True):
    """That a user sees the jobs of a project."""

    __tablename__ = "memberships"
    __table_args__ = (sa.Index("ix_memberships_project_user", "project", "user"),)

    user: str = Field(sa_column=sa.Column(sa.String, sa.ForeignKey("users.name"), primary_key=True))
    project: str = Field(primary_key=True)
    added_at_s: float = _seconds()


class ApiKeyRow(Base, table=True):
    """One API key: its public part and the SHA-256 of its secret one, which nobody knows but its user.

    ``projects`` narrows the key to some of its user's projects; NULL = all of them, and his jobs without a project.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        sa.CheckConstraint(f"role IN ({', '.join(repr(role.value) for role in Role)})", name="role"),
        sa.Index("ix_api_keys_user", "user"),
        # Newest first.
        sa.Index("ix_api_keys_created_at_s_id", "created_at_s", "id"),
    )

    id: str = Field(primary_key=True)
    secret_sha256: str
    user: str = Field(sa_column=sa.Column(sa.String, sa.ForeignKey("users.name"), nullable=False))
    role: str
    projects: Any = _document(nullable=True)
    note: str = ""
    created_at_s: float = _seconds()
    expires_at_s: float | None = _seconds_or_null()
    revoked_at_s: float | None = _seconds_or_null()
    last_used_at_s: float | None = _seconds_or_null()


class AuditRow(Base, table=True):
    """One change: who made it, when, what it was, to what, from where, and what became of it.

    Append-only: the database itself refuses to change a row, and only pruning by age deletes any. ``user`` is NULL for the
    local token and for commands that work on the database itself; ``address`` is NULL for the latter.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        sa.Index("ix_audit_log_at_s", "at_s"),
        sa.Index("ix_audit_log_user_id", "user", "id"),
        sa.Index("ix_audit_log_target_id", "target", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    at_s: float = _seconds()
    user: str | None = None
    role: str
    key_id: str | None = None
    address: str | None = None
    request_id: str
    action: str
    target: str
    outcome: str
    status: int
    detail: Any = _document()


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
"""By dialect: what makes the database refuse to change a row of the log. Rows are deleted, by age alone."""

for _dialect, _statements in APPEND_ONLY.items():
    for _statement in _statements:
        sa.event.listen(
            Base.metadata.tables["audit_log"],
            "after_create",
            sa.DDL(_statement).execute_if(dialect=_dialect),  # type: ignore[no-untyped-call]
        )
