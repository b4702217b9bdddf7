"""A reader's position in a log whose numbers become visible out of order.

A row gets its number when it is written and becomes visible when its transaction commits. Number 7 may be visible before 6, and 6
never appears if its transaction was rolled back. So a position is "all numbers up to ``floor``, and these numbers beyond it". A
client sends the position back as text to continue exactly there.
"""

import re
from collections.abc import Iterable

_TEXT = re.compile(r"([0-9]{1,18})(\+[0-9]{1,9}(?:\.[0-9]{1,9})*)?")

BEYOND_IN_TEXT_MAX = 200
"""Most numbers beyond the floor in the text. If there are more, a client that continues receives the others again."""


class Position:
    """A mutable position. Numbers are only added."""

    def __init__(self, floor: int = 0, beyond: Iterable[int] = ()) -> None:
        self.floor = floor
        self.beyond = {number for number in beyond if number > floor}
        self._settle()

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """Parse the text form (``str``). None if the text is not one."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        floor = int(found[1])
        return cls(floor, (floor + int(part) for part in (found[2] or "+").lstrip("+").split(".") if part))

    def __str__(self) -> str:
        beyond = sorted(self.beyond)[:BEYOND_IN_TEXT_MAX]
        return str(self.floor) + ("+" + ".".join(str(number - self.floor) for number in beyond) if beyond else "")

    def has(self, number: int) -> bool:
        """Whether the reader has received the number."""
        return number <= self.floor or number in self.beyond

    def add(self, number: int) -> None:
        """Mark the number as received."""
        if not self.has(number):
            self.beyond.add(number)
            self._settle()

    def give_up(self, number: int) -> None:
        """Stop waiting for missing numbers up to ``number``."""
        if number > self.floor:
            self.floor = number
            self.beyond = {other for other in self.beyond if other > number}
            self._settle()

    @property
    def newest(self) -> int:
        """The largest number that was received or given up."""
        return max(self.beyond, default=self.floor)

    def gaps(self, limit: int) -> list[int]:
        """At most ``limit`` missing numbers below the largest received one, smallest first."""
        missing: list[int] = []
        before = self.floor
        for number in sorted(self.beyond):
            missing += range(before + 1, min(number, before + 1 + limit - len(missing)))
            if len(missing) >= limit:
                break
            before = number
        return missing

    def copy(self) -> "Position":
        """An independent copy."""
        return Position(self.floor, self.beyond)

    def _settle(self) -> None:
        while self.floor + 1 in self.beyond:
            self.floor += 1
            self.beyond.discard(self.floor)
