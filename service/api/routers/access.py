"""API keys, users and projects, the identity of the caller, and the audit log."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from fastapi import Header, Path, Request, Response
from sqlalchemy import Connection
from sqlmodel import Session

from service.api.access import Caller
from service.api.access_documents import identity_document, key_document, user_document
from service.api.authenticate import Authenticator
from service.api.browser import SIGN_IN
from service.api.changes import Change, ChangeRequest
from service.api.deps import Deps
from service.api.documents import document, instant
from service.api.idempotency import Answer, Effect
from service.api.paging import INSTANT, SERIAL, TEXT, Page, Paging
from service.api.permissions import ADMINISTER, OWN_KEYS, READ
from service.api.problems import Fault, Problem, ProblemType
from service.api.routers.common import FilterText, NoBody, Routes, found_or_404
from service.config.settings import Settings
from service.db import access, audit
from service.db.access import KeyGrant
from service.db.web_sessions import Kind, open_session
from service.domain.access import Identity, Role
from service.domain.api_key import NewKey, new_key
from service.wire.access import (
    AuditDocument,
    IdentityDocument,
    KeyDocument,
    MembershipDocument,
    NewKeyDocument,
    ProjectDocument,
    SignInCodeDocument,
    UserDocument,
)
from service.wire.base import PROJECT, TEXT_MAX, USER
from service.wire.bodies import KeyBody, UserBody

routes = Routes("access")

CODE_S = 60.0
"""Life of a code that signs a browser in."""

KeyPath = Annotated[str, Path(min_length=1, max_length=TEXT_MAX, description="The key's id.")]
UserPath = Annotated[str, Path(min_length=1, max_length=TEXT_MAX, pattern=USER)]
ProjectPath = Annotated[str, Path(min_length=1, max_length=TEXT_MAX, pattern=PROJECT)]


@routes.read("/me", READ, "Show the caller")
def show_me(caller: Caller, dependencies: Deps) -> IdentityDocument:
    """The user, role and projects of the request's token."""
    if caller.key_id is None:
        return identity_document(caller, None)
    with dependencies.reading() as connection:
        row = access.key(connection, caller.key_id)
    return identity_document(caller, None if row is None else row.expires_at_s)


@routes.read("/keys", OWN_KEYS, "List API keys, newest first")
def list_keys(caller: Caller, dependencies: Deps, paging: Paging, user: FilterText = None) -> Page[KeyDocument]:
    """The caller's own keys; for admins all keys. Includes expired and revoked keys, without their secrets."""
    if not _sees_keys_of(caller, user):
        return Page(items=[], next=None)
    user = user if caller.role.covers(Role.ADMIN) else caller.user
    scope = f"keys {user!r}"
    before = paging.position(scope, INSTANT, TEXT)
    with dependencies.reading() as connection:
        rows = access.keys(connection, user, before, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.created_at_s, row.id), key_document)


def _sees_keys_of(caller: Identity, user: str | None) -> bool:
    return caller.role.covers(Role.ADMIN) or user in (None, caller.user)


@routes.change("POST", "/keys", ADMINISTER, "Create an API key", NewKeyDocument, status=201)
def make_key(dependencies: Deps, change: Change, request: Request, body: KeyBody) -> Response:
    """Only this response contains the key; it is not stored and cannot be shown again. A repeated request omits it. A disabled
    user gets no key (409).
    """

    def prepare() -> Effect:
        grant = granted(body, dependencies.settings, dependencies.now_s())
        return lambda session: _add_key(session, new_key(), grant, dependencies.now_s())

    return _changed(request, change, prepare)


@routes.change("POST", "/sign-in-codes", READ, "Create a code that signs a browser in", SignInCodeDocument, status=201)
def make_sign_in_code(caller: Caller, dependencies: Deps, change: Change, body: NoBody = None) -> Response:
    """It is valid for a minute and opens one session of the caller. `sooner dashboard` uses it, because a key must not stand in a
    URL.
    """

    def effect(session: Session) -> Answer:
        now_s = dependencies.now_s()
        expires_at_s = now_s + CODE_S
        code = open_session(session.connection(), Kind.CODE, caller.key_id, now_s, expires_at_s)
        kept = SignInCodeDocument(code=None, path=None, expires_at=instant(expires_at_s))
        return Answer(201, {**kept, "code": code, "path": f"{SIGN_IN}?code={code}"}, kept=kept)

    return change.make(effect)


def granted(body: KeyBody, settings: Settings, now_s: float) -> KeyGrant:
    """What the key is for. Raises 422 for a life that is too long, and for an operator's key with projects."""
    role = Role(body.role)
    usual_s = min(settings.key_lifetime_s, settings.key_lifetime_s_max)
    life_s = usual_s if body.expires_in_s is None else body.expires_in_s
    faults = []
    if life_s > settings.key_lifetime_s_max:
        most_s = settings.key_lifetime_s_max
        most = f"must be at most {most_s:.15g}, the setting key_lifetime_s_max (got {life_s:.15g})"
        faults.append(Fault(most, pointer="/expires_in_s"))
    if body.projects is not None and role.covers(Role.OPERATOR):
        faults.append(
            Fault(f"must be null for the role {role.value}, which includes all projects", pointer="/projects")
        )
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)
    projects = None if body.projects is None else tuple(dict.fromkeys(body.projects))
    return KeyGrant(body.user, role, projects, body.note, now_s + life_s)


def refused_to(user: str) -> str:
    """Why a disabled user gets no new key."""
    return f"User {user!r} is disabled: a new key would be refused. Enable the user first."


