"""The columns of jobs, attempts and events, and a job's prediction in lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from service.cli.output import Column, Table
from service.domain.counts import count_of
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.wire.jobs import AttemptDocument, EventDocument, JobDocument
    from service.wire.predictions import ContributionsDocument, PredictionDetailsDocument


_LISTED_MAX = 5
"""Jobs that a note names; the others are counted."""


def amount(value: float) -> str:
    """A count for people: ``1,200``."""
    return f"{value:,.0f}"


def when(text: str | None) -> str:
    """A time of the API in this machine's time zone; empty where it has not happened."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def elapsed_s(start: str | None, end: str | None) -> float | None:
    """Seconds between two times of the API (up to now where there is no end)."""
    if start is None:
        return None
    last = datetime.fromisoformat(end) if end is not None else datetime.now(UTC)
    return max(0.0, (last - datetime.fromisoformat(start)).total_seconds())


def duration(seconds: float | None) -> str:
    """A duration in a table; empty where there is none."""
    return "" if seconds is None else words_of(seconds)


def total(value: float, unit: str) -> str:
    """A predicted total that cannot be taken for one in another unit: ``5,000`` iterations, or ``~2 h 10 min``."""
    return amount(value) if unit == "iterations" else f"~{words_of(value)}"


def iterations(job: JobDocument) -> str:
    """Iterations done and predicted, ``1,200/5,000``; where a time is predicted instead, ``1,200, ~2 h 10 min``.

    Of an ended job only those done: what was predicted of it is no total.
    """
    done = "-" if job["iterations_done"] is None else amount(job["iterations_done"])
    prediction = job["prediction"]
    if job["finished_at"] is not None:
        return done
    if prediction is None:
        return f"{done}/-"
    predicted = total(prediction["p50"], prediction["unit"])
    if prediction["unit"] == "iterations":
        return f"{done}/{predicted}"
    return predicted if job["iterations_done"] is None else f"{done}, {predicted}"


def interval(job: JobDocument) -> str:
    """10 % to 90 % of the predicted total."""
    prediction = job["prediction"]
    if prediction is None:
        return ""
    return f"{total(prediction['p10'], prediction['unit'])}-{total(prediction['p90'], prediction['unit']).removeprefix('~')}"


def eta(job: JobDocument) -> str:
    """When the job will end, as the service returns it; empty where it returns none. It may be of an old forecast."""
    if job["eta"] is None:
        return ""
    return "overdue" if datetime.fromisoformat(job["eta"]) < datetime.now(UTC) else when(job["eta"])


def eta_note(jobs: Sequence[JobDocument]) -> str:
    """Why ETAs are missing."""
    return note_of_etas([(job["id"], job["eta_reason"] if job["eta"] is None else None) for job in jobs])


def note_of_etas(reasons: Sequence[tuple[int, str | None]]) -> str:
    """Why the ETAs of jobs are missing (None: not missing), each reason once with its jobs, unless it is that of all."""
    jobs: dict[str, list[int]] = {}
    for job, reason in reasons:
        if reason:
            jobs.setdefault(reason, []).append(job)
    return "\n".join(
        f"ETA{'' if len(of) == len(reasons) else f' of {_listed(of)}'}: {reason}" for reason, of in jobs.items()
    )


def _listed(jobs: Sequence[int]) -> str:
    """``job 7``, ``jobs 7, 8, 9``, ``jobs 1, 2, 3, 4, 5 and 20 others``."""
    more = len(jobs) - _LISTED_MAX
    others = f" and {count_of(more, 'other')}" if more > 0 else ""
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs[:_LISTED_MAX]))}{others}"


def source(job: JobDocument) -> str:
    """Where the prediction comes from."""
    prediction = job["prediction"]
    return prediction["source"] if prediction is not None else ""


def exit_code(job: JobDocument) -> str:
    """That of the newest attempt; empty while it runs, when the job has that of the one before."""
    return "" if job["exit_code"] is None or job["servers"] else str(job["exit_code"])


