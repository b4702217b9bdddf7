"""Servers, and who has used them."""

import asyncio
from collections import Counter
from typing import Any, Final
from urllib.parse import urlencode

from service.web.charts import days_chart
from service.web.gpu_map import map_of
from service.web.page import Asked
from service.web.reader import address

SERVERS: Final = 100
"""Rows of a page of servers."""

MAPPED_MAX: Final = 500
"""Servers of a map. Of a larger cluster it has those that the page lists: a browser takes seconds for 10,000 cells."""

ROWS: Final = 366
"""Rows of a table of use: the days of a year."""

STATES: Final = ("up", "drained", "down")


async def cluster(asked: Asked) -> dict[str, Any]:
    """Servers by rack, how many gangs of each size still find room on one server, reservations and what happened."""
    found, reservations, events = await asyncio.gather(
        asked.read.get("v1/cluster", by_sight=True),
        asked.read.get("v1/reservations"),
        asked.read.get("v1/cluster/events", {"limit": asked.rows(30)}),
    )
    page = _listed(asked, found["servers"])
    partial = len(found["servers"]) > MAPPED_MAX
    shown = [server["name"] for server in page["servers"]] if partial else None
    # The GPUs of 10,000 servers are megabytes.
    gpus = {"servers": []} if shown == [] else await asked.read.get("v1/gpus", {"server": shown})
    return {
        "found": found,
        "states": Counter(server["state"] for server in found["servers"]),
        **page,
        "fragments": fragments(found["servers"]),
        "map": map_of(gpus["servers"], partial=partial),
        "reservations": reservations["reservations"],
        "events": events["items"],
        "json": "v1/cluster",
    }


def _listed(asked: Asked, servers: list[dict[str, Any]]) -> dict[str, Any]:
    """A page of the servers that the filters leave: thousands of rows would take a browser seconds, at each change of one."""
    wanted, state = asked.query("name") or "", asked.query("state")
    state = state if state in STATES else None
    left = [
        server
        for server in servers
        if (state is None or server["state"] == state)
        and wanted.lower() in f"{server['name']} {server['rack']} {server['gpu_type']}".lower()
    ]
    number = asked.query("page") or "1"
    pages = max(1, -(-len(left) // SERVERS))
    page = min(max(1, int(number)), pages) if number.isdecimal() and len(number) <= 9 else 1
    given = {name: value for name, value in (("name", wanted), ("state", state)) if value}
    return {
        "servers": left[(page - 1) * SERVERS : page * SERVERS],
        "matching": len(left),
        "number": page,
        "pages": pages,
        "per_page": SERVERS,
        "filters": {"name": wanted, "state": state},
        "choices": STATES,
        "query": urlencode(given),
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
    found, by_day, shares, quotas = await asyncio.gather(
        asked.read.get("v1/usage", parameters),
        asked.read.get("v1/usage", {"group": "day", **days}),
        asked.read.get_or(None, "v1/shares"),
        asked.read.get("v1/quotas"),
    )
    # The largest users; of days the last ones.
    rows = sorted(found["rows"], key=lambda row: -row["held_gpu_h"])[:ROWS] if group != "day" else found["rows"][-ROWS:]
    return {
        "found": found,
        "rows": rows,
        "most": ROWS,
        "chart": days_chart(by_day["first_day"], by_day["last_day"], by_day["rows"]),
        "group": group,
        "days": days,
        "shares": shares,
        "quotas": quotas["quotas"],
        "json": address("v1/usage", parameters),
    }
