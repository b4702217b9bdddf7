"""The client's side of who may do what: keys, users, projects, the log of changes; and the documents about them.

They are the API's own (its reference describes each key); mappings here, because a client may be older than its service.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from service.client.services import ServicesClient
from service.client.transport import segment


class ApiKey(TypedDict):
    """An API key, without its secret."""

    id: str
    user: str
    role: str
    projects: list[str] | None
    note: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class NewApiKey(ApiKey):
    """A key that has just been made, with its text."""

    key: str | None


class User(TypedDict):
    """Somebody with API keys."""

    name: str
    projects: list[str]
    created_at: str
    disabled_at: str | None


class Project(TypedDict):
    """A project with its members."""

    name: str
    members: list[str]


class Membership(TypedDict):
    """Whether a user is a member of a project from now on."""

    project: str
    user: str
    member: bool


class Me(TypedDict):
    """Who the caller is to the service."""

    user: str | None
    role: str
    projects: list[str] | None
    key_id: str | None
    expires_at: str | None


class Change(TypedDict):
    """A line of the log of changes."""

    id: int
    at: str
    user: str | None
    role: str
    key_id: str | None
    address: str | None
    request_id: str
    action: str
    target: str
    outcome: str
    status: int
    detail: dict[str, Any]


class AccessClient(ServicesClient):
    """What admins ask, and who one is oneself."""

    def me(self) -> Me:
        """What the token stands for."""
        found: Me = self._json("GET", "/v1/me")
        return found

    def keys(self, user: str | None = None) -> list[ApiKey]:
        """API keys, newest first; of one user if given."""
        return list(self._pages("/v1/keys", {"user": user}))

    def make_key(
        self,
        user: str,
        role: str,
        projects: Sequence[str] = (),
        expires_in_s: float | None = None,
        note: str = "",
    ) -> NewApiKey:
        """A new key; its text is in this answer and nowhere else."""
        body = {
            "user": user,
            "role": role,
            "projects": list(projects) or None,
            "expires_in_s": expires_in_s,
            "note": note,
        }
        made: NewApiKey = self._json("POST", "/v1/keys", body=body)
        return made

    def revoke_key(self, key_id: str) -> ApiKey:
        """Let a key open nothing any more."""
        revoked: ApiKey = self._json("POST", f"/v1/keys/{segment(key_id)}/revoke")
        return revoked

    def users(self) -> list[User]:
        """Users by name."""
        return list(self._pages("/v1/users"))

    def put_user(self, name: str, *, disabled: bool = False) -> User:
        """Add a user; disable or enable one that is there."""
        found: User = self._json("PUT", f"/v1/users/{segment(name)}", body={"disabled": disabled})
        return found

    def projects(self) -> list[Project]:
        """Projects with members, by name."""
        return list(self._pages("/v1/projects"))

    def set_member(self, project: str, user: str, *, member: bool) -> Membership:
        """Let a user see a project, or see it no more."""
        path = f"/v1/projects/{segment(project)}/members/{segment(user)}"
        found: Membership = self._json("PUT" if member else "DELETE", path)
        return found

    def changes(self, *, user: str | None = None, target: str | None = None, limit: int | None = None) -> list[Change]:
        """The log of changes, newest first; all of it, or at most ``limit`` lines."""
        return list(self._pages("/v1/audit", {"user": user, "target": target}, limit))
