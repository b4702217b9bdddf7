"""Small charts as shapes that templates draw: they need no script. Coordinates are percent of the box, from its top left.

A box is stretched to the width of the page, so its text stands beside it, not in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate, pairwise
from math import ceil, exp, log
from statistics import median
from typing import Any, Final, TypeVar

from service.api.documents import instant, seconds_of
from service.domain.counts import gpu_hours

T = TypeVar("T")

DAYS_SHOWN_MAX: Final = 120
"""Bars of the chart of days; a longer period has several days a bar."""

DRIFT_GROUPS_MAX: Final = 12
DRIFT_JOBS_MIN: Final = 5
"""Jobs of one point of the error over time, at least."""

LOSSES_MAX: Final = 150
"""Points of one job's losses."""
LOSSES_LINEAR_MAX: Final = 5.0
"""Largest ratio of losses that is drawn on a linear scale."""

STEPS: Final = 96
"""Points of the sparkline: a quarter of an hour each, of a day."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of two parts, one on the other; both and the place are percent of the box."""

    x: float
    width: float
    lower: float
    upper: float
    title: str


@dataclass(frozen=True, slots=True)
class Bars:
    """``top``: what the whole height stands for. ``first`` and ``last``: ends of the axis."""

    bars: Sequence[Bar]
    top: float
    first: str
    last: str
    lower: float
    upper: float


def days_chart(first_day: str, last_day: str, rows: Iterable[Mapping[str, Any]]) -> Bars | None:
    """GPU-hours by day, useful and wasted, of rows of ``GET /v1/usage?group=day``; None where no GPU was held."""
    found = {row["day"]: (row["useful_gpu_h"], row["wasted_gpu_h"]) for row in rows}
    first, last = date.fromisoformat(first_day), date.fromisoformat(last_day)
    days = [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]
    each = ceil(len(days) / DAYS_SHOWN_MAX)
    groups = [days[start : start + each] for start in range(0, len(days), each)]
    sums = [[sum(found.get(day, (0.0, 0.0))[part] for day in group) for part in (0, 1)] for group in groups]
    top = max((useful + wasted for useful, wasted in sums), default=0.0)
    if top <= 0.0:
        return None
    width = 100.0 / len(groups)
    bars = [
        Bar(
            _place(number * width + 0.1 * width),
            _place(0.8 * width),
            _place(100.0 * useful / top),
            _place(100.0 * wasted / top),
            f"{group[0]}{f' to {group[-1]}' if len(group) > 1 else ''}: {gpu_hours(useful)} useful, {gpu_hours(wasted)} wasted",
        )
        for number, (group, (useful, wasted)) in enumerate(zip(groups, sums, strict=True))
    ]
    return Bars(bars, top, first_day, last_day, sum(useful for useful, _ in sums), sum(wasted for _, wasted in sums))


@dataclass(frozen=True, slots=True)
class Polyline:
    """A line through ``points``, in percent of the box."""

    points: Sequence[tuple[float, float]]

    @property
    def path(self) -> str:
        """As the attribute ``points`` of a polyline."""
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Line(Polyline):
    """``first`` and ``last``: ends of the axis. ``top``: what the whole height stands for."""

    first: str
    last: str
    values: Sequence[float]
    top: float


def use_chart(since_s: float, until_s: float, gpus: int, held: Iterable[tuple[float, float, int]]) -> Line | None:
    """The share of ``gpus`` that was held, the mean of each of :data:`STEPS`. ``held``: from, to, and how many GPUs."""
    if gpus <= 0 or until_s <= since_s:
        return None
    step_s = (until_s - since_s) / STEPS
    # What starts in a step holds a part of it and all later ones; what ends gives both back.
    parts, whole = [0.0] * (STEPS + 1), [0.0] * (STEPS + 1)
    for starts_s, ends_s, count in held:
        for at_s, sign in ((max(starts_s, since_s), 1), (min(max(ends_s, since_s), until_s), -1)):
            place = min((at_s - since_s) / step_s, float(STEPS))
            number = int(place)
            parts[number] += sign * count * (number + 1 - place)
            if number < STEPS:
                whole[number + 1] += sign * count
    values = [
        min(1.0, max(0.0, (part + base) / gpus))
        for part, base in zip(parts[:STEPS], accumulate(whole[:STEPS]), strict=True)
    ]
    points = [
        (_place(100.0 * (number + 0.5) / STEPS), _place(100.0 * (1.0 - value))) for number, value in enumerate(values)
    ]
    return Line(points, instant(since_s), instant(until_s), values, 1.0)


