"""The columns of the two tables: their texts, their widths on a terminal, and what they sort by.

Every text of the service passes :func:`printable`, so that no name can send commands to the terminal or hide other text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from service.cli.job_tables import amount, elapsed_s
from service.cli.output import printable
from service.domain.duration import words_of

Row = Mapping[str, Any]
"""A job of the API (a running one), or an entry of the queue."""

_WEEK = timedelta(days=6)
_STATE_LETTERS = {"starting": "S", "running": "R", "preempting": "P", "cancelling": "C"}
_BAR_CELLS = 8
_GROWTH_MAX = 14


@dataclass(frozen=True)
class Field:
    """A column. ``width`` is in terminal cells; a field that ``grows`` takes what is left.

    Where the terminal is too narrow, the fields with the largest ``drop`` go first; those with 0 stay.
    """

    header: str
    text: Callable[[Row], str]
    width: int
    sort: Callable[[Row], Any] | None = None
    right: bool = False
    drop: int = 0
    grows: bool = False


def moment(text: str | None, now: datetime) -> str:
    """A time near ``now`` in this machine's zone: ``14:20``, ``Wed 14:20`` or ``Dec 03``; empty for None."""
    if text is None:
        return ""
    at, seen = datetime.fromisoformat(text).astimezone(), now.astimezone()
    if at.date() == seen.date():
        return at.strftime("%H:%M")
    return at.strftime("%a %H:%M") if abs(at - seen) < _WEEK else at.strftime("%b %d")


def bar(share: float, cells: int) -> str:
    """A bar of so many cells, full from a share of 1 on."""
    full = round(min(1.0, max(0.0, share)) * cells)
    return "█" * full + "░" * (cells - full)


def share_done(job: Row) -> float | None:
    """The part of the predicted total that is done; above 1 where the job runs longer than predicted; None if unknown."""
    prediction = job["prediction"]
    if prediction is None or prediction["p50"] <= 0.0:
        return None
    if prediction["unit"] == "iterations":
        return None if job["iterations_done"] is None else float(job["iterations_done"] / prediction["p50"])
    # The time since the first start is the time that the job ran only if it was never interrupted.
    ran_s = elapsed_s(job["started_at"], job["finished_at"]) if job["attempts"] == 1 else None
    return None if ran_s is None else ran_s / float(prediction["p50"])


def progress(job: Row) -> str:
    """``██████░░  75%``; empty where nothing is predicted or reported."""
    share = share_done(job)
    return "" if share is None else f"{bar(share, _BAR_CELLS)} {min(share, 9.99):4.0%}"


def _iterations(job: Row) -> str:
    prediction = job["prediction"]
    done = "-" if job["iterations_done"] is None else amount(job["iterations_done"])
    if prediction is None:
        return done
    total = prediction["p50"]
    return f"{done}/{amount(total)}" if prediction["unit"] == "iterations" else f"~{words_of(total)}"


def _end(job: Row) -> Row | None:
    """The newest recorded forecast of the job's end."""
    found: list[Row] = [each for each in job["forecasts"] if each["milestone"] == "finish"]
    return found[-1] if found else None


def _p50(of: Row | None) -> str:
    return "" if of is None else moment(of["p50"], datetime.now(UTC))


def interval(of: Row | None) -> str:
    """``13:55-15:40``, the 10% and 90% points of a forecast; empty without one."""
    now = datetime.now(UTC)
    return "" if of is None else f"{moment(of['p10'], now)}-{moment(of['p90'], now)}"


def _first(of: Row | None) -> str:
    return "" if of is None else str(of["p50"])


def _position(job: Row) -> str:
    """Its place in the policy's order; ``-`` for a job that the policy may not start now, such as a held one."""
    return "-" if job["position"] is None else f"{job['position']:,}"


