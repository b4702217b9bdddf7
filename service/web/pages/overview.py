"""The cluster at a glance."""

import asyncio
from typing import Any, Final

from service.web.page import Asked

SHOWN: Final = 10
"""Rows of its two tables."""


async def overview(asked: Asked) -> dict[str, Any]:
    """What runs, what is next, and what needs attention."""
    now, running, queue = await asyncio.gather(
        asked.read.get("v1/overview"),
        asked.read.get("v1/jobs", {"state": ["starting", "running"], "limit": asked.rows(SHOWN + 1)}),
        asked.read.get_or(None, "v1/queue/jobs", {"limit": asked.rows(SHOWN)}),
    )
    return {
        "now": now,
        "running": running["items"][:SHOWN],
        "running_more": len(running["items"]) > SHOWN or running["next"] is not None,
        "queue": None if queue is None else queue["items"],
        "json": "v1/overview",
    }
