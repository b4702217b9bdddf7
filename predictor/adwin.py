"""ADWIN: a window over a stream that drops the values before a change of the mean (Bifet, Gavaldà, SDM 2007).

The window is an exponential histogram: at most five buckets of each size 1, 2, 4, ..., so its memory and the cost of a value grow
with the logarithm of its length. It is cut at a bucket's edge wherever the means of both sides differ by more than chance allows.
"""

import math
from collections import deque
from typing import Final, NamedTuple

BUCKETS_PER_ROW: Final = 5
CHECK_EVERY: Final = 32
"""Values between two checks for a change: a check costs a pass over the buckets."""
SIDE_MIN: Final = 5
"""Values that both sides of a cut hold at least."""


class _Bucket(NamedTuple):
    """``squares``: sum of squared distances from the bucket's own mean."""

    total: float
    squares: float


class Adwin:
    """An adaptive window over values of a bounded range."""

    def __init__(self, delta: float = 0.002) -> None:
        """``delta`` in (0, 1): the probability of a false cut at each check."""
        self._delta = delta
        self._rows: list[deque[_Bucket]] = [deque()]  # row r: buckets of 2**r values, newest first
        self._seen = 0
        self.width = 0
        """Values in the window."""
        self._total = 0.0

    @property
    def mean(self) -> float:
        """Mean of the window; 0.0 before the first value."""
        return self._total / self.width if self.width else 0.0

    def update(self, value: float) -> bool:
        """One more value. True where older ones were dropped because the mean has changed. Amortised O(log window)."""
        self._seen += 1
        self.width += 1
        self._total += value
        self._rows[0].appendleft(_Bucket(value, 0.0))
        self._compress()
        return self._seen % CHECK_EVERY == 0 and self._shrink()

    def _compress(self) -> None:
        """Two oldest buckets of an overfull row become one of the next."""
        row = 0
        while len(self._rows[row]) > BUCKETS_PER_ROW:
            if row + 1 == len(self._rows):
                self._rows.append(deque())
            older, newer = self._rows[row].pop(), self._rows[row].pop()
            gap = (older.total - newer.total) / 2**row
            squares = older.squares + newer.squares + gap * gap * 2**row / 2.0
            self._rows[row + 1].appendleft(_Bucket(older.total + newer.total, squares))
            row += 1

    def _shrink(self) -> bool:
        """Drop the oldest bucket as long as some cut shows two means. The recent side is never dropped."""
        cut = False
        while self.width >= 2 * SIDE_MIN and self._changed():
            oldest = self._rows[-1].pop()
            self.width -= 2 ** (len(self._rows) - 1)
            self._total -= oldest.total
            while len(self._rows) > 1 and not self._rows[-1]:
                self._rows.pop()
            cut = True
        return cut

    def _oldest_first(self) -> list[tuple[int, _Bucket]]:
        return [(2**row, bucket) for row in reversed(range(len(self._rows))) for bucket in reversed(self._rows[row])]

    def _changed(self) -> bool:
        buckets = self._oldest_first()
        mean = self.mean
        spread = sum(bucket.squares + count * (bucket.total / count - mean) ** 2 for count, bucket in buckets)
        variance = spread / self.width
        confidence = math.log(2.0 * math.log(self.width) / self._delta)
        old, total = 0, 0.0
        for count, bucket in buckets[:-1]:
            old, total = old + count, total + bucket.total
            new = self.width - old
            if old < SIDE_MIN or new < SIDE_MIN:
                continue
            # One over the harmonic mean of both sizes, each less what the minimum takes.
            inverse = 1.0 / (old - SIDE_MIN + 1) + 1.0 / (new - SIDE_MIN + 1)
            bound = math.sqrt(2.0 * inverse * variance * confidence) + 2.0 / 3.0 * inverse * confidence
            if abs(total / old - (self._total - total) / new) > bound:
                return True
        return False
