"""Cycles: what the loop was told, what it decided, and what was refused."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from sqlalchemy import Row

from service.api.deps import Deps
from service.api.documents import instant, instant_or_none
from service.api.paging import Page, Paging
from service.api.permissions import OPERATE, allow
from service.api.routers.common import found_or_404, problems, router
from service.api.schemas import ID_MAX
from service.db import reads

routes = router("cycles")


class CycleSummary(BaseModel):
    """One pass of the loop in which something happened, by its counts."""

    number: int
    at: datetime
    changes: int
    actions: int
    refusals: int
    wake_at: datetime | None
    duration_s: dict[str, float] = Field(description="Seconds, by phase.")


class CycleDocument(BaseModel):
    """One pass of the loop, whole: what it takes to replay it, together with the dump of an earlier one."""

    number: int
    at: datetime
    changes: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    wake_at: datetime | None
    duration_s: dict[str, float]
    dump: dict[str, Any] | None = Field(description="The policy's own state after it, where it was kept.")


@routes.get("/cycles", summary="List cycles, newest first")
@allow(OPERATE)
def list_cycles(dependencies: Deps, paging: Paging) -> Page[CycleSummary]:
    """Cycles in which nothing happened are not kept."""
    position = paging.position("cycles", (int,))
    with dependencies.database.reading() as session:
        rows = reads.cycles(session.connection(), position[0] if position else None, paging.limit + 1)
    return paging.page("cycles", rows, lambda row: (row.number,), cycle_summary)


@routes.get("/cycles/{number}", responses=problems(404), summary="Show a cycle")
@allow(OPERATE)
def show_cycle(dependencies: Deps, number: Annotated[int, Path(ge=0, le=ID_MAX)]) -> CycleDocument:
    """Its changes and actions in their order."""
    with dependencies.database.reading() as session:
        row = found_or_404(reads.cycle(session.connection(), number), f"cycle {number}")
    return CycleDocument(
        number=row.number,
        at=instant(row.at_s),
        changes=_items(row.changes),
        actions=_items(row.actions),
        refusals=_items(row.refusals),
        wake_at=instant_or_none(row.wake_at_s),
        duration_s=row.duration_s,
        dump=row.dump,
    )


def cycle_summary(row: Row[Any]) -> CycleSummary:
    """A row of ``cycles``, by its counts."""
    return CycleSummary(
        number=row.number,
        at=instant(row.at_s),
        changes=len(_items(row.changes)),
        actions=len(_items(row.actions)),
        refusals=len(_items(row.refusals)),
        wake_at=instant_or_none(row.wake_at_s),
        duration_s=row.duration_s,
    )


def _items(document: dict[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = document["items"]
    return items
