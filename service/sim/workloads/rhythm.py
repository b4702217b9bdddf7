"""The weekly pattern of submissions: fewer at night and at weekends, as studies of GPU clusters report.

The shape is stylised: within a day the busiest hours have five times as many submissions as the quietest, and a day of the
weekend has 0.55 of a workday's, as in the Philly trace.
"""

from collections.abc import Sequence

import numpy as np

_HOUR_S = 3600.0
_HOURS = (
    *(0.50, 0.40, 0.35, 0.30, 0.30, 0.30, 0.35, 0.45),
    *(0.80, 1.20, 1.45, 1.45, 1.10, 1.30, 1.50, 1.50),
    *(1.50, 1.40, 1.20, 1.10, 1.15, 1.15, 0.95, 0.70),
)
"""Submissions of each hour of a day, in any unit: least before dawn, a dip at noon, most in the afternoon."""
_WEEKEND = 0.55
WEEK_S = 7 * 24 * _HOUR_S


class Rhythm:
    """A periodic rate of submissions and its integral over time. A week begins on Monday at 0:00."""

    def __init__(self) -> None:
        week = np.array([hour * (_WEEKEND if day >= 5 else 1.0) for day in range(7) for hour in _HOURS])
        self._edges_s = np.arange(len(week) + 1) * _HOUR_S
        self._passed = np.concatenate(([0.0], np.cumsum(week)))

    def passed(self, until_s: float) -> float:
        """The integral of the rate from 0 s on."""
        weeks, rest_s = divmod(until_s, WEEK_S)
        return float(weeks * self._passed[-1] + np.interp(rest_s, self._edges_s, self._passed))

    def spread(self, steady: Sequence[float], span_s: float) -> list[float]:
        """Ascending times from 0 on, stretched so that the last is ``span_s`` and their density follows the rhythm."""
        wanted = np.asarray(steady) * (self.passed(span_s) / steady[-1])
        weeks, rest = np.divmod(wanted, self._passed[-1])
        times_s = weeks * WEEK_S + np.interp(rest, self._passed, self._edges_s)
        times_s[-1] = span_s  # without rounding error
        return [float(at_s) for at_s in np.minimum(times_s, span_s)]