JOBS: Table[JobDocument] = Table(
    columns=(
        Column("JOB", lambda job: str(job["id"]), right=True),
        Column("NAME", lambda job: job["name"], long=True),
        Column("USER", lambda job: job["user"] or "", long=True),
        Column("STATE", lambda job: job["state"]),
        Column("REASON", lambda job: job["reason"], long=True),
        Column("GPUS", lambda job: str(job["gpus"]), right=True),
        Column("ITER", iterations, right=True),
        Column("ETA", eta),
        Column("SERVERS", lambda job: ",".join(job["servers"]), long=True),
    ),
    key=lambda job: str(job["id"]),
    hidden=(
        Column("ARRAY", lambda job: "" if job["array_id"] is None else f"{job['array_id']}[{job['array_index']}]"),
        Column("PROJECT", lambda job: job["project"] or "", long=True),
        Column("PRIORITY", lambda job: str(job["priority"]), right=True),
        Column("INTERVAL", interval, right=True),
        Column("SOURCE", source, long=True),
        Column("ATTEMPTS", lambda job: str(job["attempts"]), right=True),
        Column("PREEMPTIONS", lambda job: str(job["preemptions"]), right=True),
        Column("SUBMITTED", lambda job: when(job["submitted_at"])),
        Column("STARTED", lambda job: when(job["started_at"])),
        Column("FINISHED", lambda job: when(job["finished_at"])),
        Column("JCT", lambda job: duration(elapsed_s(job["submitted_at"], job["finished_at"])), right=True),
        Column("EXIT", exit_code, right=True),
        Column("WHY", lambda job: job["reason_sentence"], long=True),
    ),
)

SORT_KEYS: Mapping[str, Callable[[JobDocument], Any]] = {
    "job": lambda job: job["id"],
    "name": lambda job: job["name"],
    "user": lambda job: job["user"],
    "project": lambda job: job["project"],
    "state": lambda job: job["state"],
    "gpus": lambda job: job["gpus"],
    "priority": lambda job: job["priority"],
    "attempts": lambda job: job["attempts"],
    "preemptions": lambda job: job["preemptions"],
    "submitted": lambda job: job["submitted_at"],
    "started": lambda job: job["started_at"],
    "finished": lambda job: job["finished_at"],
    "jct": lambda job: elapsed_s(job["submitted_at"], job["finished_at"]) if job["finished_at"] else None,
}
"""Columns that jobs can be sorted by."""


def sorted_jobs(jobs: Sequence[JobDocument], column: str) -> list[JobDocument]:
    """Jobs by a column of :data:`SORT_KEYS`, descending with ``-`` before it; those without a value stand last."""
    key = SORT_KEYS[column.removeprefix("-")]
    known = [job for job in jobs if key(job) is not None]
    return sorted(known, key=key, reverse=column.startswith("-")) + [job for job in jobs if key(job) is None]


ATTEMPTS: Table[AttemptDocument] = Table(
    columns=(
        Column("ATTEMPT", lambda attempt: attempt["id"], right=True),
        Column("STATE", lambda attempt: attempt["state"]),
        Column("REASON", lambda attempt: attempt["reason"] or "", long=True),
        Column("STARTED", lambda attempt: when(attempt["started_at"])),
        Column("RAN", lambda attempt: duration(elapsed_s(attempt["started_at"], attempt["ended_at"])), right=True),
        Column("FROM", lambda attempt: amount(attempt["resume_iteration"]), right=True),
        Column(
            "TO",
            lambda attempt: "" if attempt["last_iteration"] is None else amount(attempt["last_iteration"]),
            right=True,
        ),
        Column("EXIT", lambda attempt: "" if attempt["exit_code"] is None else str(attempt["exit_code"]), right=True),
        Column("GPUS", lambda attempt: gpus(attempt), long=True),
    ),
    key=lambda attempt: attempt["id"],
    name="attempts",
)


