"""Ended jobs as rows: the one form in which history reaches training, warm start and evaluation.

A :class:`Submission` is what is known of a job when it is submitted, and nothing more; an :class:`EndedRow` adds the label.
The two are separate so that features, which are computed from a ``Submission`` and the history alone, cannot leak the label.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from gzip import open as gzip_open
from heapq import nlargest
from pathlib import Path
from typing import IO, Any, Final, cast, get_type_hints

from policies.model.estimate import EndedJob, PredictionRequest, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.value import value
from predictor.arguments import described

ROWS_SCHEMA: Final = "sooner.ended-jobs/1"
UNITS_MIN: Final = 1.0
"""A label below one iteration, or one second, counts as one, so that logarithms stay finite."""
UNITS_MAX: Final = 1e12
"""A declaration or label above this is discarded as implausible."""


class RowError(ValueError):
    """A row of ended jobs that breaks the format; the message names the line and the field."""


@value
class Submission:
    """A job at its submission. ``name`` is the last part of the recurrence key; None and "" mean not given. ``arguments`` is what
    :func:`predictor.arguments.described` keeps of the command.
    """

    job: int
    user: str
    project: str
    name: str
    gpus: int
    submitted_at_s: float
    declared_iterations: float | None = None
    walltime_s: float | None = None
    model: str = ""
    batch_size: int | None = None
    stages: int | None = None
    parameter_bytes: float | None = None
    gpu_type: str = ""
    arguments: str = ""

    @property
    def recurrence(self) -> tuple[str, str, str]:
        """(user, project, name)."""
        return (self.user, self.project, self.name)


@value
class EndedRow:
    """A submission with its label. ``iterations`` None = the job reported no progress; ``service_s`` = productive seconds.

    ``reported_iterations`` is the smallest total that the job itself reported.
    """

    submission: Submission
    ended_at_s: float
    iterations: float | None
    service_s: float
    final_state: str = ""
    seconds_per_iteration: float | None = None
    ran_on_gpu_type: str = ""
    servers_spanned: int | None = None
    reported_iterations: float | None = None

    def label(self, unit: Unit) -> float | None:
        """The total in ``unit``, at least 1 and finite; None where it is unknown.

        A job that never ran (cancelled while it waited) has no service and is no label of either unit.
        """
        value = self.iterations if unit is Unit.ITERATIONS else self.service_s
        if value is None or not math.isfinite(value) or value < 0.0 or value > UNITS_MAX or self.service_s <= 0.0:
            return None
        return max(UNITS_MIN, value)


def plausible(value: float | None) -> float | None:
    """``value`` where it is positive and at most :data:`UNITS_MAX`, else None (not given)."""
    # The comparison is false for NaN, and exact for an integer too large for a float.
    return float(value) if value is not None and 0.0 < value <= UNITS_MAX else None


def submission_of(job: JobId, spec: JobSpec, submitted_at_s: float) -> Submission:
    """What is known of a job at its submission. Implausible numbers become None."""
    user, project, name = spec.recurrence
    graph = spec.stage_graph
    secrets = [spec.env[name] for name in spec.secret_env if spec.env.get(name)]
    return Submission(
        job=int(job),
        user=user,
        project=project,
        name=name,
        gpus=max(1, spec.gpus),
        submitted_at_s=submitted_at_s if math.isfinite(submitted_at_s) else 0.0,
        declared_iterations=plausible(spec.declared_iterations),
        walltime_s=plausible(spec.walltime_s),
        model=spec.model or "",
        batch_size=spec.batch_size,
        stages=len(graph.stages) if graph is not None else None,
        parameter_bytes=float(sum(stage.parameter_bytes for stage in graph.stages)) if graph is not None else None,
        gpu_type=spec.gpu_type or "",
        arguments=described(spec.command, secrets, spec.working_dir),
    )


def request_submission(request: PredictionRequest) -> Submission:
    """The submission of a prediction request."""
    return submission_of(request.job, request.spec, request.submitted_at_s)


def ended_row(label: EndedJob) -> EndedRow:
    """The row of a job that has ended. A profile run says how fast the program is, and nothing about how long it trains.

    The clock of the service that took a job may be ahead of the leader's, by which it ended: it ended at its submission, then.
    """
    measures_only = label.spec.profile is not None
    submission = submission_of(label.job, label.spec, label.submitted_at_s)
    return EndedRow(
        submission=submission,
        ended_at_s=max(submission.submitted_at_s, label.ended_at_s),
        iterations=None if measures_only else label.iterations,
        service_s=0.0 if measures_only else label.service_s,
        final_state=label.final_state,
        seconds_per_iteration=label.seconds_per_iteration,
        ran_on_gpu_type=label.gpu_type or "",
        servers_spanned=label.servers_spanned,
        reported_iterations=None if measures_only else plausible(label.reported_iterations),
    )


def row_to_dict(row: EndedRow) -> dict[str, Any]:
    """One flat JSON object; fields without a value are left out."""
    flat = asdict(row)
    flat = {**flat.pop("submission"), **flat}
    return {key: value for key, value in flat.items() if value is not None and value != ""}


_SUBMISSION_TYPES: Final = get_type_hints(Submission)
_ROW_TYPES: Final = {name: kind for name, kind in get_type_hints(EndedRow).items() if kind is not Submission}
_TYPES: Final = _SUBMISSION_TYPES | _ROW_TYPES
_REQUIRED: Final = frozenset({"job", "gpus", "submitted_at_s", "ended_at_s", "service_s"})


def _parsed(name: str, kind: object, given: object) -> str | float:
    if kind is str:
        if not isinstance(given, str):
            raise RowError(f"{name}: {given!r} is not text")
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise RowError(f"{name}: {given!r} is not a finite number")
    return int(float(given)) if kind in (int, int | None) else float(given)


def row_from_dict(values: Mapping[str, Any]) -> EndedRow:
    """The row of a flat JSON object. Raises :class:`RowError` naming the field; unknown fields are refused."""
    missing = _REQUIRED - values.keys()
    if missing:
        raise RowError(f"{min(missing)}: missing")
    parsed: dict[str, Any] = {"user": "", "project": "", "name": "", "iterations": None}
    for name, given in values.items():
        if name not in _TYPES:
            raise RowError(f"{name}: unknown field")
        parsed[name] = _parsed(name, _TYPES[name], given)
    if parsed["gpus"] < 1:
        raise RowError(f"gpus: {parsed['gpus']} is not at least 1")
    if parsed["ended_at_s"] < parsed["submitted_at_s"]:
        raise RowError("ended_at_s: before submitted_at_s")
    for name in ("declared_iterations", "walltime_s", "reported_iterations"):
        parsed[name] = plausible(parsed.get(name))
    submission = Submission(**{name: value for name, value in parsed.items() if name in _SUBMISSION_TYPES})
    return EndedRow(submission, **{name: value for name, value in parsed.items() if name in _ROW_TYPES})


@contextmanager
def open_text(path: Path, mode: str) -> Iterator[IO[str]]:
    """A text file ("r" or "w"), gzipped where its name ends in .gz."""
    if path.suffix == ".gz":
        # gzip's stub returns a union over its modes; "rt" and "wt" are text.
        with cast(IO[str], gzip_open(path, f"{mode}t", encoding="utf-8")) as stream:
            yield stream
    else:
        with path.open(mode, encoding="utf-8") as stream:
            yield stream


def rows_to_jsonl(path: Path, rows: Iterable[EndedJob]) -> int:
    """Write ended jobs, in any order, as JSON lines after a header line; returns how many."""
    count = 0
    with open_text(path, "w") as stream:
        stream.write(json.dumps({"schema": ROWS_SCHEMA}) + "\n")
        for row in rows:
            stream.write(json.dumps(row_to_dict(ended_row(row)), allow_nan=False) + "\n")
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[EndedRow]:
    """Stream the rows of a file. Raises :class:`RowError` naming file, line and field."""
    with open_text(path, "r") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                values = json.loads(line)
                if number == 1:
                    if not isinstance(values, dict) or values.get("schema") != ROWS_SCHEMA:
                        raise RowError(f"schema: must be {ROWS_SCHEMA}")
                    continue
                if not isinstance(values, dict):
                    raise RowError("not an object")
                row = row_from_dict(values)
            except (RowError, json.JSONDecodeError) as error:
                raise RowError(f"{path}:{number}: {error}") from None
            yield row


def newest_by_submission(rows: Iterable[EndedRow], limit: int) -> list[EndedRow]:
    """The ``limit`` newest ended rows, sorted by submission. Streams: memory holds ``limit`` rows."""
    newest = nlargest(limit, rows, key=lambda row: (row.ended_at_s, row.submission.job))
    return sorted(newest, key=lambda row: (row.submission.submitted_at_s, row.submission.job))
