"""The queue, the list of jobs, and the story of one job."""

import asyncio
import re
from typing import Any, Final
from urllib.parse import urlencode

from policies.lifecycle import TERMINAL, JobState
from service.domain.access import Role
from service.web.charts import Losses, loss_chart, thinned, time_axis
from service.web.page import Asked
from service.web.reader import Unavailable, address
from service.web.stage_drawing import drawing_of

PAGE: Final = 50
"""Rows of a list."""

EVENTS: Final = 500
"""Changes of a job on its page, and its progress reports in one read."""

ATTEMPTS: Final = 100
"""Attempts on the page of a job: the newest."""

ATTEMPTS_READS: Final = 20

REPORTS_READS: Final = 4
"""Reads of progress reports at most. Long curves are thinned out to a few hundred points in the end."""

POINTS: Final = 300
"""Points of the chart of progress."""

STATES: Final = tuple(state.value for state in JobState)
_FORESEEN: Final = re.compile(
    r" (?:Will preempt jobs? [0-9, ]+|Job \d+ will preempt it) at \S+, if nothing changes before\."
)
_ENDED: Final = frozenset(state.value for state in TERMINAL)


async def queue(asked: Asked) -> dict[str, Any]:
    """The waiting jobs in the policy's order."""
    after = asked.query("after")
    found, parts = await asyncio.gather(
        asked.read.get("v1/queue/jobs", {"limit": asked.rows(PAGE), "after": after}), asked.read.get("v1/queue")
    )
    paused = any(pause["scope"] == "queue" for pause in parts["pauses"])
    return {
        "found": found,
        "parts": parts,
        "paused": paused,
        "after": after,
        "starts": time_axis(found["items"], "start"),
        "ends": time_axis(found["items"], "end"),
        "json": address("v1/queue/jobs", {"after": after}),
    }


async def jobs(asked: Asked) -> dict[str, Any]:
    """All jobs, newest first, by state, user, project and name. A number in place of a name is also a job's."""
    filters = {name: asked.query(name) for name in ("user", "project", "name")}
    # The API refuses unknown states and names them.
    state = [each for each in asked.request.query_params.getlist("state") if each]
    given = {name: value for name, value in (*filters.items(), ("state", state)) if value}
    after = asked.query("after")
    found = await asked.read.get("v1/jobs", {**given, "limit": asked.rows(PAGE), "after": after})
    number = filters["name"]
    if after is None and list(given) == ["name"] and number is not None and number.isdecimal() and len(number) <= 9:
        numbered = await asked.read.get_or(None, f"v1/jobs/{int(number)}")
        if numbered is not None:
            others = [each for each in found["items"] if each["id"] != numbered["id"]]
            found = {**found, "items": [numbered, *others]}
    return {"found": found, **_listed(filters, state, after, given)}


def _listed(filters: dict[str, Any], state: list[str], after: str | None, given: dict[str, Any]) -> dict[str, Any]:
    query = urlencode(given, doseq=True)
    return {
        "filters": filters,
        "chosen": state,
        "states": STATES,
        "after": after,
        "query": query,
        "json": address("v1/jobs", {**given, "after": after}),
    }


async def job(asked: Asked) -> dict[str, Any]:
    """One job: its story, what was predicted of it, and what can be done with it."""
    number = asked.request.path_params["job_id"]
    path = f"v1/jobs/{number}"
    found = await asked.read.get(path)
    ended = found["state"] in _ENDED
    events, attempts, explanation, prediction, placed, reports = await asyncio.gather(
        asked.read.get(f"{path}/events", {"limit": asked.rows(EVENTS)}),
        _rows(asked, f"{path}/attempts", ATTEMPTS_READS),
        asked.read.get_or(None, f"{path}/explanation"),
        asked.read.get_or(None, f"{path}/prediction"),
        asked.read.get_or(None, f"{path}/placement"),
        _rows(asked, f"{path}/progress", REPORTS_READS),
    )
    mine = asked.caller.changes(found["user"] or "")
    return {
        "job": found,
        "ended": ended,
        "events": events["items"],
        "events_more": events["next"] is not None,
        "attempts": attempts[-ATTEMPTS:],
        "explanation": explanation,
        # What is foreseen stands beside it, with links and in the reader's zone.
        "why": None if explanation is None else _FORESEEN.sub("", explanation["sentence"]),
        "prediction": prediction,
        "placed": placed,
        "drawing": drawing_of(placed),
        "chart": _progress_chart(prediction, thinned(reports, POINTS)),
        "losses": await _losses(asked, number, reports, prediction),
        "mine": mine,
        "reads_output": asked.caller.reads_output(found["user"] or ""),
        "may_submit": asked.caller.role.covers(Role.SUBMITTER),
        "live": f"job:{number}",
        "json": path,
    }


async def _rows(asked: Asked, path: str, reads_max: int) -> list[Any]:
    """A list of the API, oldest first, as far as so many reads come."""
    found: list[Any] = []
    after: str | None = None
    for _ in range(reads_max):
        part = await asked.read.get(path, {"limit": asked.rows(EVENTS), "after": after})
        found += part["items"]
        if (after := part["next"]) is None:
            break
    return found


async def _losses(asked: Asked, number: int, reports: list[Any], prediction: dict[str, Any] | None) -> Losses | None:
    """The chart of a job's losses beside those of the similar past jobs, if it reports any."""
    if all(report["loss"] is None for report in reports):
        return None
    similar = [] if prediction is None else prediction["similar"]
    past = [each["job_id"] for each in similar if each["job_id"] is not None]
    theirs = await asyncio.gather(*(_reports(asked, each) for each in past))
    return loss_chart(number, {**dict(zip(past, theirs, strict=True)), number: reports})


async def _reports(asked: Asked, number: int) -> list[Any]:
    """The progress reports of a past job; none where the caller may not read them."""
    try:
        return await _rows(asked, f"v1/jobs/{number}/progress", REPORTS_READS)
    except Unavailable:
        return []


def _progress_chart(prediction: dict[str, Any] | None, reports: list[Any]) -> dict[str, Any] | None:
    """Iterations done over time, against the predicted total and its interval."""
    if len(reports) < 2:
        return None
    chart: dict[str, Any] = {
        "kind": "progress",
        "at": [report["at"] for report in reports],
        "iteration": [report["iteration"] for report in reports],
        "predicted": None,
    }
    if prediction is not None and prediction["unit"] == "iterations":
        chart["predicted"] = [prediction["p10"], prediction["p50"], prediction["p90"]]
    return chart
