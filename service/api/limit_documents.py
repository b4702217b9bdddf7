"""What quotas and pauses look like, and whose are shown to whom."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel
from sqlalchemy import Connection

from policies.model.job import JobSpec
from service.access import Identity
from service.api.problems import Problem, ProblemType
from service.db.dialects import take_turns
from service.db.limits import StoredLimit, Use, stored_limit, unfinished_of
from service.engine.limits import Owner, Scope
from service.settings import Settings

RETRY_AFTER_S = 60
"""How long a client whose owner has too many jobs should wait: jobs take minutes at the least."""


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


def check_owners_room(connection: Connection, specs: list[JobSpec], settings: Settings) -> None:
    """429 if so many more jobs are more than one of their users or projects may have unfinished: by its quota, else by the
    settings. Quotas are locked until the transaction ends, so that no two submissions pass together where only one may."""
    usual = {
        Scope.USER: (settings.jobs_queued_per_user_max, "setting jobs_queued_per_user_max"),
        Scope.PROJECT: (settings.jobs_queued_per_project_max, "setting jobs_queued_per_project_max"),
    }
    more: dict[Owner, int] = {}
    for spec in specs:
        for owner in (Owner(Scope.USER, spec.user), Owner(Scope.PROJECT, spec.project)):
            more[owner] = more.get(owner, 0) + 1
    for owner in sorted(more, key=lambda owner: (owner.scope.value, owner.name)):
        if not owner.name:
            continue
        most, limit = stored_limit(connection, owner, for_update=True).jobs_queued_max, "quota jobs_queued_max"
        if most is None:
            most, limit = usual[owner.scope]
            if most is not None:
                # There is no row of a quota to lock.
                take_turns(connection, f"room of {owner.title}")
        if most is not None and unfinished_of(connection, owner, most) + more[owner] > most:
            detail = f"{owner.title} may have at most {most} unfinished jobs ({limit})."
            raise Problem(ProblemType.QUEUE_FULL, detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def in_use(uses: Mapping[Owner, Use], owner: Owner) -> Use:
    """What the owner uses; nothing where it has no unfinished job."""
    return uses.get(owner, Use())
