"""No cell is a formula, and every text comes back."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.spreadsheet import cell, cells, text_of

STARTS = ("=", "+", "-", "@", "\t", "\r")


@given(st.text(st.sampled_from("'=+-@\t\ra1 ,\"\n"), max_size=6))
def test_every_text_comes_back_and_none_begins_a_formula(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerow(cells(["first", text]))
    ((_, written),) = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert not written.startswith(STARTS)
    assert text_of(written) == text


@pytest.mark.parametrize("value", [-1, 0.5, -2.5e-7, None, True])
def test_numbers_stay_numbers(value: object) -> None:
    assert cell(value) is value


def test_other_texts_are_left_alone() -> None:
    assert cells(["ada", "'quoted'", "o'=x", "1-2"]) == ["ada", "'quoted'", "o'=x", "1-2"]
