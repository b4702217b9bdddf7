"""A sorted list against a plain one that is sorted after each change."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.state import sorted_list
from policies.state.sorted_list import SortedList

VALUES = st.integers(0, 30)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are split and joined after few changes."""
    monkeypatch.setattr(sorted_list, "BLOCK", 8)


@given(
    st.lists(VALUES, min_size=20, max_size=60),
    st.lists(st.tuples(st.sampled_from(["add", "add_all", "discard", "pop", "pop"]), VALUES), min_size=20, max_size=80),
)
@settings(max_examples=200, deadline=None)
def test_it_holds_what_a_plain_list_holds(first: list[int], changes: list[tuple[str, int]]) -> None:
    found, plain = SortedList(first), sorted(first)
    for what, value in changes:
        if what == "add":
            found.add(value)
            plain.append(value)
            plain.sort()
        elif what == "add_all":
            found.add_all(each % 31 for each in range(value, 7 * value, 5))
            plain = sorted([*plain, *(each % 31 for each in range(value, 7 * value, 5))])
        elif what == "discard":
            assert found.discard(value) == (value in plain)
            if value in plain:
                plain.remove(value)
        elif plain:
            assert found.pop_first() == plain.pop(0)
        assert list(found) == plain
        assert list(reversed(found)) == plain[::-1]
        assert len(found) == len(plain)
        assert bool(found) == bool(plain)
        assert [found[at] for at in range(len(plain))] == plain
        assert found.before(value) == sum(each < value for each in plain)
        assert list(found.after(value)) == [each for each in plain if each > value]
        if plain:
            assert found[-1] == plain[-1]


def test_the_blocks_stay_neither_large_nor_many() -> None:
    found = SortedList(range(0))
    for value in range(1_000):
        found.add(value * 7 % 1_000)
    assert all(len(block) < 16 for block in found._blocks)
    for value in range(1_000):
        if value % 50:
            found.remove(value)
    assert list(found) == list(range(0, 1_000, 50))
    assert len(found._blocks) <= 10


def test_a_small_block_that_joins_a_large_one_makes_two() -> None:
    found = SortedList(range(0, 160, 10))
    for value in range(1, 8):
        found.add(value)
    assert [len(block) for block in found._blocks] == [15, 8]
    for value in range(80, 150, 10):
        found.remove(value)
    assert [len(block) for block in found._blocks] == [8, 8]
    assert list(found) == [*range(8), *range(10, 80, 10), 150]


def test_what_is_not_there_is_named() -> None:
    found = SortedList([1, 3])
    with pytest.raises(ValueError, match="2 is not in the list"):
        found.remove(2)
    with pytest.raises(IndexError, match="no value at 2 of 2"):
        found[2]
    with pytest.raises(IndexError):
        SortedList(range(0)).pop_first()
