"""Intervals that hold on this cluster: forecasts are repeated for instants of its own past, and compared with what happened.

A forecast of an instant gives three quantiles. What happened lies ``u`` widths above (or below) the middle one, in widths of that
side. The quantiles of ``u`` over the past say how far the sides have to be moved so that a tenth of the jobs falls outside each
(conformal prediction with the normalised error as score; after Romano, Patterson, Candes, "Conformalized quantile regression",
2019). A few pseudo-scores that say "as forecast" keep a short past from deciding alone.

Jobs of one queue are late together, so the scores are not independent and a fixed tenth misses more than a tenth. Therefore the
tail that is cut off adapts: it shrinks with each miss and grows with each hit, so that a tenth is missed in the long run (after
Gibbs, Candes, "Adaptive conformal inference under distribution shift", 2021).
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import Any

from service.forecast.forecast import Spread

SCORES_MAX = 2_000
"""Newest scores that count, a kind."""

PSEUDO_SCORES = 10

WIDTH_LEAST_S = 1.0
WIDTH_LEAST_SHARE = 0.15
"""A width is at least this: seconds, as Slurm itself decides only every few seconds, plus a share of the time ahead. In a long
queue the errors of single jobs average out, and the forecast is narrow; those that all jobs have in common do not."""

OUTSIDE = 0.1
"""The share of jobs that shall fall outside an interval, on each side."""

TAIL_STEP = 0.005
TAIL_MIN, TAIL_MAX = 0.01, 0.25
"""How far one forecast that comes true moves the tail, and its limits."""

_NORMAL = NormalDist()
_TENTH = _NORMAL.inv_cdf(0.9)


class Kind(StrEnum):
    """What is forecast. Each kind has its own scores: errors of a start at once say nothing about one in an hour."""

    __hash__ = str.__hash__

    START_NOW = "start_now"
    START_LATER = "start_later"
    END_RUNNING = "end_running"
    END_WAITING = "end_waiting"


def start_kind(spread: Spread, now_s: float) -> Kind:
    """The kind of a forecast start: at once in nearly all futures, or later."""
    return Kind.START_NOW if spread.p90_s <= now_s + WIDTH_LEAST_S else Kind.START_LATER


def end_kind(*, running: bool) -> Kind:
    """The kind of a forecast end."""
    return Kind.END_RUNNING if running else Kind.END_WAITING


def score(spread: Spread, now_s: float, actual_s: float) -> float:
    """How many widths of that side the actual time lies above the middle (negative: below)."""
    below_s, above_s = _widths(spread, now_s)
    difference_s = actual_s - spread.p50_s
    return difference_s / (above_s if difference_s >= 0.0 else below_s)


def _widths(spread: Spread, now_s: float) -> tuple[float, float]:
    least_s = WIDTH_LEAST_S + WIDTH_LEAST_SHARE * max(0.0, spread.p50_s - now_s)
    return max(least_s, spread.p50_s - spread.p10_s), max(least_s, spread.p90_s - spread.p50_s)


@dataclass(slots=True)
class Side:
    """The tail that is cut off on one side of an interval."""

    tail: float = OUTSIDE

    def observe(self, *, missed: bool) -> None:
        """A job fell outside on this side, or not."""
        self.tail = min(TAIL_MAX, max(TAIL_MIN, self.tail + TAIL_STEP * (OUTSIDE - missed)))


@dataclass(slots=True)
class Scores:
    """The past forecasts of one kind."""

    found: deque[float] = field(default_factory=lambda: deque(maxlen=SCORES_MAX))
    below: Side = field(default_factory=Side)
    above: Side = field(default_factory=Side)

    def moves(self) -> tuple[float, float, float]:
        """By how many widths the three quantiles lie off the middle one."""
        ranked = sorted([*self.found, *_PSEUDO])
        count = len(ranked)
        # With n scores the k-th smallest has at least k / (n + 1) of the mass below it.
        low = max(1, math.floor((count + 1) * self.below.tail))
        high = max(1, math.floor((count + 1) * self.above.tail))
        return ranked[low - 1], (ranked[(count - 1) // 2] + ranked[count // 2]) / 2, ranked[count - high]


@dataclass(frozen=True, slots=True)
class Checked:
    """One forecast of the past and the truth. ``at_s``: when it was made."""

    kind: Kind
    at_s: float
    key: str
    spread: Spread
    actual_s: float


@dataclass(slots=True)
class Calibration:
    """The scores of past forecasts, by kind. ``made_at_s``: when the past, of ``jobs`` ended jobs, was replayed."""

    made_at_s: float = -math.inf
    jobs: int = 0
    scores: dict[Kind, Scores] = field(default_factory=lambda: {kind: Scores() for kind in Kind})

    def apply(self, kind: Kind, spread: Spread, now_s: float) -> Spread:
        """The spread with its three quantiles moved by those of the scores; never before ``now_s``."""
        return self._moved(self.scores[kind].moves(), spread, now_s)

    @staticmethod
    def _moved(moves: Sequence[float], spread: Spread, now_s: float) -> Spread:
        below_s, above_s = _widths(spread, now_s)
        return Spread(*(max(now_s, spread.p50_s + by * (above_s if by >= 0.0 else below_s)) for by in moves))

    def learn(self, checked: Sequence[Checked]) -> list[Spread]:
        """Learn from forecasts in the order of time, and return the spread that each would have had by what was known then."""
        events = [(each.at_s, 1, number) for number, each in enumerate(checked)]
        events += [(each.actual_s, 0, number) for number, each in enumerate(checked)]
        shown: dict[int, Spread] = {}
        moves: dict[Kind, tuple[float, float, float]] = {}
        for _, made, number in sorted(events):
            each = checked[number]
            scores = self.scores[each.kind]
            if made:
                if each.kind not in moves:
                    moves[each.kind] = scores.moves()
                shown[number] = self._moved(moves[each.kind], each.spread, each.at_s)
            elif number in shown:
                self.observe(each, shown[number])
                moves.pop(each.kind, None)
        return [shown[number] for number in range(len(checked))]

    def observe(self, checked: Checked, shown: Spread) -> None:
        """A forecast has come true that was shown with this spread."""
        scores = self.scores[checked.kind]
        scores.below.observe(missed=checked.actual_s < shown.p10_s)
        scores.above.observe(missed=checked.actual_s > shown.p90_s)
        scores.found.append(score(checked.spread, checked.at_s, checked.actual_s))

    def count(self, kind: Kind) -> int:
        """Past forecasts of this kind that came true."""
        return len(self.scores[kind].found)

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {
            "made_at_s": self.made_at_s,
            "jobs": self.jobs,
            "scores": {
                kind.value: {
                    "found": [round(found, 4) for found in each.found],
                    "below": each.below.tail,
                    "above": each.above.tail,
                }
                for kind, each in self.scores.items()
            },
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Calibration":
        """From JSON. Raises ValueError, KeyError, TypeError or AttributeError for another form."""
        made = cls(float(given["made_at_s"]), int(given["jobs"]))
        for kind, each in given["scores"].items():
            made.scores[Kind(kind)] = Scores(
                deque(map(float, each["found"]), SCORES_MAX), Side(float(each["below"])), Side(float(each["above"]))
            )
        return made


_PSEUDO: Sequence[float] = tuple(
    _NORMAL.inv_cdf((index + 0.5) / PSEUDO_SCORES) / _TENTH for index in range(PSEUDO_SCORES)
)


def instants(submissions: Iterable[float], from_s: float, until_s: float, count: int) -> list[float]:
    """Up to ``count`` instants of a period, as many jobs submitted between each two of them."""
    times = sorted(submissions)
    inside = times[bisect.bisect_left(times, from_s) : bisect.bisect_right(times, until_s)]
    if len(inside) <= count:
        return inside
    return [inside[(2 * index + 1) * len(inside) // (2 * count)] for index in range(count)]
