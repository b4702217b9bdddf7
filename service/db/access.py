"""Users, their projects and their API keys in the database. Every function works in the caller's transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    false,
    func,
    insert,
    or_,
    select,
    true,
    update,
)

from service.db.dialects import insert_missing
from service.db.pages import equal, page
from service.db.rows import chunks
from service.db.tables import API_KEYS, JOBS, MEMBERSHIPS, USERS, columns
from service.domain.access import NO_PROJECT, Identity, Role
from service.domain.api_key import NewKey

_KEY_COLUMNS = tuple(column for column in API_KEYS.c if column.name != "secret_sha256")


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """The rights of a new key. ``projects`` None = all projects of its user."""

    user: str
    role: Role
    projects: tuple[str, ...] | None = None
    note: str = ""
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What authentication needs of a key: its identity, the digest of its secret, and when it expires."""

    identity: Identity
    secret_sha256: str
    usable: bool
    expires_at_s: float | None
    last_used_at_s: float | None


class JobOwner(NamedTuple):
    """The project and user of a job; neither ever changes."""

    project: str
    user: str


def owner_of(connection: Connection, job: int) -> JobOwner | None:
    """The owner of a job; None if there is no such job."""
    row = connection.execute(select(JOBS.c.project, JOBS.c.user).where(JOBS.c.id == job)).one_or_none()
    return None if row is None else JobOwner(row.project, row.user)


def seen(caller: Identity, project: ColumnElement[str], user: ColumnElement[str]) -> ColumnElement[bool]:
    """The condition on a row of this project and user that :meth:`Identity.sees` is for a job."""
    if caller.projects is None:
        return true()
    ways: list[ColumnElement[bool]] = []
    if NO_PROJECT in caller.projects:
        ways.append(and_(project == NO_PROJECT, user == caller.user))
    if named := sorted(caller.projects - {NO_PROJECT}):
        ways.append(project.in_(named))
    return or_(false(), *ways)


def seen_jobs(connection: Connection, job_ids: Collection[int], caller: Identity) -> set[int]:
    """The ids among these whose jobs the caller sees."""
    condition = seen(caller, JOBS.c.project, JOBS.c.user)
    known: set[int] = set()
    for part in chunks(sorted(job_ids)):
        known.update(connection.execute(select(JOBS.c.id).where(JOBS.c.id.in_(part), condition)).scalars())
    return known


def stored_key(connection: Connection, key: str) -> StoredKey | None:
    """A key with the current rights of its user. ``usable``: not revoked, and its user not disabled."""
    row = connection.execute(
        select(API_KEYS, USERS.c.disabled_at_s).join(USERS, USERS.c.name == API_KEYS.c.user).where(API_KEYS.c.id == key)
    ).one_or_none()
    if row is None:
        return None
    role = Role(row.role)
    seen = None if role.covers(Role.OPERATOR) else _projects_seen(connection, row)
    return StoredKey(
        Identity(row.user, role, seen, row.id),
        row.secret_sha256,
        row.revoked_at_s is None and row.disabled_at_s is None,
        row.expires_at_s,
        row.last_used_at_s,
    )


def _projects_seen(connection: Connection, key: Row[Any]) -> frozenset[str]:
    """The projects that a key gives access to: only those that its user is a member of now."""
    joined = connection.execute(select(MEMBERSHIPS.c.project).where(MEMBERSHIPS.c.user == key.user)).scalars()
    if key.projects is None:
        return frozenset((*joined, NO_PROJECT))
    return frozenset(joined).intersection(key.projects)


def add_key(connection: Connection, key: NewKey, grant: KeyGrant, now_s: float) -> None:
    """Store a key. Missing users, and missing memberships of the key's projects, are added."""
    add_user(connection, grant.user, now_s)
    for project in grant.projects or ():
        add_member(connection, project, grant.user, now_s)
    connection.execute(
        insert(API_KEYS).values(
            id=key.id,
            secret_sha256=key.secret_sha256,
            user=grant.user,
            role=grant.role.value,
            projects=None if grant.projects is None else list(grant.projects),
            note=grant.note,
            created_at_s=now_s,
            expires_at_s=grant.expires_at_s,
        )
    )


