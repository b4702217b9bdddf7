"""Submitting a job, and simulating what if."""

import asyncio
from typing import Any, Final

import yaml
from starlette.concurrency import run_in_threadpool

from policies.registry import policy_names
from service.api.deps import dependencies_of
from service.simulations.request import CURRENT, SHADOW
from service.web.page import Asked
from service.web.reader import address

_LEFT_OUT: Final = ("secret_env",)

_NULL_KEPT: Final = "checkpoint_period_s"
"""null says that the job cannot checkpoint; without the key it would get the default."""

_EXAMPLE: Final = """\
name: my-training
command: [python, train.py]
gpus: 1
"""


async def submit(asked: Asked) -> dict[str, Any]:
    """The form; with ``again`` filled with what another job was submitted with."""
    again = asked.query("again")
    text = _EXAMPLE
    if again is not None and again.isdecimal() and len(again) <= 9:
        spec = await asked.read.get(f"v1/jobs/{int(again)}/spec")
        given = {
            name: value
            for name, value in spec.items()
            if (value not in (None, [], {}) or name == _NULL_KEPT) and name not in _LEFT_OUT
        }
        # A body of a megabyte takes seconds.
        text = await run_in_threadpool(yaml.safe_dump, given, sort_keys=False, allow_unicode=True, width=100)
    me, cluster = await asyncio.gather(
        asked.read.get("v1/me"), asked.read.get_or({"servers": []}, "v1/cluster", by_sight=True)
    )
    return {
        "text": text,
        "again": again,
        "projects": me["projects"] or [],
        "gpu_types": sorted({server["gpu_type"] for server in cluster["servers"] if server["gpu_type"]}),
        "json": "v1/openapi.json",
    }


async def what_if(asked: Asked) -> dict[str, Any]:
    """Simulations of other policies and servers: a form, and those that were made."""
    after = asked.query("after")
    found = await asked.read.get("v1/simulations", {"limit": asked.rows(30), "after": after})
    settings = dependencies_of(asked.request).settings
    choices = [CURRENT, *([SHADOW] if settings.shadow_policy else []), *policy_names()]
    return {"found": found, "after": after, "choices": choices, "json": address("v1/simulations", {"after": after})}


async def simulation(asked: Asked) -> dict[str, Any]:
    """One simulation: its progress, and then its report."""
    path = f"v1/simulations/{asked.request.path_params['number']}"
    found = await asked.read.get(path)
    report = found["report"]
    means = [run["mean_jct_s"] for run in report.get("runs", ()) if run["mean_jct_s"]] if report else []
    return {
        "found": found,
        "report": report,
        "best": min(means, default=None),
        "documented": policy_names(),
        "under_way": found["state"] in ("queued", "running"),
        "json": path,
    }