def _add_key(session: Session, key: NewKey, grant: KeyGrant, now_s: float) -> Answer:
    connection = session.connection()
    if access.is_disabled(connection, grant.user):
        raise Problem(ProblemType.CONFLICT, refused_to(grant.user))
    access.add_key(connection, key, grant, now_s)
    document = key_document(found_or_404(access.key(connection, key.id), f"key {key.id!r}"))
    detail = {"user": grant.user, "role": grant.role.value, "projects": document["projects"]}
    return Answer(
        201,
        {**document, "key": key.text},
        kept={**document, "key": None},
        target=f"key {key.id}",
        detail={**detail, "expires_at": document["expires_at"]},
    )


@routes.change("POST", "/keys/{key_id}/revoke", OWN_KEYS, "Revoke an API key", KeyDocument, 404, status=200)
def revoke_key(
    caller: Caller,
    dependencies: Deps,
    change: Change,
    request: Request,
    key_id: KeyPath,
    body: NoBody = None,
) -> Response:
    """This service refuses the key at once, others within `key_cached_s`. Users may revoke their own keys, including the one
    that authenticates the request.
    """

    def effect(session: Session) -> Answer:
        connection = session.connection()
        known = access.key(connection, key_id)
        found_or_404(known if known is not None and _sees_keys_of(caller, known.user) else None, f"key {key_id!r}")
        access.revoke_key(connection, key_id, dependencies.now_s())
        row = found_or_404(access.key(connection, key_id), f"key {key_id!r}")
        return Answer(200, key_document(row), detail={"user": row.user})

    return _changed(request, change, lambda: effect)


@routes.read("/users", ADMINISTER, "List users by name")
def list_users(dependencies: Deps, paging: Paging) -> Page[UserDocument]:
    """Users with current or former API keys, and their projects."""
    after = paging.position("users", TEXT)
    with dependencies.reading() as connection:
        rows = access.users(connection, after, paging.limit + 1)
        projects = access.projects_of(connection, [row.name for row in rows])
    return paging.page("users", rows, lambda row: (row.name,), lambda row: user_document(row, projects[row.name]))


@routes.change("PUT", "/users/{user:name}", ADMINISTER, "Add, disable or enable a user", UserDocument, 404, status=200)
def put_user(
    dependencies: Deps,
    change: Change,
    request: Request,
    user: UserPath,
    body: UserBody,
    if_match: Annotated[Literal["*"] | None, Header(description="404 instead of adding an unknown user.")] = None,
) -> Response:
    """The keys of a disabled user are refused. The user's jobs continue."""

    def effect(session: Session) -> Answer:
        connection = session.connection()
        if if_match is not None:
            found_or_404(access.user(connection, user), f"user {user!r}")
        now_s = dependencies.now_s()
        access.add_user(connection, user, now_s)
        if body.disabled is None:
            return _user_answer(connection, user, {})
        access.set_disabled(connection, user, now_s if body.disabled else None)
        return _user_answer(connection, user, {"disabled": body.disabled})

    return _changed(request, change, lambda: effect)


def _user_answer(connection: Connection, user: str, detail: dict[str, bool]) -> Answer:
    row = found_or_404(access.user(connection, user), f"user {user!r}")
    document = user_document(row, access.projects_of(connection, [user])[user])
    return Answer(200, document, detail=detail)


@routes.read("/projects", ADMINISTER, "List projects by name")
def list_projects(dependencies: Deps, paging: Paging) -> Page[ProjectDocument]:
    """Projects that have members."""
    after = paging.position("projects", TEXT)
    with dependencies.reading() as connection:
        names = access.projects(connection, after, paging.limit + 1)
        members = access.members_of(connection, names)
    return paging.page(
        "projects", names, lambda name: (name,), lambda name: ProjectDocument(name=name, members=members[name])
    )


@routes.change(
    "PUT",
    "/projects/{project:name}/members/{user:name}",
    ADMINISTER,
    "Add a user to a project",
    MembershipDocument,
    404,
    status=200,
)
def add_member(
    dependencies: Deps,
    change: Change,
    request: Request,
    project: ProjectPath,
    user: UserPath,
    body: NoBody = None,
) -> Response:
    """A project exists while it has members."""

    def effect(session: Session) -> Answer:
        connection = session.connection()
        found_or_404(access.user(connection, user), f"user {user!r}")
        access.add_member(connection, project, user, dependencies.now_s())
        return Answer(200, MembershipDocument(project=project, user=user, member=True))

    return _changed(request, change, lambda: effect)


@routes.change(
    "DELETE",
    "/projects/{project:name}/members/{user:name}",
    ADMINISTER,
    "Remove a user from a project",
    MembershipDocument,
    404,
    status=200,
)
def remove_member(
    dependencies: Deps, change: Change, request: Request, project: ProjectPath, user: UserPath
) -> Response:
    """The user's own jobs in it continue, but the user no longer sees them."""

    def effect(session: Session) -> Answer:
        if not access.remove_member(session.connection(), project, user):
            raise Problem(ProblemType.NOT_FOUND, f"User {user!r} is not a member of project {project!r}.")
        return Answer(200, MembershipDocument(project=project, user=user, member=False))

    return _changed(request, change, lambda: effect)


@routes.read("/audit", ADMINISTER, "List changes, newest first")
def list_changes(
    dependencies: Deps, paging: Paging, user: FilterText = None, target: FilterText = None
) -> Page[AuditDocument]:
    """One entry per change or refused change. `target` is matched exactly, such as `job 12`."""
    scope = f"audit {user!r} {target!r}"
    before = paging.position(scope, SERIAL)
    with dependencies.reading() as connection:
        rows = audit.lines(connection, audit.AuditFilter(user, target), before, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), partial(document, AuditDocument))


def _changed(request: Request, change: ChangeRequest, prepare: Callable[[], Effect]) -> Response:
    """Make the change, and look every key up again."""
    answer = change.prepare_and_make(prepare)
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.forget()
    return answer
