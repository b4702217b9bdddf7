"""The client's side of usage accounting, and its documents."""

from collections.abc import Sequence
from typing import Any, TypedDict

from service.client.access import AccessClient


class UsageRow(TypedDict):
    """The sums of one group; what was not grouped by is None."""

    day: str | None
    user: str | None
    project: str | None
    held_gpu_h: float
    useful_gpu_h: float
    wasted_gpu_h: float
    jobs: int
    attempts: int
    preemptions: int


class Usage(TypedDict):
    """What was used of the GPUs on these days, both included."""

    first_day: str
    last_day: str
    at: str
    group: list[str]
    rows: list[UsageRow]


class UsageClient(AccessClient):
    """GPU-hours by user, project and day."""

    def usage(
        self,
        group: Sequence[str] = ("user",),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        user: str | None = None,
        project: str | None = None,
    ) -> Usage:
        """Sums by ``group`` (``user``, ``project``, ``day``); days as ``2026-01-31``, UTC, both included."""
        found: Usage = self._json("GET", "/v1/usage", parameters=_asked(group, first_day, last_day, user, project))
        return found

    def usage_csv(
        self,
        group: Sequence[str] = ("user",),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        user: str | None = None,
        project: str | None = None,
    ) -> str:
        """The same as CSV with a header."""
        asked = _asked(group, first_day, last_day, user, project)
        return self._request("GET", "/v1/usage", parameters={**asked, "format": "csv"}).text


def _asked(
    group: Sequence[str], first_day: str | None, last_day: str | None, user: str | None, project: str | None
) -> dict[str, Any]:
    given = {"group": ",".join(group), "from": first_day, "to": last_day, "user": user, "project": project}
    return {name: value for name, value in given.items() if value is not None}
