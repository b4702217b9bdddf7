"""``sooner bugreport``: one zip file that describes a service for a bug report, without secrets.

Jobs appear by number, name, user, state and size; never with their command, environment, working directory, labels or logs.
What cannot be had (no service runs, a key may not see it) is named in the file instead of failing the report.
"""

import io
import json
import platform
import sys
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.connect import connect
from service.cli.fail import settings_or_fail
from service.cli.guard import DISTRIBUTION
from service.cli.options import write_new
from service.client import UNFINISHED_STATES, Client, ClientError

CYCLES_MAX: Final = 3
"""Newest recorded cycles that go in: the last decision alone often follows from the one before."""

JOBS_MAX: Final = 1000
"""Unfinished jobs that are listed."""

_HIDDEN_SETTINGS = ("token", "secret", "password", "key")

_JOB_KEYS = (
    *("id", "name", "user", "project", "state", "reason", "gpus", "priority", "held", "submitted_at", "started_at"),
    *("attempts", "preemptions", "iterations_done", "prediction", "servers", "eta"),
)

_README = """This is a bug report of Sooner, made at {at} with `sooner bugreport`.

versions.json     versions of the program, Python, the platform and the installed packages
settings.json     the settings of the machine where the report was made; passwords and tokens are left out
ready.json        whether the service is ready, and its newest cycle
cluster.json      servers and GPUs
queue.json        at most {jobs} unfinished jobs: no commands, environments, folders, labels or logs
predictor.json    the models that serve
metrics.txt       counters and gauges
cycles/*.json     the current queue (now.json) and the newest recorded decisions; to read them:
                  sooner sim replay cycles/now.json --why

{missing} names each part that could not be collected, with the reason.
"""

_MISSING = "missing.txt"


def bugreport_command(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", dir_okay=False, help="File to write; it must not exist. Default: sooner-bugreport-TIME.zip."
        ),
    ] = None,
) -> None:
    """Write a zip file for a bug report: versions, settings, queue and recorded decisions, without secrets.

    Check the file before you send it. It contains names of jobs, users and servers.
    """
    now = datetime.now(UTC)
    target = out or Path(f"sooner-bugreport-{now:%Y%m%dT%H%M%SZ}.zip")
    with connect() as client:
        parts, missing = collect(client)
    parts["README.txt"] = _README.format(at=f"{now:%Y-%m-%d %H:%M:%S} UTC", jobs=JOBS_MAX, missing=_MISSING).encode()
    if missing:
        parts[_MISSING] = "".join(f"{name}: {why}\n" for name, why in missing.items()).encode()
    write_new(target, _zipped(parts))
    for name, why in missing.items():
        typer.echo(f"left out {name}: {why}", err=True)
    typer.echo(str(target))


def collect(client: Client) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files of a report by name, and why others are missing."""
    parts = {"versions.json": _json(_versions()), "settings.json": _json(_settings())}
    missing: dict[str, str] = {}

    def add(name: str, ask: Callable[[], bytes]) -> None:
        try:
            parts[name] = ask()
        except ClientError as error:
            missing[name] = str(error)

    add("ready.json", lambda: _json(client.readiness()))
    add("cluster.json", lambda: _json(client.cluster.show()))
    add("queue.json", lambda: _json({"jobs": _queue(client)}))
    add("predictor.json", lambda: _json(client.predictions.predictor()))
    add("metrics.txt", lambda: client.metrics().encode())
    add("cycles/now.json", lambda: _json(client.cycles.snapshot_now()))
    try:
        recorded = client.cycles.recorded()[:CYCLES_MAX]
    except ClientError as error:
        missing["cycles"] = str(error)
        recorded = []
    for number in recorded:
        add(f"cycles/{number}.json", partial(_snapshot, client, number))
    return parts, missing


def _snapshot(client: Client, number: int) -> bytes:
    return _json(client.cycles.snapshot(number))


def _queue(client: Client) -> list[Mapping[str, Any]]:
    jobs = client.jobs.list(states=UNFINISHED_STATES, limit=JOBS_MAX)
    return [{name: dict(job)[name] for name in _JOB_KEYS if name in job} for job in jobs]


def _versions() -> Mapping[str, Any]:
    installed = {found.name.lower(): found.version for found in distributions()}
    return {
        "program": DISTRIBUTION,
        "python": sys.version,
        "platform": platform.platform(),
        "libraries": dict(sorted(installed.items())),
    }


def _settings() -> Mapping[str, Any]:
    def shown(name: str, value: str) -> str:
        return "(hidden)" if value and any(word in name for word in _HIDDEN_SETTINGS) else value

    lines = settings_or_fail().describe()
    return {line.name: {"value": shown(line.name, line.value), "source": line.source} for line in lines}


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def _zipped(parts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(parts.items()):
            archive.writestr(name, content)
    return buffer.getvalue()
