"""How right forecasts were: the score of one, and coverage and errors of many by how far they looked and how large the gang is.

Pure arithmetic on numbers. Pinball loss is the proper score of a quantile (Koenker and Bassett): its mean is least for the
true one, so a forecast can gain neither by a wider nor by a shifted interval.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

LEVELS = (0.1, 0.5, 0.9)
"""The quantiles that a forecast tells."""

HORIZONS_S = (60.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0)
"""Where one class of horizons ends and the next begins. A horizon is what was told, p50 less the instant of telling: what
it turned out to be would put all late jobs among the long ones."""


class Milestone(StrEnum):
    """What a forecast is about."""

    START = "start"
    """The job's next start: when it gets its GPUs."""
    FINISH = "finish"


class Score(NamedTuple):
    """One forecast against what happened, in seconds. ``error_s`` = p50 - actual: above 0 = told too late."""

    error_s: float
    inside: bool
    pinball_s: float


def score(quantiles: Sequence[float], actual_s: float) -> Score:
    """The score of three quantiles (p10, p50, p90). ``inside`` counts both ends of the interval as in it."""
    losses = [
        max(level * (actual_s - told), (level - 1.0) * (actual_s - told))
        for level, told in zip(LEVELS, quantiles, strict=True)
    ]
    low, middle, high = quantiles
    return Score(middle - actual_s, low <= actual_s <= high, sum(losses) / len(losses))


@dataclass(frozen=True, slots=True)
class Scored:
    """A scored forecast, as far as accuracy depends on it. ``horizon_s`` is p50 less the instant of telling."""

    milestone: Milestone
    job: int
    horizon_s: float
    gpus: int
    score: Score


@dataclass(frozen=True, slots=True)
class Tally:
    """Many scores in one line. ``low`` <= horizon (seconds) or GPUs < ``high``; None = without end on that side.

    ``coverage_80`` is the share inside the interval of 80 %: 0.8 is right, more is too wide. ``median_error_s`` keeps its
    sign (bias), ``median_absolute_error_s`` is how far off, ``median_relative_error`` that over the horizon.
    """

    low: float | None
    high: float | None
    forecasts: int
    jobs: int
    coverage_80: float
    median_error_s: float
    median_absolute_error_s: float
    median_relative_error: float | None
    mean_pinball_s: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one milestone: all forecasts, then by horizon and by gang size; classes without a forecast are left out."""

    all: Tally | None
    by_horizon: Sequence[Tally]
    by_gpus: Sequence[Tally]


def accuracy(scored: Iterable[Scored]) -> Mapping[Milestone, Accuracy]:
    """The accuracy of both milestones. O(forecasts log forecasts)."""
    of: dict[Milestone, list[Scored]] = {milestone: [] for milestone in Milestone}
    for each in scored:
        of[each.milestone].append(each)
    return {
        milestone: Accuracy(
            _tally(found, None, None) if found else None,
            _classes(found, [each.horizon_s for each in found], (None, *HORIZONS_S, None)),
            _classes(found, [float(each.gpus) for each in found], _gang_classes(found)),
        )
        for milestone, found in of.items()
    }


def _gang_classes(found: Sequence[Scored]) -> Sequence[float | None]:
    """1, 2, 3-4, 5-8, ...: the sizes that gangs mostly have end a class."""
    edges: list[float | None] = [1.0, 2.0]
    most = max((each.gpus for each in found), default=1)
    power = 2
    while power < most:
        edges.append(power + 1.0)
        power *= 2
    return [*edges, power + 1.0]


def _classes(found: Sequence[Scored], values: Sequence[float], edges: Sequence[float | None]) -> list[Tally]:
    tallies = []
    for low, high in pairwise(edges):
        members = [
            each
            for each, value in zip(found, values, strict=True)
            if (low is None or value >= low) and (high is None or value < high)
        ]
        if members:
            tallies.append(_tally(members, low, high))
    return tallies


def _tally(members: Sequence[Scored], low: float | None, high: float | None) -> Tally:
    scores = [each.score for each in members]
    relative = [abs(each.score.error_s) / each.horizon_s for each in members if each.horizon_s > 0.0]
    return Tally(
        low=low,
        high=high,
        forecasts=len(members),
        jobs=len({each.job for each in members}),
        coverage_80=sum(each.inside for each in scores) / len(scores),
        median_error_s=median(each.error_s for each in scores),
        median_absolute_error_s=median(abs(each.error_s) for each in scores),
        median_relative_error=median(relative) if relative else None,
        mean_pinball_s=sum(each.pinball_s for each in scores) / len(scores),
    )
