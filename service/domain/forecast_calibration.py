"""Intervals of forecasts that hold: each quantile is moved by the errors of past forecasts of a similar horizon and width.

A forecast gives quantiles of a time ahead. The error of a past forecast at a level is the logarithm of the actual time ahead over
that quantile. The quantile of a new forecast is moved by the level's own quantile of these errors, weighted by how near the past
horizon and the past width were, on a logarithmic scale (conformal prediction with local weights; after Romano, Patterson, Candes,
"Conformalized quantile regression", 2019, and Guan, "Localized conformal prediction", 2023). A narrow forecast errs differently
from a wide one of the same horizon. The newest forecasts count, so the moves follow a change of the workload. A few pseudo-errors
that say "as forecast" keep a short past from deciding alone.

Labels are delayed, and the jobs that start late are known last. Therefore a forecast that is still open after its p90 counts as
well, with the time so far as its outcome: its side of each quantile is known.

All of it is a function of the record and the present instant: there is no state to lose in a restart.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.domain.forecast_scores import LEVELS, Milestone

OUTCOMES_MAX = 4_000
"""Newest forecasts that count, starts and ends together."""

NEARNESS = 1.0
"""Standard deviation of the weights, in natural logarithms of the horizon, and of the p90 over the p10."""

SOON_S = 60.0
"""Added to each time ahead, so that a few seconds are a small error."""

PSEUDO_ERRORS = 21
PSEUDO_WEIGHT = 5.0
"""Number and total weight of the pseudo-errors: a normal distribution of standard deviation 1, moved so that the level's own
quantile is 0: alone they move nothing. The weight of a past forecast with the same horizon and width is 1."""

_MIDDLE = LEVELS.index(0.5)

Array = NDArray[np.float64]


class Outcome(NamedTuple):
    """A past forecast. ``ahead_s``: its quantiles before calibration, ``actual_s``: the actual time ahead, or, if it is still
    open, the time so far."""

    milestone: Milestone
    ahead_s: Sequence[float]
    actual_s: float


@dataclass(frozen=True, slots=True)
class _Errors:
    """The errors at one level, ascending, and the horizons and widths of their forecasts; nan for a pseudo-error."""

    errors: Array
    horizons: Array
    widths: Array


class Calibration:
    """What the past forecasts say. ``outcomes`` in any order; O(outcomes log outcomes)."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        of: dict[Milestone, list[Outcome]] = {milestone: [] for milestone in Milestone}
        for each in outcomes:
            of[each.milestone].append(each)
        self._errors: Mapping[Milestone, Sequence[_Errors]] = {
            milestone: _errors(found) for milestone, found in of.items()
        }

    def apply(self, milestone: Milestone, ahead_s: Sequence[float]) -> tuple[float, ...]:
        """The moved quantiles, ascending and not negative. O(outcomes)."""
        drawn = _log(np.array(ahead_s))
        horizon, width = drawn[_MIDDLE], drawn[-1] - drawn[0]
        moved = []
        for level, quantile, each in zip(LEVELS, drawn, self._errors[milestone], strict=True):
            away = ((each.horizons - horizon) ** 2 + (each.widths - width) ** 2) / NEARNESS**2
            weights = np.exp(-0.5 * away)
            # A pseudo-error has no horizon (nan) and counts everywhere.
            mass = np.cumsum(np.where(np.isnan(weights), PSEUDO_WEIGHT / PSEUDO_ERRORS, weights))
            at = min(int(np.searchsorted(mass, level * mass[-1])), len(mass) - 1)
            moved.append(max(0.0, float(np.exp(quantile + each.errors[at])) - SOON_S))
        return tuple(sorted(moved))


def _log(ahead_s: Any) -> Array:
    found: Array = np.log(np.maximum(ahead_s, 0.0) + SOON_S)
    return found


def _errors(found: Sequence[Outcome]) -> list[_Errors]:
    ahead = _log(np.array([each.ahead_s for each in found]).reshape(-1, len(LEVELS)))
    actual = _log(np.array([each.actual_s for each in found]))
    nowhere = np.full(PSEUDO_ERRORS, np.nan)
    horizons = np.concatenate([ahead[:, _MIDDLE], nowhere])
    widths = np.concatenate([ahead[:, -1] - ahead[:, 0], nowhere])
    levels = []
    for column, level in enumerate(LEVELS):
        errors = np.concatenate([actual - ahead[:, column], _PSEUDO - _PSEUDO[math.ceil(level * PSEUDO_ERRORS) - 1]])
        order = np.argsort(errors, kind="stable")
        levels.append(_Errors(errors[order], horizons[order], widths[order]))
    return levels


_PSEUDO: Array = np.array([NormalDist().inv_cdf((index + 0.5) / PSEUDO_ERRORS) for index in range(PSEUDO_ERRORS)])
