"""Quantiles of a group's durations that include its running jobs: the product-limit estimate (Kaplan and Meier, 1958).

Of jobs that were submitted together the short ones end first. While a job array runs, its ended jobs are therefore biased
towards short ones. Here a running job counts as one that takes at least as long as it has been open.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LEVELS: Final = (0.25, 0.5, 0.75)
"""The levels of the quantiles."""
OPEN_JOBS_MAX: Final = 40
"""Open jobs of a group that count, the newest: a bound on the time of one estimate."""

_ROUNDING: Final = 1e-9


def quantiles(labels: Sequence[float], ages_s: Sequence[float]) -> tuple[float, ...]:
    """Quantiles (natural log of seconds, at :data:`LEVELS`) of the durations of a group with at least one job.

    ``labels`` are the logs of the ended jobs' seconds, in any order; ``ages_s`` the seconds since each open job was submitted,
    ascending. The longest observation stands for a level that the estimate does not reach. O(labels log ages).
    """
    ended = sorted(labels)
    floors = [math.log(max(1.0, age_s)) for age_s in ages_s]
    longest = max((*ended[-1:], *floors[-1:]))
    found: list[float] = []
    surviving, left, running = 1.0, len(ended), len(floors)
    for label in ended:
        surviving *= 1.0 - 1.0 / (left + running - bisect_left(floors, label))
        left -= 1
        while len(found) < len(LEVELS) and surviving <= 1.0 - LEVELS[len(found)] + _ROUNDING:
            found.append(label)
    return (*found, *(longest for _ in LEVELS[len(found) :]))
