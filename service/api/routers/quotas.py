"""Quotas: how many GPUs and unfinished jobs a user or a project may have at a time."""

from typing import Annotated, Literal

from fastapi import Path, Response
from sqlmodel import Session

from service.api.access import Caller
from service.api.changes import Change, ChangeRequest
from service.api.deps import ApiDependencies, Deps, ToLeader
from service.api.idempotency import Answer
from service.api.limit_documents import concerns, quota_document
from service.api.permissions import OPERATE, READ
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes
from service.api.share_documents import Owners, shares_document
from service.db.limits import Use, store_limit, stored_limit, stored_limits, uses
from service.engine.events import EngineRequest, RequestKind
from service.engine.limits import LimitOwner, Scope
from service.wire.base import NO_CONTROLS, TEXT_MAX
from service.wire.bodies import QuotaBody
from service.wire.cluster import QuotaDocument, QuotasDocument
from service.wire.shares import SharesDocument

routes = Routes("queue")

ScopePath = Annotated[Literal["user", "project"], Path(description="Kind of the quota's owner.")]
OwnerPath = Annotated[
    str, Path(min_length=1, max_length=TEXT_MAX, pattern=NO_CONTROLS, description="The user's or project's name.")
]


@routes.read("/quotas", READ, "List quotas and their use")
def list_quotas(dependencies: Deps, caller: Caller) -> QuotasDocument:
    """All quotas for callers who see all projects; otherwise those of the caller and of its projects."""
    with dependencies.reading() as connection:
        used = uses(connection)
        stored = [each for each in stored_limits(connection) if each.owner.scope is not Scope.QUEUE]
    limited = [each for each in stored if each.limit.gpus_running_max is not None or each.jobs_queued_max is not None]
    return QuotasDocument(
        quotas=[quota_document(each, used.get(each.owner, Use())) for each in limited if concerns(caller, each.owner)]
    )


@routes.read("/shares", READ, "Show what users and projects have used, and their shares")
def show_shares(dependencies: Deps, caller: Caller, leader: ToLeader) -> SharesDocument:
    """As the policy in force counts it, with the quotas and the present use. Of all users and projects for callers who see all
    projects; otherwise of the caller and of its projects.
    """
    shares, policy = leader.shares(), dependencies.settings.policy
    with dependencies.reading() as connection:
        stored = [each for each in stored_limits(connection) if each.owner.scope is not Scope.QUEUE]
        owners = Owners(stored, uses(connection))
    return shares_document(dependencies.now_s(), policy, shares, owners, caller)


@routes.change("PUT", "/quotas/{scope}/{name:name}", OPERATE, "Set a quota", QuotaDocument, status=200)
def set_quota(dependencies: Deps, change: Change, scope: ScopePath, name: OwnerPath, body: QuotaBody) -> Response:
    """It applies to later starts and submissions. A quota below the current use stops no job."""
    return _change(dependencies, change, LimitOwner(Scope(scope), name), body)


@routes.change("DELETE", "/quotas/{scope}/{name:name}", OPERATE, "Remove a quota", QuotaDocument, 404, status=200)
def remove_quota(
    dependencies: Deps, change: Change, scope: ScopePath, name: OwnerPath, body: NoBody = None
) -> Response:
    """The owner's jobs and GPUs are then unlimited."""
    return _change(dependencies, change, LimitOwner(Scope(scope), name), None)


def _change(
    dependencies: ApiDependencies, change: ChangeRequest, owner: LimitOwner, body: QuotaBody | None
) -> Response:
    def effect(session: Session) -> Answer:
        connection, now_s = session.connection(), dependencies.now_s()
        stored = stored_limit(connection, owner, for_update=True)
        if body is None and stored.limit.gpus_running_max is None and stored.jobs_queued_max is None:
            raise Problem(ProblemType.NOT_FOUND, f"{owner.title} has no quota.")
        wanted = body or QuotaBody()
        store_limit(connection, stored._replace(jobs_queued_max=wanted.jobs_queued_max), now_s)
        request = EngineRequest(0, RequestKind.QUOTA_SET, now_s, owner=owner, gpus_running_max=wanted.gpus_running_max)
        dependencies.store.add_request(session, request)
        after = stored_limit(connection, owner)
        detail = {} if body is None else body.model_dump()
        return Answer(200, quota_document(after, uses(connection).get(owner, Use())), detail=detail)

    return change.ask(effect)
