"""What the jobs of a group that still run say about its past: the product-limit estimate (Kaplan and Meier, 1958).

Of jobs that were submitted together the short ones end first. So while an array runs, its ended jobs are not what its jobs are
like, and the newest labels mislead most where there are many of them. Here a job that still runs counts as one that takes at
least as long as it has been there.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LEVELS: Final = (0.25, 0.5, 0.75)
"""The quantiles that are told."""
OPEN_JOBS_MAX: Final = 40
"""Open jobs of a group that count, the newest: those that were there longest are few, and looking at all would cost time."""

_ROUNDING: Final = 1e-9


def quantiles(labels: Sequence[float], ages_s: Sequence[float]) -> tuple[float, ...]:
    """Quantiles (natural log of seconds, at :data:`LEVELS`) of how long jobs of a group take, of which at least one is known.

    ``labels`` are the logs of the ended ones' seconds, in any order; ``ages_s`` ascending, seconds since each other one was
    submitted. A level that the estimate does not reach is answered by the longest that was seen. O(labels log ages).
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