def gpus(attempt: AttemptDocument) -> str:
    """Which GPUs an attempt holds: ``s0001:0,1 s0002:3``."""
    return " ".join(f"{share['server']}:{','.join(map(str, share['gpu_ids']))}" for share in attempt["placement"])


def stages(attempt: AttemptDocument) -> list[str]:
    """What the GPUs of each server compute: ``s0001: stage 0 replica 1 on 2,3``. None for a job without stages."""
    lines = []
    for share in attempt["placement"]:
        parts: dict[tuple[int, int], list[str]] = {}
        for seat in share["seats"]:
            parts.setdefault((seat["stage"], seat["replica"]), []).append(str(seat["gpu_id"]))
        if parts:
            shown = ", ".join(f"stage {s} replica {r} on {','.join(ids)}" for (s, r), ids in parts.items())
            lines.append(f"{share['server']}: {shown}")
    return lines


EVENTS: Table[EventDocument] = Table(
    columns=(
        Column("AT", lambda event: when(event["at"])),
        Column("FROM", lambda event: event["source"] or ""),
        Column("TO", lambda event: event["target"]),
        Column("CAUSE", lambda event: event["cause"]),
        Column("REASON", lambda event: event["reason"], long=True),
        Column("ATTEMPT", lambda event: event["attempt_id"] or ""),
        Column("CYCLE", lambda event: str(event["cycle"]), right=True),
        Column("DETAIL", lambda event: event["detail"], long=True),
    ),
    key=lambda event: str(event["id"]),
    name="events",
)


_TRUST = {
    "model": "ranked by the model's distribution",
    "history": "ranked by the history of past runs",
    "attained_service": "not trusted: ranked by attained service",
}


def prediction_lines(found: PredictionDetailsDocument | None) -> list[str]:
    """The prediction, its trust, its contributions, and similar past jobs; or that there is none."""
    if found is None:
        return [
            "There is no prediction: no cycle has processed the job yet, or no job has ended and the job has said no total."
        ]
    unit = found["unit"]
    if unit == "iterations":
        spread = f"{amount(found['point'])} [{amount(found['p10'])}-{amount(found['p90'])}] iterations"
    else:
        spread = f"{words_of(found['point'])} [{words_of(found['p10'])}-{words_of(found['p90'])}]"
    lines = [f"Predicted {spread}: {found['source']}.", f"It is {_TRUST.get(found['trust'], found['trust'])}."]
    if found["bucket"] is not None and found["past_runs"] is not None:
        runs = f"{count_of(found['past_runs'], 'past run')} with as many GPUs"
        lines.append(f"{runs}; intervals are calibrated on jobs with {found['bucket']} past runs.")
    if found["contributions"] is None:
        lines.append(found["contributions_reason"] or "")
    else:
        lines += _moved(found["contributions"], unit)
    lines += _similar(found, unit)
    return [line for line in lines if line]


def _total(value: float, unit: str) -> str:
    return f"{amount(value)} iterations" if unit == "iterations" else words_of(value)


def _moved(found: ContributionsDocument, unit: str) -> Iterator[str]:
    start, whole = _total(found["history_median"], unit), _total(found["total"], unit)
    yield f"Factors from what past runs say, {start}, to the median of {found['model_version']}, {whole}:"
    yield from (f"  x{each['factor']:.2f}  {each['words']}" for each in found["top"])
    yield f"  x{found['others_factor']:.2f}  all other features"
    yield f"  x{found['usual_factor']:.2f}  constant factor of the model"


def _similar(found: PredictionDetailsDocument, unit: str) -> Iterator[str]:
    if not found["similar"]:
        yield "No similar job has ended."
        return
    yield "Similar jobs:"
    for each in found["similar"]:
        whole = "reported none" if each["total"] is None else _total(each["total"], unit)
        yield f"  job {each['job_id']}: {each['name']}, {count_of(each['gpus'], 'GPU')}, {whole}, {each['state']}"
