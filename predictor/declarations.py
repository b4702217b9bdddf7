"""How much a user's declared totals are worth, from how earlier ones turned out.

After a declaration was exceeded, the user's declarations weigh nothing until as many have held in a row as were exceeded lately.
So understating never pays, not even now and then. A job that ends early (a crash, early stopping) lowers the precision of the
declarations, but does not disqualify them.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from predictor.rows import EndedRow, Submission

WEIGHT_MAX: Final = 0.9
HELD_LOG_RATIO: Final = math.log(1.25)
"""A declaration held if actual / declared lies within 25% either way; above that it was exceeded."""
RATIOS_KEPT: Final = 20
GROUPS_MAX: Final = 200_000
"""Programs and users kept, the least recently ended dropped first: users choose the names, so their number is unbounded."""


class DeclarationWeight(NamedTuple):
    """``weight`` in [0, 0.9]; ``log_ratios`` = past log(actual / declared), newest last; ``missing``: declarations of the user
    that have to hold before any counts again, 0 if they count.
    """

    weight: float
    log_ratios: tuple[float, ...]
    missing: int


def _missing(log_ratios: Sequence[float]) -> int:
    """How many fewer declarations have held since the last exceeded one than were exceeded, of those that are kept."""
    over = [ratio > HELD_LOG_RATIO for ratio in log_ratios]
    held_since = over[::-1].index(True) if any(over) else len(over)
    return max(0, sum(over) - held_since)


class Declarations:
    """Past log(actual / declared) per recurrence and per user."""

    def __init__(self) -> None:
        # Tuples: most programs have few, and a deque takes 0.7 kB however few it holds.
        self._ratios: OrderedDict[Hashable, tuple[float, ...]] = OrderedDict()

    def ended(self, row: EndedRow) -> None:
        """A job ended: compare its declared total, or the smallest that it reported while it ran, with the actual one."""
        declared = min(filter(None, (row.submission.declared_iterations, row.reported_iterations)), default=None)
        if declared is None or row.iterations is None or row.service_s <= 0.0 or not math.isfinite(row.iterations):
            return
        log_ratio = math.log(max(1.0, row.iterations) / declared)
        for key in (row.submission.recurrence, row.submission.user):
            self._ratios[key] = (*self._ratios.pop(key, ()), log_ratio)[-RATIOS_KEPT:]
            if len(self._ratios) > GROUPS_MAX:
                self._ratios.popitem(last=False)

    def weight_of(self, submission: Submission) -> DeclarationWeight:
        """The weight of what this job declares; 0.0 where it declares nothing.

        The weight starts at 0.5 and follows the share of this recurrence's (else this user's) declarations that held.
        """
        by_user = self._ratios.get(submission.user, ())
        ratios = self._ratios.get(submission.recurrence, by_user)
        missing = _missing(by_user)
        if submission.declared_iterations is None or missing:
            return DeclarationWeight(0.0, ratios, missing)
        held = sum(abs(ratio) <= HELD_LOG_RATIO for ratio in ratios)
        return DeclarationWeight(min(WEIGHT_MAX, (1 + held) / (2 + len(ratios))), ratios, missing)