RUNNING: Sequence[Field] = (
    Field("JOB", lambda job: str(job["id"]), 7, lambda job: job["id"], right=True),
    Field("USER", lambda job: job["user"] or "-", 9, lambda job: job["user"] or "", drop=3),
    Field("NAME", lambda job: job["name"], 10, lambda job: job["name"], grows=True),
    Field("S", lambda job: _STATE_LETTERS.get(job["state"], "?"), 1, lambda job: job["state"], drop=2),
    Field("GPUS", lambda job: str(job["gpus"]), 4, lambda job: -job["gpus"], right=True),
    Field(
        "RUNS",
        lambda job: words_of(elapsed_s(job["started_at"], None) or 0.0),
        11,
        lambda job: job["started_at"] or "",
        right=True,
        drop=4,
    ),
    Field("DONE", progress, _BAR_CELLS + 5, lambda job: -(share_done(job) or 0.0)),
    Field("ITERATIONS", _iterations, 17, right=True, drop=6),
    Field("ENDS", lambda job: _p50(_end(job)), 9, lambda job: _first(_end(job)) or "~", drop=1),
    Field("10%-90%", lambda job: interval(_end(job)), 19, drop=5),
    Field("SERVERS", lambda job: ",".join(job["servers"]), 14, drop=7),
)

QUEUE: Sequence[Field] = (
    Field("POS", _position, 6, lambda job: (job["position"] is None, job["position"] or 0), right=True, drop=1),
    Field("JOB", lambda job: str(job["job_id"]), 7, lambda job: job["job_id"], right=True),
    Field("USER", lambda job: job["user"] or "-", 9, lambda job: job["user"] or "", drop=3),
    Field("NAME", lambda job: job["name"], 10, lambda job: job["name"], grows=True),
    Field("GPUS", lambda job: str(job["gpus"]), 4, lambda job: -job["gpus"], right=True),
    Field("PRIO", lambda job: str(job["priority"]), 4, lambda job: -job["priority"], right=True, drop=5),
    Field("WAITS", lambda job: words_of(job["waiting_s"]), 11, lambda job: -job["waiting_s"], right=True, drop=2),
    Field("REASON", lambda job: job["reason"], 19, lambda job: job["reason"]),
    Field("STARTS", lambda job: _p50(job["start"]), 9, lambda job: _first(job["start"]) or "~"),
    Field("10%-90%", lambda job: interval(job["start"]), 19, drop=4),
    Field("WHY", lambda job: job["reason_sentence"], 30, drop=6, grows=True),
)


def job_number(row: Row) -> int:
    """The number of a row's job."""
    return int(row["id"] if "id" in row else row["job_id"])


def fitted(fields: Sequence[Field], width: int) -> list[tuple[Field, int]]:
    """The fields that fit ``width`` cells, each with its width; one cell separates two fields."""
    shown = list(fields)
    while len(shown) > 1 and _needed(shown) > width and any(field.drop for field in shown):
        shown.remove(max(shown, key=lambda field: field.drop))
    left = max(0, width - _needed(shown))
    widths = []
    last = max((at for at, field in enumerate(shown) if field.grows), default=-1)
    for at, field in enumerate(shown):
        # The last one that grows has the longest texts.
        more = left if at == last else min(left, _GROWTH_MAX) if field.grows else 0
        left -= more
        widths.append((field, field.width + more))
    return widths


def _needed(fields: Sequence[Field]) -> int:
    return sum(field.width + 1 for field in fields)


def cell(text: str, width: int, right: bool = False, style: str = "") -> Text:
    """Text of the service in exactly so many cells, cut with an ellipsis, without markup."""
    found = Text(printable(text[: 4 * width + 4]), style=style, no_wrap=True, end="")
    found.truncate(width, overflow="ellipsis")
    if right:
        found.pad_left(width - found.cell_len)
    return found


def matches(row: Row, wanted: str) -> bool:
    """Whether number, name, user, project, state, reason or a server of the job contains the text, in any case."""
    texts = [row[key] for key in ("name", "user", "project", "state", "reason")] + list(row.get("servers", ()))
    return wanted.lower() in " ".join([str(job_number(row)), *(text or "" for text in texts)]).lower()
