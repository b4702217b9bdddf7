"""Where a reader stands in a log whose numbers become visible out of order.

Numbers are given out when a row is written, and rows are seen when their transaction commits: number 7 may be there before 6,
and 6 may never come, because it was rolled back. So a position is not one number but "everything up to ``floor``, and these
beyond it"; as text it is what a client gives back to go on exactly where it was.
"""

import re
from collections.abc import Iterable

_TEXT = re.compile(r"([0-9]{1,18})(\+[0-9]{1,9}(?:\.[0-9]{1,9})*)?")

BEYOND_SAID_MAX = 200
"""Numbers beyond the floor that the text names; with more of them, a client that goes on sees the rest again."""


class Position:
    """Mutable; only grows."""

    def __init__(self, floor: int = 0, beyond: Iterable[int] = ()) -> None:
        self.floor = floor
        self.beyond = {number for number in beyond if number > floor}
        self._settle()

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """The inverse of ``str``; None for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        floor = int(found[1])
        return cls(floor, (floor + int(part) for part in (found[2] or "+").lstrip("+").split(".") if part))

    def __str__(self) -> str:
        beyond = sorted(self.beyond)[:BEYOND_SAID_MAX]
        return str(self.floor) + ("+" + ".".join(str(number - self.floor) for number in beyond) if beyond else "")

    def has(self, number: int) -> bool:
        """Whether the reader has seen it."""
        return number <= self.floor or number in self.beyond

    def add(self, number: int) -> None:
        """It has been seen."""
        if not self.has(number):
            self.beyond.add(number)
            self._settle()

    def give_up(self, number: int) -> None:
        """Nothing up to ``number`` is waited for any more."""
        if number > self.floor:
            self.floor = number
            self.beyond = {other for other in self.beyond if other > number}
            self._settle()

    @property
    def newest(self) -> int:
        """The largest number that has been seen, or is not waited for."""
        return max(self.beyond, default=self.floor)

    def gaps(self, limit: int) -> list[int]:
        """The smallest numbers that are missing below the largest one seen."""
        missing: list[int] = []
        before = self.floor
        for number in sorted(self.beyond):
            missing += range(before + 1, min(number, before + 1 + limit - len(missing)))
            if len(missing) >= limit:
                break
            before = number
        return missing

    def copy(self) -> "Position":
        """The same place."""
        return Position(self.floor, self.beyond)

    def _settle(self) -> None:
        while self.floor + 1 in self.beyond:
            self.floor += 1
            self.beyond.discard(self.floor)
