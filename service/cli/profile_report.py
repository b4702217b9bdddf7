"""The result of ``sooner job profile``: a table and advice for people, ``sooner.profile/1`` for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import typer

from service.cli.output import Column, print_table, printable
from service.profile.advice import advise, seconds
from service.profile.stalls import Place, Run, cost, parts

Document = Mapping[str, Any]


@dataclass(slots=True)
class Profiled:
    """What was measured, by place, and why the other places were not."""

    name: str
    gpu_type: str | None
    split_batch: bool
    runs: dict[Place, Run] = field(default_factory=dict)
    jobs: dict[Place, int] = field(default_factory=dict)
    skipped: dict[Place, str] = field(default_factory=dict)
    note: str = ""


def report_document(profiled: Profiled) -> dict[str, Any]:
    """``sooner.profile/1``."""
    return {
        "schema": "sooner.profile/1",
        "name": profiled.name,
        "gpu_type": profiled.gpu_type,
        "split_batch": profiled.split_batch,
        "runs": [_run_document(profiled, place) for place in profiled.runs],
        "skipped": [{"place": place, "reason": reason} for place, reason in profiled.skipped.items()],
        "advice": [each._asdict() for each in advise(profiled.runs, split_batch=profiled.split_batch)],
    }


def _run_document(profiled: Profiled, place: Place) -> dict[str, Any]:
    run = profiled.runs[place]
    spent = cost(profiled.runs, place, split_batch=profiled.split_batch)
    return {
        "place": place,
        "job_id": profiled.jobs[place],
        "gpus": run.gpus,
        "servers": run.servers,
        "seconds_per_iteration": run.measured.seconds,
        "quartiles_s": [run.measured.low_s, run.measured.high_s],
        "iterations": run.measured.iterations,
        "window_s": run.measured.window_s,
        "parts_s": asdict(parts(profiled.runs, place, split_batch=profiled.split_batch)),
        "speed": spent.speed,
        "gpu_hours_per_1000": spent.gpu_hours,
    }


def print_report(profiled: Profiled) -> None:
    """The table, what was left out, and the advice."""
    found = report_document(profiled)
    print_table(
        [
            Column[Document]("GPUS", lambda run: str(run["gpus"]), right=True),
            Column[Document]("SERVERS", lambda run: str(run["servers"]), right=True),
            Column[Document]("ITERATION", lambda run: seconds(run["seconds_per_iteration"]), right=True),
            Column[Document]("QUARTILES", lambda run: " - ".join(map(seconds, run["quartiles_s"])), right=True),
            *(_part(header, key) for header, key in _PARTS.items()),
            Column[Document]("SPEED", lambda run: "" if run["speed"] is None else f"{run['speed']:.2f} x", right=True),
            Column[Document]("GPU-HOURS/1000", lambda run: f"{run['gpu_hours_per_1000']:.3g}", right=True),
        ],
        found["runs"],
    )
    typer.echo()
    for line in (profiled.note, *(f"Not measured: {each['reason']}." for each in found["skipped"])):
        if line:
            typer.echo(printable(line))
    for each in found["advice"]:
        typer.echo(printable(f"- {each['text']}"))
    typer.echo(printable(f"The speeds are stored for jobs named {profiled.name}."))


_PARTS = {"COMPUTE": "compute_s", "INPUT": "input_s", "INTERCONNECT": "interconnect_s", "NETWORK": "network_s"}


def _part(header: str, key: str) -> Column[Document]:
    """A part of an iteration with its share; "?" where it is not separable."""

    def text(run: Document) -> str:
        value = run["parts_s"][key]
        return "?" if value is None else f"{seconds(value)} {value / run['seconds_per_iteration']:.0%}"

    return Column(header, text, right=True)
