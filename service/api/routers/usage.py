"""Usage accounting: GPU-hours by user, project and day, as JSON or CSV."""

import re
from datetime import date, timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

from service.api.access import Caller
from service.api.deps import Deps
from service.api.permissions import LIST_JOBS
from service.api.problems import invalid_parameter
from service.api.routers.common import FilterText, Routes
from service.api.usage_documents import day_number, today, usage_csv, usage_document
from service.db.usage import GROUPS, UsageWanted, usage
from service.wire.access import UsageDocument
from service.wire.base import TEXT_MAX

routes = Routes("usage")

DAYS_DEFAULT = 30
DAYS_MAX = 3660
"""Ten years: longer than anything is asked about, and a bound on what one question costs."""
ROWS_MAX = 50_000
"""Rows of one answer: some megabytes."""

CSV = "text/csv"


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _day(value: object) -> object:
    """``2026-03-01``. Of another text pydantic would make a date, too: of a number of seconds, and of a time at midnight."""
    if not (isinstance(value, str) and _DAY.fullmatch(value)):
        raise PydanticKnownError("date_parsing", {"error": "not a date"})
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise PydanticKnownError("date_parsing", {"error": str(error)}) from None


Day = Annotated[date, BeforeValidator(_day)]


class Format(StrEnum):
    """Format of the response."""

    JSON = "json"
    CSV = "csv"


@routes.read(
    "/usage",
    LIST_JOBS,
    "Report GPU-hours by user, project and day",
    response_model=UsageDocument,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}, "description": "The sums, as asked for."}},
)
def show_usage(
    caller: Caller,
    dependencies: Deps,
    group: Annotated[
        str,
        Query(
            max_length=TEXT_MAX,
            description="Group by 'user', 'project' or 'day', or by several of these, comma-separated.",
        ),
    ] = "user",
    first: Annotated[
        Day | None, Query(alias="from", description="First day (UTC). Default: the 30 days up to the last day.")
    ] = None,
    last: Annotated[Day | None, Query(alias="to", description="Last day (UTC), included. Default: today.")] = None,
    user: FilterText = None,
    project: FilterText = None,
    written: Annotated[
        Format | None, Query(alias="format", description="Default: CSV if 'Accept' requests text/csv, else JSON.")
    ] = None,
    accept: Annotated[str | None, Header(max_length=1024)] = None,
) -> Response:
    """Of the jobs that the caller may see. Attempts that cross midnight are split. Running attempts count up to now."""
    now_s = dependencies.now_s()
    groups = _groups(group)
    days = _days(first, last, today(now_s))
    wanted = UsageWanted(groups, day_number(days[0]), day_number(days[1]) + 1, caller, user, project)
    with dependencies.reading() as connection:
        rows = usage(connection, wanted, now_s, ROWS_MAX)
    if rows is None:
        detail = f"makes more than {ROWS_MAX} rows; ask for fewer days, or by fewer of user, project and day"
        raise invalid_parameter("group", detail)
    document = usage_document(*days, now_s, groups, rows)
    if written is Format.CSV or (written is None and accept is not None and CSV in accept.lower()):
        return Response(usage_csv(document), media_type=f"{CSV}; charset=utf-8")
    return JSONResponse(document)


def _groups(text: str) -> frozenset[str]:
    words = [word.strip() for word in text.split(",")] if text else []
    if not set(words) <= set(GROUPS):
        raise invalid_parameter("group", f"must be a comma-separated list of {', '.join(GROUPS)}")
    return frozenset(words)


def _days(first: date | None, last: date | None, now: date) -> tuple[date, date]:
    """The first and the last day. Raises 422 for an interval that is empty or longer than a question may be."""
    last = last or now
    if first is None:
        # The calendar begins with the year 1.
        first = last - min(timedelta(days=DAYS_DEFAULT - 1), last - date.min)
    if first > last:
        raise invalid_parameter("from", "must not be after 'to'")
    if (last - first).days >= DAYS_MAX:
        raise invalid_parameter("from", f"must be less than {DAYS_MAX} days before 'to'")
    return first, last
