"""Users, projects, keys and the log of changes: what clients may send of them, and what they are told."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from service.api.documents import instant, instant_or_none
from service.api.schemas import TEXT_MAX, Body, Text
from service.domain.access import NO_PROJECT, Identity, Role

PROJECTS_MAX = 100
"""Projects that one key can be narrowed to."""

UserName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=r"^[^\x00-\x1f\x7f/]+$")]
ProjectName = UserName

_KEY: dict[str, Any] = {"user": "ada", "role": "submitter", "projects": ["nlp"], "expires_in_s": 7_776_000}


class KeyBody(Body):
    """An API key to make."""

    model_config = ConfigDict(json_schema_extra={"examples": [_KEY]})

    user: UserName = Field(description="Whose key it is; a user who is not there yet is made.")
    role: Literal["viewer", "submitter", "operator", "admin"]
    projects: Annotated[list[ProjectName], Field(min_length=1, max_length=PROJECTS_MAX)] | None = Field(
        default=None,
        description="Narrows the key to these projects, of which the user becomes a member; null: all of the user's. "
        "Operators and admins see every project.",
    )
    expires_in_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Left out: the setting key_lifetime_s; at most key_lifetime_s_max."
    )
    note: Text = Field(default="", description="What it is for.")


class UserBody(Body):
    """What is to be of a user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"disabled": False}]})

    disabled: bool = Field(default=False, description="The user's keys open nothing as long as this is true.")


class KeyDocument(BaseModel):
    """An API key, without its secret."""

    id: str
    user: str
    role: Role
    projects: list[str] | None = Field(description="null: all of its user's.")
    note: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")


class NewKeyDocument(KeyDocument):
    """A key that has just been made."""

    key: str | None = Field(description="The key itself, shown this once; null where the request was repeated.")


class UserDocument(BaseModel):
    """Somebody with API keys."""

    name: str
    projects: list[str]
    created_at: datetime
    disabled_at: datetime | None


class ProjectDocument(BaseModel):
    """A project with its members."""

    name: str
    members: list[str]


class MembershipDocument(BaseModel):
    """Whether a user is a member of a project from now on."""

    project: str
    user: str
    member: bool


class IdentityDocument(BaseModel):
    """Who the caller is to the service."""

    user: str | None = Field(description="null for the local token, which has no name.")
    role: Role
    projects: list[str] | None = Field(description="Those whose jobs the caller sees; null: all.")
    key_id: str | None = Field(description="The public part of the caller's key; null for the local token.")
    expires_at: datetime | None = Field(description="When the key ends; null for the local token.")


class AuditDocument(BaseModel):
    """One change."""

    id: int
    at: datetime
    user: str | None = Field(description="null: the local token, or a command on the machine itself.")
    role: Role
    key_id: str | None
    address: str | None = Field(description="From where; null: a command on the machine itself.")
    request_id: str = Field(description="The answer's header X-Request-Id.")
    action: str = Field(description="Method and route.")
    target: str
    outcome: Literal["done", "asked", "refused"] = Field(
        description="done: written together with the change. asked: about to be tried outside the database. "
        "refused: the caller may not do it."
    )
    status: int = Field(description="HTTP status of the answer; 0 where there was none yet.")
    detail: dict[str, Any]


def key_document(row: Row[Any]) -> KeyDocument:
    """A row of ``api_keys``."""
    return KeyDocument(
        id=row.id,
        user=row.user,
        role=Role(row.role),
        projects=row.projects,
        note=row.note,
        created_at=instant(row.created_at_s),
        expires_at=instant_or_none(row.expires_at_s),
        revoked_at=instant_or_none(row.revoked_at_s),
        last_used_at=instant_or_none(row.last_used_at_s),
    )


def user_document(row: Row[Any], projects: Sequence[str]) -> UserDocument:
    """A row of ``users`` with the user's projects."""
    return UserDocument(
        name=row.name,
        projects=list(projects),
        created_at=instant(row.created_at_s),
        disabled_at=instant_or_none(row.disabled_at_s),
    )


def identity_document(caller: Identity, expires_at_s: float | None) -> IdentityDocument:
    """The caller, to himself."""
    projects = None if caller.projects is None else sorted(caller.projects - {NO_PROJECT})
    return IdentityDocument(
        user=caller.user,
        role=caller.role,
        projects=projects,
        key_id=caller.key_id,
        expires_at=instant_or_none(expires_at_s),
    )


def audit_document(row: Row[Any]) -> AuditDocument:
    """A line of the log of changes."""
    return AuditDocument(
        id=row.id,
        at=instant(row.at_s),
        user=row.user,
        role=Role(row.role),
        key_id=row.key_id,
        address=row.address,
        request_id=row.request_id,
        action=row.action,
        target=row.target,
        outcome=row.outcome,
        status=row.status,
        detail=row.detail,
    )
