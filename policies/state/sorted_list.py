"""A list that keeps its values in ascending order, in blocks of a few hundred.

Compiled with the policies, which the libraries for this are not: a simulation changes and reads such lists several times an
event.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

BLOCK = 512
"""Values of a new block. One of twice as many is split, and one of fewer than a quarter is joined to its neighbour."""


class Ordered(Protocol):
    """What has an order."""

    def __lt__(self, other: Any, /) -> bool: ...


Value = TypeVar("Value", bound=Ordered)


class SortedList(Generic[Value]):
    """Values in ascending order, equal ones too. It must not change while it is iterated over."""

    __slots__ = ("_blocks", "_lasts", "_size")

    def __init__(self, values: Iterable[Value] = ()) -> None:
        """O(n log n)."""
        self._blocks: list[list[Value]] = []
        self._lasts: list[Value] = []
        """The last value of each block."""
        self._size = 0
        self.add_all(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Value]:
        for block in self._blocks:
            yield from block

    def __reversed__(self) -> Iterator[Value]:
        for block in reversed(self._blocks):
            yield from reversed(block)

    def __getitem__(self, position: int) -> Value:
        """O(1) for the first and the last value, else O(position / BLOCK). Raises IndexError beyond the ends."""
        if position == 0:
            return self._blocks[0][0]
        if position == -1:
            return self._lasts[-1]
        if not 0 <= position < self._size:
            raise IndexError(f"no value at {position} of {self._size}")
        for block in self._blocks:
            if position < len(block):
                return block[position]
            position -= len(block)
        raise AssertionError("the blocks have fewer values than were counted")

    def add(self, value: Value) -> None:
        """Insert a value, after equal ones. O(log n + BLOCK)."""
        self._size += 1
        if not self._blocks:
            self._blocks.append([value])
            self._lasts.append(value)
            return
        lasts = self._lasts
        at = bisect_right(lasts, value) if len(lasts) != 1 else 0 if value < lasts[0] else 1
        if at == len(lasts):
            at -= 1
            block = self._blocks[at]
            block.append(value)
            lasts[at] = value
        else:
            block = self._blocks[at]
            insort(block, value)
        if len(block) >= 2 * BLOCK:
            self._split(at)

    def add_all(self, values: Iterable[Value]) -> None:
        """Insert many values, in a fraction of the time of single ones. O(n log n) in all values."""
        ordered = sorted([*self, *values])
        self._blocks = [ordered[at : at + BLOCK] for at in range(0, len(ordered), BLOCK)]
        self._lasts = [block[-1] for block in self._blocks]
        self._size = len(ordered)

    def remove(self, value: Value) -> None:
        """Remove the first of the values that are equal to this one. Raises ValueError without one. O(log n + BLOCK)."""
        if not self.discard(value):
            raise ValueError(f"{value!r} is not in the list")

    def discard(self, value: Value) -> bool:
        """The same, but only return whether there is one."""
        lasts = self._lasts
        # Most lists have one block.
        at = bisect_left(lasts, value) if len(lasts) != 1 else 1 if lasts[0] < value else 0
        if at == len(lasts):
            return False
        block = self._blocks[at]
        position = bisect_left(block, value)
        if block[position] != value:
            return False
        self._delete(at, position)
        return True

    def pop_first(self) -> Value:
        """Remove and return the smallest value. Raises IndexError if there is none."""
        first = self._blocks[0][0]
        self._delete(0, 0)
        return first

    def before(self, value: Value) -> int:
        """How many values are smaller. O(log n + n / BLOCK)."""
        at = bisect_left(self._lasts, value)
        count = sum([len(block) for block in self._blocks[:at]])
        return count if at == len(self._blocks) else count + bisect_left(self._blocks[at], value)

    def after(self, value: Value) -> Iterator[Value]:
        """The larger values, in order. O(log n) to the first."""
        at = bisect_right(self._lasts, value)
        if at < len(self._blocks):
            block = self._blocks[at]
            yield from block[bisect_right(block, value) :]
            for block in self._blocks[at + 1 :]:
                yield from block

    def _delete(self, at: int, position: int) -> None:
        self._size -= 1
        block = self._blocks[at]
        del block[position]
        if len(block) >= BLOCK // 4 or (len(self._blocks) == 1 and block):
            self._lasts[at] = block[-1]
        elif len(self._blocks) == 1:
            self._blocks.clear()
            self._lasts.clear()
        else:
            left = max(0, at - 1)
            joined = self._blocks[left] + self._blocks[left + 1]
            self._blocks[left : left + 2] = [joined]
            self._lasts[left : left + 2] = [joined[-1]]
            if len(joined) >= 2 * BLOCK:
                self._split(left)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        half = len(block) // 2
        self._blocks[at : at + 1] = [block[:half], block[half:]]
        self._lasts[at : at + 1] = [block[half - 1], block[-1]]