def drift_chart(jobs: Sequence[Mapping[str, Any]]) -> Line | None:
    """The typical factor between predicted and actual totals, of equally many jobs a point, in the order of their ends.

    ``jobs``: with a scored prediction. None for fewer than two points.
    """
    ordered = sorted(jobs, key=lambda job: str(job["finished_at"]))
    count = min(DRIFT_GROUPS_MAX, len(ordered) // DRIFT_JOBS_MIN)
    if count < 2:
        return None
    edges = [len(ordered) * number // count for number in range(count + 1)]
    groups = [ordered[start:end] for start, end in pairwise(edges)]
    values = [exp(median(abs(job["prediction"]["log_error"]) for job in group)) for group in groups]
    top = max(2.0, *values)
    points = [
        (_place(100.0 * (number + 0.5) / count), _place(100.0 * (top - value) / (top - 1.0)))
        for number, value in enumerate(values)
    ]
    return Line(points, str(ordered[0]["finished_at"]), str(ordered[-1]["finished_at"]), values, top)


def calibration_chart(coverage: Sequence[Mapping[str, float]]) -> Line | None:
    """Observed against expected coverage, of ``GET /v1/predictions/calibration``; both axes go from 0 to 1."""
    if not coverage:
        return None
    points = [(_place(100.0 * each["level"]), _place(100.0 * (1.0 - each["observed"]))) for each in coverage]
    return Line(points, "0%", "100%", [each["observed"] for each in coverage], 1.0)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """From now to the latest time that the rows of a table show. ``last`` is that time as the API writes it."""

    since_s: float
    until_s: float
    last: str

    def place(self, at: str) -> float:
        """Where a time lies; what is past lies at the start."""
        at_s = seconds_of(at) or self.since_s
        return _place(100.0 * max(0.0, at_s - self.since_s) / (self.until_s - self.since_s))


def time_axis(jobs: Sequence[Mapping[str, Any]], milestone: str) -> TimeAxis | None:
    """The axis of the forecast starts or ends (``milestone``) of rows of ``GET /v1/queue/jobs``; None without one ahead."""
    spreads = [job[milestone] for job in jobs if job[milestone] is not None]
    if not spreads:
        return None
    last = max(spread["p90"] for spread in spreads)
    now_s, until_s = max((seconds_of(job["submitted_at"]) or 0.0) + job["waiting_s"] for job in jobs), seconds_of(last)
    return TimeAxis(now_s, until_s, last) if until_s is not None and until_s > now_s else None


@dataclass(frozen=True, slots=True)
class LossLine(Polyline):
    """The loss of one job over its iterations. ``loss`` is the newest, after so many ``iterations``."""

    job: int
    iterations: float
    loss: float


@dataclass(frozen=True, slots=True)
class Losses:
    """A job's loss and those of past runs, from no iteration to ``iterations`` and from ``bottom`` to ``top``."""

    own: LossLine
    past: Sequence[LossLine]
    iterations: float
    top: float
    bottom: float
    logarithmic: bool


def loss_chart(job: int, reports: Mapping[int, Sequence[Mapping[str, Any]]]) -> Losses | None:
    """The losses in the progress ``reports`` of a job and of past jobs, by job; None where this one has fewer than two.

    Where all are positive and far apart, the scale is logarithmic.
    """
    curves = {each: curve for each, theirs in reports.items() if len(curve := _losses(theirs)) > 1}
    if job not in curves:
        return None
    losses = [loss for curve in curves.values() for _, loss in curve]
    bottom, top = min(losses), max(losses)
    last = max(curve[-1][0] for curve in curves.values())
    logarithmic = bottom > 0.0 and top > LOSSES_LINEAR_MAX * bottom
    scale: Callable[[float], float] = log if logarithmic else float
    height = (scale(top) - scale(bottom)) or 1.0
    lines = {
        each: LossLine(
            [(_place(100.0 * at / last), _place(100.0 * (scale(top) - scale(loss)) / height)) for at, loss in curve],
            each,
            *curve[-1],
        )
        for each, curve in curves.items()
    }
    own = lines.pop(job)
    return Losses(own, list(lines.values()), last, top, bottom, logarithmic)


def _losses(reports: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(iteration, loss), ascending: what an attempt repeats after its checkpoint is left out. At most :data:`LOSSES_MAX`."""
    found: list[tuple[float, float]] = []
    for report in reports:
        if report["loss"] is not None and report["iteration"] > (found[-1][0] if found else 0.0):
            found.append((report["iteration"], report["loss"]))
    return thinned(found, LOSSES_MAX)


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most so many of the points, evenly apart, with the newest."""
    step = -(-len(points) // most) or 1
    return list(points[-1::-step][::-1])


def _place(value: float) -> float:
    """Short, and the same for equal pages."""
    return round(value, 2)
