"""Servers, and who has used them."""

import asyncio
from typing import Any

from service.web.page import Asked


async def cluster(asked: Asked) -> dict[str, Any]:
    """Servers by rack, how many gangs of each size still find room on one server, reservations and what happened."""
    found, reservations, events = await asyncio.gather(
        asked.read.get("v1/cluster"),
        asked.read.get("v1/reservations"),
        asked.read.get("v1/cluster/events", {"limit": 30}),
    )
    return {
        "found": found,
        "fragments": fragments(found["servers"]),
        "reservations": reservations["reservations"],
        "events": events["items"],
        "json": "v1/cluster",
    }


def fragments(servers: list[dict[str, Any]]) -> list[dict[str, int]]:
    """For each gang size of 1, 2, 4, ... GPUs: how many such gangs fit into the free GPUs, on one server each and in all."""
    free = [server["free_gpus"] for server in servers if server["state"] == "up"]
    largest = max((server["gpus"] for server in servers), default=0)
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return [{"gpus": size, "on_one": sum(each // size for each in free), "in_all": sum(free) // size} for size in sizes]


async def usage(asked: Asked) -> dict[str, Any]:
    """GPU-hours of users and projects, their shares and their quotas."""
    group = asked.query("group") or "user"
    if group not in ("user", "project", "day", "user,project"):
        group = "user"
    days = {"from": asked.query("from"), "to": asked.query("to")}
    parameters = {"group": group, **days}
    found, shares, quotas = await asyncio.gather(
        asked.read.get("v1/usage", parameters), asked.read.get_or(None, "v1/shares"), asked.read.get("v1/quotas")
    )
    rows = sorted(found["rows"], key=lambda row: -row["held_gpu_h"]) if group != "day" else found["rows"]
    return {
        "found": found,
        "rows": rows,
        "group": group,
        "days": days,
        "shares": shares,
        "quotas": quotas["quotas"],
        "json": f"v1/usage?group={group}",
    }
