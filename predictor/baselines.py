"""Point baselines: models of one line each, always scored, and the champions wherever nothing beats them.

Each answers with the natural log of the total. A recurrence baseline backs off along :data:`predictor.recurrence.LADDER`.
"""

import math
from collections.abc import Callable, Hashable
from typing import Final

from predictor.history import Group, HistoryStore
from predictor.recurrence import LADDER, Level

Keys = dict[Level, Hashable | None]


def _recurrence(of: Callable[[Group], float]) -> Callable[[HistoryStore, Keys, float | None], float]:
    def point(history: HistoryStore, keys: Keys, _declared: float | None) -> float:
        for level in LADDER[:-1]:
            group = history.group(level, keys[level])
            if group is not None:
                return of(group)
        return history.cluster.median

    return point


def _user(of: Callable[[Group], float]) -> Callable[[HistoryStore, Keys, float | None], float]:
    def point(history: HistoryStore, keys: Keys, _declared: float | None) -> float:
        group = history.group(Level.USER, keys[Level.USER])
        return of(group) if group is not None else history.cluster.median

    return point


def _global_median(history: HistoryStore, _keys: Keys, _declared: float | None) -> float:
    return history.cluster.median


def _declared(history: HistoryStore, keys: Keys, declared: float | None) -> float:
    return math.log(max(1.0, declared)) if declared is not None else _RECURRENCE_MEDIAN(history, keys, None)


_RECURRENCE_MEDIAN: Final = _recurrence(lambda group: group.median)

BASELINES: Final[dict[str, Callable[[HistoryStore, Keys, float | None], float]]] = {
    "global_median": _global_median,
    "user_mean": _user(lambda group: group.mean),
    "user_last": _user(lambda group: group.last),
    "user_last2": _user(lambda group: group.last2),
    "recurrence_last": _recurrence(lambda group: group.last),
    "recurrence_median20": _RECURRENCE_MEDIAN,
    "recurrence_ewma": _recurrence(lambda group: group.ewma),
    "declared": _declared,
}
"""Name -> log point. The order is the order of :func:`baseline_points`."""

NAMES: Final = tuple(BASELINES)
BASE: Final = NAMES.index("recurrence_median20")
"""The baseline whose residual the models learn."""


def baseline_points(history: HistoryStore, keys: Keys, declared: float | None) -> tuple[float, ...]:
    """Every baseline's log point; NaN for all while nothing has ended. ``declared`` is None in the seconds head."""
    if not len(history.cluster):
        return (math.nan,) * len(NAMES)
    return tuple(point(history, keys, declared) for point in BASELINES.values())
