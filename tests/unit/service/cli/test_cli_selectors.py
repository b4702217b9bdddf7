"""Naming jobs on the command line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cli.selectors import RANGE_MAX, Elements, Part, SelectorError, parse, parse_indices


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("1,3,5-8", [1, 3, 5, 6, 7, 8]),
        ("5-5", [5]),
        ("3,1-4", [3, 1, 2, 4]),
        ("last", ["last"]),
        ("all", ["all"]),
        ("LAST, 2", ["last", 2]),
        ("42[3]", [Elements(42, (3,))]),
        ("42[0-2,9],7", [Elements(42, (0, 1, 2, 9)), 7]),
        ("42[*],42[*]", [Elements(42, None)]),
        ("1, 5[ 0 , 0-1 ]", [1, Elements(5, (0, 1))]),
    ],
)
def test_parts_in_their_order_and_each_once(text: str, expected: list[Part]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "1-",
        "-3",
        "8-5",
        "1,,2",
        "one",
        "1.5",
        "²",
        "9" * 5000,
        "1-2-3",
        "2147483648",
        "7[]",
        "7[",
        "7]",
        "[3]",
        "7[x]",
        "7[3",
        "0[1]",
        "7[1]2",
        "7[[1]]",
        "last[0]",
        "7[-1]",
    ],
)
def test_what_names_no_jobs_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse(text)


def test_a_range_has_a_limit() -> None:
    assert len(parse(f"1-{RANGE_MAX}")) == RANGE_MAX
    with pytest.raises(SelectorError, match="at most"):
        parse(f"1-{RANGE_MAX + 1}")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_writing_numbers_one_by_one_names_exactly_them(numbers: list[int]) -> None:
    assert parse(",".join(map(str, numbers))) == list(dict.fromkeys(numbers))


def test_indices_of_an_array_begin_with_zero() -> None:
    assert parse_indices("0-2,9,1") == [0, 1, 2, 9, 1]
    assert parse("7[0-2,9,1]") == [Elements(7, (0, 1, 2, 9))]
    with pytest.raises(SelectorError):
        parse_indices("0-2,")
