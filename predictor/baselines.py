"""Point baselines: always scored, and the champions wherever no model beats them.

Each gives the natural log of the total. A recurrence baseline backs off along :data:`predictor.recurrence.BACKOFF`.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from predictor.history import Group, HistoryStore
from predictor.recurrence import BACKOFF, Level, keys_of
from predictor.rows import Submission

Keys = dict[Level, Hashable | None]


class Known(NamedTuple):
    """Inputs of a baseline: the narrowest group of the recurrence and the user's group (None: no job of it has ended), the
    cluster's median, and what the program's runs say for the job's arguments (NaN: unknown).
    """

    recurrence: Group | None
    user: Group | None
    cluster: float
    by_arguments: float


def _recurrence(statistic: str) -> Callable[[Known], float]:
    of = attrgetter(statistic)
    return lambda known: known.cluster if known.recurrence is None else of(known.recurrence)


def _user(statistic: str) -> Callable[[Known], float]:
    of = attrgetter(statistic)
    return lambda known: known.cluster if known.user is None else of(known.user)


BASELINES: Final[dict[str, Callable[[Known], float]]] = {
    "recurrence_median20": _recurrence("median"),
    "global_median": lambda known: known.cluster,
    "user_mean": _user("mean"),
    "user_last": _user("last"),
    "user_last2": _user("last2"),
    "recurrence_last": _recurrence("last"),
    "recurrence_ewma": _recurrence("ewma"),
    "recurrence_arguments": lambda known: known.by_arguments,
}
"""Name -> log point. The order is the order of :func:`baseline_points`. What a user declares is no baseline: it counts by how the
user's earlier declarations turned out (:mod:`predictor.declarations`), or users who understate would gain.
"""

NAMES: Final = tuple(BASELINES)
BASE: Final = NAMES.index("recurrence_median20")
"""The baseline that serves before anything is known of the others."""
BY_ARGUMENTS: Final = NAMES.index("recurrence_arguments")


def baseline_points(history: HistoryStore, submission: Submission) -> tuple[float, ...]:
    """Every baseline's log point; NaN for all while nothing has ended, and by arguments where none are known."""
    if not len(history.cluster):
        return (math.nan,) * len(NAMES)
    keys = keys_of(submission)
    user = history.group(Level.USER, keys[Level.USER])
    known = Known(_narrowest(history, keys), user, history.cluster.median, history.by_arguments(submission))
    return tuple([point(known) for point in BASELINES.values()])


def base_point(history: HistoryStore, keys: Keys) -> float:
    """The log point of :data:`BASE` alone; NaN while nothing has ended."""
    if not len(history.cluster):
        return math.nan
    group = _narrowest(history, keys)
    return history.cluster.median if group is None else group.median


def learnt_from(points: Sequence[float]) -> float:
    """Of a job's baselines the one whose residual the models learn: what alike runs say for its arguments, without them the
    recurrence median (NaN: no job has ended).
    """
    scaled = points[BY_ARGUMENTS]
    return scaled if scaled == scaled else points[BASE]


def _narrowest(history: HistoryStore, keys: Keys) -> Group | None:
    """The group of the first level with a history, short of the cluster."""
    for level in BACKOFF[:-1]:
        group = history.group(level, keys[level])
        if group is not None:
            return group
    return None