def key(connection: Connection, key_id: str) -> Row[Any] | None:
    """A key without the digest of its secret; None if there is no such key."""
    return connection.execute(select(*_KEY_COLUMNS).where(API_KEYS.c.id == key_id)).one_or_none()


def keys(connection: Connection, user: str | None, before: tuple[float, str] | None, limit: int) -> Sequence[Row[Any]]:
    """Keys, newest first, including expired and revoked ones."""
    theirs = select(*_KEY_COLUMNS).where(*equal(API_KEYS, user=user))
    return page(connection, theirs, columns(API_KEYS, "created_at_s id"), before, limit, descending=True)


def revoke_key(connection: Connection, key_id: str, now_s: float) -> None:
    """Revoke a key. A key that was revoked before keeps its time of revocation."""
    condition = (API_KEYS.c.id == key_id) & API_KEYS.c.revoked_at_s.is_(None)
    connection.execute(update(API_KEYS).where(condition).values(revoked_at_s=now_s))


def used_key(connection: Connection, key_id: str, now_s: float) -> None:
    """Store when a key was last used."""
    later = func.coalesce(API_KEYS.c.last_used_at_s, 0.0) < now_s
    connection.execute(update(API_KEYS).where((API_KEYS.c.id == key_id) & later).values(last_used_at_s=now_s))


def add_user(connection: Connection, name: str, now_s: float) -> bool:
    """Add a user unless there is one of that name; returns whether it was added."""
    return insert_missing(connection, USERS, {"name": name, "created_at_s": now_s})


def set_disabled(connection: Connection, name: str, disabled_at_s: float | None) -> None:
    """Disable a user, or (None) enable it again. A disabled user keeps its first time of disabling."""
    condition: ColumnElement[bool] = USERS.c.name == name
    if disabled_at_s is not None:
        condition &= USERS.c.disabled_at_s.is_(None)
    connection.execute(update(USERS).where(condition).values(disabled_at_s=disabled_at_s))


def user(connection: Connection, name: str) -> Row[Any] | None:
    """One user, or None."""
    return connection.execute(select(USERS).where(USERS.c.name == name)).one_or_none()


def is_disabled(connection: Connection, name: str) -> bool:
    """Whether there is such a user, and it is disabled."""
    row = user(connection, name)
    return row is not None and row.disabled_at_s is not None


def users(connection: Connection, after: str | None, limit: int) -> Sequence[Row[Any]]:
    """Users by name."""
    return page(connection, select(USERS), [USERS.c.name], after, limit)


def projects_of(connection: Connection, names: Collection[str]) -> Mapping[str, list[str]]:
    """The projects of these users, in order."""
    return _grouped(connection, "user", "project", names)


def projects(connection: Connection, after: str | None, limit: int) -> Sequence[str]:
    """Projects with members, by name."""
    name = MEMBERSHIPS.c.project
    return [row.project for row in page(connection, select(name).distinct(), [name], after, limit)]


def members_of(connection: Connection, names: Collection[str]) -> Mapping[str, list[str]]:
    """The members of these projects, in order."""
    return _grouped(connection, "project", "user", names)


def add_member(connection: Connection, project: str, user: str, now_s: float) -> bool:
    """Add a member unless it is one already; returns whether it was added. The user must exist."""
    return insert_missing(connection, MEMBERSHIPS, {"project": project, "user": user, "added_at_s": now_s})


def remove_member(connection: Connection, project: str, user: str) -> bool:
    """Remove a member; returns whether it was one."""
    condition = (MEMBERSHIPS.c.project == project) & (MEMBERSHIPS.c.user == user)
    return connection.execute(delete(MEMBERSHIPS).where(condition)).rowcount > 0


def _grouped(connection: Connection, by: str, what: str, names: Collection[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in names}
    statement = select(MEMBERSHIPS.c[by], MEMBERSHIPS.c[what]).where(MEMBERSHIPS.c[by].in_(sorted(names)))
    for name, value in connection.execute(statement.order_by(MEMBERSHIPS.c[what])):
        found[name].append(value)
    return found
