"""Pages by cursor: ``next`` is an opaque text with the key of the last row of the page.

A page is found through an index by its first row, never by counting rows, so it costs the same at any depth, and what is
inserted meanwhile neither repeats nor hides a row.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from policies.model.ids import ID_MAX
from service.api.deps import Deps
from service.api.problems import Problem, invalid_parameter
from service.wire.base import DIGITS_ALONE

Row = TypeVar("Row")
Item = TypeVar("Item")

CURSOR_LENGTH_MAX = 2048


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds characters that a database may refuse")
    return text


def _ordered(number: float) -> float:
    if math.isnan(number):
        raise ValueError("is no number")
    return number


# A client can forge a cursor. Each kind bounds its part to what its column can hold and compare with.
NUMBER: Final = Annotated[int, Field(ge=0, le=ID_MAX)]
"""A number in 32 bits: of jobs, attempts, cycles; and counts."""
SERIAL: Final = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A row's number in 64 bits: of events, requests, progress, predictions, audit entries, deliveries."""
SIGNED: Final = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""A number of either sign: of priorities and levels."""
RANK: Final = Annotated[float, AfterValidator(_ordered)]
"""A rank, which may be infinite."""
INSTANT: Final = Annotated[float, Field(allow_inf_nan=False)]
"""Seconds since the Unix epoch."""
TEXT: Final = Annotated[str, AfterValidator(_printable)]


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

    def position(self, scope: str, *kinds: Any) -> Any:
        """The key of the last row of the page before, or None on the first page. Raises 422 for a foreign cursor.

        ``kinds``: of the key's parts, such as :data:`NUMBER`. A key of one part is that part, a longer one a tuple.
        """
        if self._after is None:
            return None
        try:
            mark, *key = json.loads(base64.b64decode(self._after.encode("ascii"), altchars=b"-_", validate=True))
        except (ValueError, binascii.Error, TypeError, RecursionError):
            raise _foreign() from None
        if mark != _mark(scope):
            raise _foreign()
        try:
            parts = _checked(kinds).validate_python(tuple(key), strict=True)
        except ValidationError:
            raise _foreign() from None
        return parts[0] if len(kinds) == 1 else parts

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


@cache
def _checked(kinds: tuple[Any, ...]) -> TypeAdapter[tuple[Any, ...]]:
    return TypeAdapter(tuple[kinds])  # type: ignore[valid-type]


def _foreign() -> Problem:
    return invalid_parameter("after", "is not a cursor of this list with these filters")


async def _page_request(
    dependencies: Deps,
    limit: Annotated[int | None, Query(ge=1, description="Most entries to return."), DIGITS_ALONE] = None,
    after: Annotated[
        str | None, Query(max_length=CURSOR_LENGTH_MAX, description="`next` of the previous page.")
    ] = None,
) -> PageRequest:
    settings = dependencies.settings
    if limit is not None and limit > settings.page_size_max:
        raise invalid_parameter(
            "limit", f"must be at most {settings.page_size_max}, the setting page_size_max (got {limit})"
        )
    return PageRequest(limit if limit is not None else settings.page_size_default, after)


Paging = Annotated[PageRequest, Depends(_page_request)]
