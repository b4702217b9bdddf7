"""Quotas with their use, and the limits that a caller may see."""

from service.api.documents import document
from service.db.limits import StoredLimit, Use
from service.domain.access import Identity
from service.engine.limits import LimitOwner, Scope
from service.wire.cluster import QuotaDocument


def quota_document(stored: StoredLimit, use: Use) -> QuotaDocument:
    """One quota with its use."""
    return document(QuotaDocument, stored, use, stored.limit, scope=stored.owner.scope, name=stored.owner.name)


def concerns(caller: Identity, owner: LimitOwner) -> bool:
    """Whether the caller may see the limits of this owner: its own, those of its projects, and those of the whole queue."""
    if caller.projects is None or owner.scope is Scope.QUEUE:
        return True
    return owner.name in caller.projects if owner.scope is Scope.PROJECT else caller.owns(owner.name)
