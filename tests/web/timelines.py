"""Timelines of made-up clusters, in the shape of GET /v1/timeline."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

COLUMNS = ("id", "job", "name", "user", "project", "state", "reason")
TIMES = ("starts_s", "stop_requested_s", "ends_s", "p10_s", "p50_s", "p90_s")
_MODELS = ("llama-7b", "bert-large", "resnet50", "gpt-neox", "vit-b16", "whisper", "t5-xl", "dlrm", "unet", "mixtral")
_USERS = ("ada", "grace", "edsger", "barbara", "alan", "katherine")


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


def timeline(servers: int = 4, gpus: int = 8, bars: int = 60, hours: float = 24.0, seed: int = 1) -> dict[str, Any]:
    """A cluster with so many servers of so many GPUs, and so many bars in the last hours."""
    random = np.random.default_rng(seed)
    now = datetime.now(UTC)
    made = _empty(now, hours)
    for number in range(servers):
        state = {1: "drained", 2: "down"}.get(number % 40, "up") if servers > 3 else "up"
        place = {"name": f"node{number:03d}", "rack": f"rack{number // 25}" if servers > 4 else "", "gpus": gpus}
        made["servers"].append({**place, "gpu_type": "a100", "state": state, "reservation": None})
    if servers > 3:
        starts_s = now.timestamp() + hours * 360
        made["reservations"].append({"id": 7, "starts_s": starts_s, "ends_s": starts_s + 7200, "servers": [3]})
    blocks = [(server, first, size) for server in range(servers) for first, size in _blocks(gpus, random)]
    each = max(bars // len(blocks), 1)
    span_s = hours * 3600
    job = 1000
    for server, first, size in blocks:
        edges = np.sort(random.uniform(0, span_s, each))
        starts = now.timestamp() - span_s + edges
        for index, start_s in enumerate(starts):
            last = index == each - 1
            end_s = None if last and server % 40 not in (1, 2) else starts[min(index + 1, each - 1)] - 1.0
            job += 1
            _add(made, job, float(start_s), None if end_s is None else max(float(end_s), float(start_s) + 1), random)
            _bar(made, server, first, size)
    return made


def _blocks(gpus: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """How a server's GPUs are shared out: runs of 1, 2, 4 or 8."""
    blocks, first = [], 0
    while first < gpus:
        size = min(int(random.choice([1, 1, 2, 4])), gpus - first)
        blocks.append((first, size))
        first += size
    return blocks


def _empty(now: datetime, hours: float) -> dict[str, Any]:
    return {
        "at": _iso(now),
        "since": _iso(now - timedelta(hours=hours)),
        "until": _iso(now),
        "mark": "1-1",
        "increment": False,
        "servers": [],
        "reservations": [],
        "left_out": 0,
        "next": None,
        "attempts": {name: [] for name in (*COLUMNS, *TIMES)},
        "bars": {name: [] for name in ("attempt", "server", "first_gpu", "gpus")},
        "merged": {name: [] for name in ("server", "first_gpu", "gpus", "starts_s", "ends_s", "attempts")},
    }


def _add(made: dict[str, Any], job: int, start_s: float, end_s: float | None, random: np.random.Generator) -> None:
    state = "running" if end_s is None else str(random.choice(["completed", "completed", "preempted", "failed"]))
    name = f"{_MODELS[min(int(random.exponential(2.5)), len(_MODELS) - 1)]}-{job}"
    left_s = float(random.uniform(600, 14_400))
    now_s = datetime.now(UTC).timestamp()
    ends = [now_s + left_s * part if end_s is None else None for part in (0.6, 1.0, 1.7)]
    user = str(random.choice(_USERS))
    words = (f"{job}.1", job, name, user, "research", state, None)
    for column, value in zip((*COLUMNS, *TIMES), (*words, start_s, None, end_s, *ends), strict=True):
        made["attempts"][column].append(value)


def _bar(made: dict[str, Any], server: int, first: int, gpus: int) -> None:
    values = (len(made["attempts"]["id"]) - 1, server, first, gpus)
    for column, value in zip(("attempt", "server", "first_gpu", "gpus"), values, strict=True):
        made["bars"][column].append(value)


def ended(document: dict[str, Any], position: int, mark: str = "2-2") -> dict[str, Any]:
    """An increment in which one attempt has completed now."""
    now = datetime.now(UTC)
    made = {**document, "at": _iso(now), "mark": mark, "increment": True}
    made["attempts"] = {name: [values[position]] for name, values in document["attempts"].items()}
    changes = {"state": "completed", "ends_s": now.timestamp(), "p10_s": None, "p50_s": None, "p90_s": None}
    made["attempts"] |= {name: [value] for name, value in changes.items()}
    bars = document["bars"]
    rows = [row for row, attempt in enumerate(bars["attempt"]) if attempt == position]
    made["bars"] = {name: [0 if name == "attempt" else values[row] for row in rows] for name, values in bars.items()}
    return made
