"""Point baselines: models of one line each, always scored, and the champions wherever nothing beats them.

Each answers with the natural log of the total. A recurrence baseline backs off along :data:`predictor.recurrence.LADDER`.
"""

import math
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from predictor.history import Group, HistoryStore
from predictor.recurrence import LADDER, Level

Keys = dict[Level, Hashable | None]


class Known(NamedTuple):
    """What a point rests on: the narrowest group of the recurrence and the user's group (None: nothing of them has ended), the
    cluster's median, and what the job declares (None: nothing, or another unit).
    """

    recurrence: Group | None
    user: Group | None
    cluster: float
    declared: float | None


def _recurrence(of: Callable[[Group], float]) -> Callable[[Known], float]:
    return lambda known: known.cluster if known.recurrence is None else of(known.recurrence)


def _user(of: Callable[[Group], float]) -> Callable[[Known], float]:
    return lambda known: known.cluster if known.user is None else of(known.user)


def _declared(known: Known) -> float:
    return _RECURRENCE_MEDIAN(known) if known.declared is None else math.log(max(1.0, known.declared))


_RECURRENCE_MEDIAN: Final = _recurrence(lambda group: group.median)

BASELINES: Final[dict[str, Callable[[Known], float]]] = {
    "global_median": lambda known: known.cluster,
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
    user = history.group(Level.USER, keys[Level.USER])
    known = Known(_narrowest(history, keys), user, history.cluster.median, declared)
    return tuple([point(known) for point in BASELINES.values()])


def base_point(history: HistoryStore, keys: Keys) -> float:
    """The log point of :data:`BASE` alone; NaN while nothing has ended."""
    if not len(history.cluster):
        return math.nan
    group = _narrowest(history, keys)
    return history.cluster.median if group is None else group.median


def _narrowest(history: HistoryStore, keys: Keys) -> Group | None:
    for level in LADDER[:-1]:
        group = history.group(level, keys[level])
        if group is not None:
            return group
    return None
