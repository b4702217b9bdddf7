"""Pages by cursor: ``next`` is an opaque text with the key of the last row of the page.

A page is found through an index by its first row, never by counting rows, so it costs the same at any depth, and what is
inserted meanwhile neither repeats nor hides a row.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

from service.api.deps import Deps
from service.api.problems import Problem, invalid_parameter

Row = TypeVar("Row")
Item = TypeVar("Item")

CURSOR_LENGTH_MAX = 2048


class Page(BaseModel, Generic[Item]):
    """A page of a list."""

    items: list[Item]
    next: str | None
    """Give it as ``after`` to get the next page; null on the last one. Opaque: do not take it apart."""


class PageRequest:
    """Where a page begins and how long it is. ``scope`` binds a cursor to its list and filters."""

    def __init__(self, limit: int, after: str | None) -> None:
        self.limit = limit
        self._after = after

    def position(self, scope: str, *kinds: type) -> Any:
        """The key of the last row of the page before, or None on the first page. Raises 422 for a foreign cursor.

        A key of one part is that part, a longer one a tuple of parts of these ``kinds``.
        """
        if self._after is None:
            return None
        try:
            mark, *key = json.loads(base64.b64decode(self._after.encode("ascii"), altchars=b"-_", validate=True))
        except (ValueError, binascii.Error, TypeError, RecursionError):
            raise _foreign() from None
        if mark != _mark(scope) or len(key) != len(kinds):
            raise _foreign()
        if not all(type(part) is kind and _storable(part) for part, kind in zip(key, kinds, strict=True)):
            raise _foreign()
        return key[0] if len(kinds) == 1 else tuple(key)

    def page(
        self,
        scope: str,
        rows: Sequence[Row],
        key: Callable[[Row], tuple[Any, ...]],
        item: Callable[[Row], Item],
    ) -> Page[Item]:
        """The page of rows that were read with one row more than ``limit``, which shows whether a next page exists."""
        shown = rows[: self.limit]
        following = cursor(scope, key(shown[-1])) if len(rows) > self.limit else None
        return Page(items=[item(row) for row in shown], next=following)


def cursor(scope: str, key: tuple[Any, ...]) -> str:
    """The opaque word for "after the row with this key" in that list."""
    return base64.b64encode(json.dumps([_mark(scope), *key]).encode("ascii"), altchars=b"-_").decode("ascii")


def _mark(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:12]


def _storable(part: object) -> bool:
    # A forged cursor must not reach the database with a number that it cannot hold, or a text that it cannot encode.
    if isinstance(part, int):
        return abs(part) < 2**63
    return not isinstance(part, str) or part.isprintable()


def _foreign() -> Problem:
    return invalid_parameter("after", "is not a cursor of this list with these filters")


async def _page_request(
    dependencies: Deps,
    limit: Annotated[int | None, Query(ge=1, description="Entries of the page.")] = None,
    after: Annotated[
        str | None, Query(max_length=CURSOR_LENGTH_MAX, description="The 'next' of the page before.")
    ] = None,
) -> PageRequest:
    settings = dependencies.settings
    if limit is not None and limit > settings.page_size_max:
        raise invalid_parameter(
            "limit", f"must be at most {settings.page_size_max}, the setting page_size_max (got {limit})"
        )
    return PageRequest(limit if limit is not None else settings.page_size_default, after)


Paging = Annotated[PageRequest, Depends(_page_request)]
