"""The cluster at a glance."""

import asyncio
from typing import Any, Final

from policies.lifecycle import HOLDS_GPUS
from service.api.documents import seconds_of
from service.web.charts import Line, time_axis, use_chart
from service.web.page import Asked
from service.web.reader import Reader, Unavailable

SHOWN: Final = 10
"""Rows of its two tables."""

ON_GPUS: Final = sorted(state.value for state in HOLDS_GPUS)
"""States of the jobs in the table of running ones. A job that is being stopped holds its GPUs until it has ended."""

USE_AGE_S: Final = 60.0
"""Age up to which the use of the last day is shown: it changes little, and the timeline behind it may be megabytes."""

USE_RESOLUTION_S: Final = 900
USE_PAGES_MAX: Final = 10
"""Pages of the timeline behind it. A cluster with more attempts a day has no such chart."""


async def overview(asked: Asked) -> dict[str, Any]:
    """What runs, what is next, and what needs attention."""
    now, running, queue, use = await asyncio.gather(
        asked.read.get("v1/overview", by_sight=True),
        asked.read.get("v1/jobs", {"state": ON_GPUS, "limit": asked.rows(SHOWN + 1)}, by_sight=True),
        asked.read.get_or(None, "v1/queue/jobs", {"limit": asked.rows(SHOWN)}, by_sight=True),
        _use(asked.read),
    )
    return {
        "now": now,
        "running": running["items"][:SHOWN],
        "running_more": len(running["items"]) > SHOWN or running["next"] is not None,
        "queue": None if queue is None else queue["items"],
        "starts": None if queue is None else time_axis(queue["items"], "start"),
        "use": use,
        "json": "v1/overview",
    }


async def _use(read: Reader) -> Line | None:
    """The share of all GPUs that was held, over the last day. It is the same for all who may read the timeline."""
    try:
        found: Line | None = await read.for_all("use of the last day", USE_AGE_S, lambda: _made(read))
    except Unavailable:
        return None
    return found


async def _made(read: Reader) -> Line | None:
    held: list[tuple[float, float, int]] = []
    after: str | None = None
    for _ in range(USE_PAGES_MAX):
        page = await read.get_alone("v1/timeline", {"resolution_s": USE_RESOLUTION_S, "after": after})
        held += held_in(page)
        after = page["next"]
        if after is None:
            gpus = sum(server["gpus"] for server in page["servers"])
            return use_chart(_seconds(page["since"]), _seconds(page["until"]), gpus, held)
    return None


def held_in(page: dict[str, Any]) -> list[tuple[float, float, int]]:
    """From when to when how many GPUs were held: bars of attempts, and those that were merged. Open ones last until now."""
    until_s = _seconds(page["until"])
    attempts, bars, merged = page["attempts"], page["bars"], page["merged"]
    starts_s, ends_s = attempts["starts_s"], attempts["ends_s"]
    found = [
        (starts_s[attempt], until_s if ends_s[attempt] is None else ends_s[attempt], gpus)
        for attempt, gpus in zip(bars["attempt"], bars["gpus"], strict=True)
    ]
    return found + list(zip(merged["starts_s"], merged["ends_s"], merged["gpus"], strict=True))


def _seconds(value: str) -> float:
    found = seconds_of(value)
    assert found is not None
    return found
