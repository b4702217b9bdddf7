"""What quotas and pauses look like, and whose are shown to whom."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from service.db.limits import StoredLimit, Use
from service.domain.access import Identity
from service.engine.limits import Owner, Scope


class QuotaDocument(BaseModel):
    """What a user or a project may use at a time, and what it uses now."""

    scope: Literal["user", "project"]
    name: str
    gpus_running_max: int | None
    jobs_queued_max: int | None
    gpus_running: int
    jobs: int


class QuotasDocument(BaseModel):
    """All quotas that the caller may know of."""

    quotas: list[QuotaDocument]


class PauseDocument(BaseModel):
    """Whose jobs do not start: everybody's (``queue``), a user's or a project's."""

    scope: Scope
    name: str
    reason: str


class QueueDocument(BaseModel):
    """The queue in numbers, and which parts of it are paused."""

    jobs: int
    gpus_running: int
    pauses: list[PauseDocument]


def quota_document(stored: StoredLimit, use: Use) -> QuotaDocument:
    """One quota with its use."""
    owner = stored.owner
    return QuotaDocument(
        scope="user" if owner.scope is Scope.USER else "project",
        name=owner.name,
        gpus_running_max=stored.limit.gpus_running_max,
        jobs_queued_max=stored.jobs_queued_max,
        gpus_running=use.gpus_running,
        jobs=use.jobs,
    )


def concerns(caller: Identity, owner: Owner) -> bool:
    """Whether the caller may know of what this owner may do: himself, his projects, and what is about everybody."""
    if caller.projects is None or owner.scope is Scope.QUEUE:
        return True
    return owner.name in caller.projects if owner.scope is Scope.PROJECT else caller.owns(owner.name)


def in_use(uses: Mapping[Owner, Use], owner: Owner) -> Use:
    """What the owner uses; nothing where it has no unfinished job."""
    return uses.get(owner, Use())
