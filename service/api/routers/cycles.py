"""Cycles: the changes, the actions and the refusals of each."""

from typing import Annotated, Any

from fastapi import Path
from sqlalchemy import Row

from service.api.deps import Deps
from service.api.documents import document
from service.api.paging import NUMBER, Page, Paging
from service.api.permissions import OPERATE
from service.api.routers.common import Routes, found_or_404
from service.db import reads
from service.wire.bodies import CycleNumber
from service.wire.cluster import CycleDocument, CycleSummary

routes = Routes("cycles")

LISTS = ("changes", "actions", "refusals")


@routes.read("/cycles", OPERATE, "List cycles, newest first")
def list_cycles(dependencies: Deps, paging: Paging) -> Page[CycleSummary]:
    """Cycles without changes are not stored."""
    before = paging.position("cycles", NUMBER)
    with dependencies.reading() as connection:
        rows = reads.cycles(connection, before, paging.limit + 1)
    return paging.page("cycles", rows, lambda row: (row.number,), cycle_summary)


@routes.read("/cycles/{number}", OPERATE, "Show a cycle", 404)
def show_cycle(dependencies: Deps, number: Annotated[CycleNumber, Path()]) -> CycleDocument:
    """Its changes and actions in order."""
    with dependencies.reading() as connection:
        row = found_or_404(reads.cycle(connection, number), f"cycle {number}")
    return document(CycleDocument, row, **{name: _items(row, name) for name in LISTS})


def cycle_summary(row: Row[Any]) -> CycleSummary:
    """A row of ``cycles``, by its counts."""
    return document(CycleSummary, row, **{name: len(_items(row, name)) for name in LISTS})


def _items(row: Row[Any], name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = row._mapping[name]["items"]
    return items
