"""What templates make of values."""

import math
import re
from typing import Any

import pytest
from jinja2 import UndefinedError

from service.web.render import duration, environment, number, percent, seconds, text, when


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 s"),
        (1e-9, "under 1 µs"),
        (0.0000123, "12.3 µs"),
        (0.25, "250 ms"),
        (2.0, "2 s"),
        (90_061.0, duration(90_061.0)),
    ],
)
def test_short_times_have_three_digits(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize("shows", [seconds, duration, number, percent])
def test_what_is_not_known_is_a_dash(shows: object) -> None:
    assert callable(shows)
    assert [shows(value) for value in (None, math.nan, math.inf)] == ["–"] * 3


def test_percent_of_nothing_is_a_dash() -> None:
    assert percent(1.0, 0.0) == "–"
    assert percent(1.0, 3.0) == "33%"


def test_text_is_isolated_escaped_and_short() -> None:
    assert text("<b>") == "<bdi>&lt;b&gt;</bdi>"
    assert text("a\N{RIGHT-TO-LEFT OVERRIDE}b\x1b") == "<bdi>a\ufffdb\ufffd</bdi>"
    assert text('x"' * 60, 10) == f'<bdi title="{"x&#34;" * 60}">{"x&#34;" * 5}…</bdi>'
    assert "muted" in text(None)
    assert "muted" in text("")
    assert text(0) == "<bdi>0</bdi>"


def test_a_megabyte_is_not_sent_to_the_browser() -> None:
    assert len(text("x" * 1_000_000)) < 5_000


def test_times_carry_their_instant() -> None:
    shown = when("2026-01-02T03:04:05Z", "ago")
    assert shown == '<time datetime="2026-01-02T03:04:05Z" data-as="ago">2026-01-02 03:04:05 UTC</time>'


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ missing }}").render()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "600 of 1,235"),
        ({"finished_at": "2026-01-01T00:00:00Z"}, "600"),
        ({"prediction": {"unit": "service_s", "p50": 7800.0}}, "600"),
        ({"prediction": None}, "600"),
        ({"iterations_done": None}, "–"),
    ],
)
def test_the_progress_of_a_job_is_of_a_total_only_while_iterations_are_predicted(
    changes: dict[str, Any], shown: str
) -> None:
    job = {"finished_at": None, "iterations_done": 600.0, "prediction": {"unit": "iterations", "p50": 1235.0}} | changes
    text = environment().from_string('{% import "macros.html" as m %}{{ m.progress(job) }}').render(job=job)
    assert re.sub(r"<[^>]*>", "", text).strip() == shown
