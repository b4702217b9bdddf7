"""Durations: what people write, and what they read."""

import pytest

from service.domain.duration import DurationError, seconds_of, words_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("2h", 7200.0),
        ("1d12h", 129_600.0),
        ("30 min", 1800.0),
        ("30m", 1800.0),
        ("02:30:00", 9000.0),
        ("1-12:00:00", 129_600.0),
        (" 2w ", 1_209_600.0),
    ],
)
def test_seconds_of(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 fortnights", "nan", "inf", "1:2:3", "02:61:00", "h"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DurationError, match="is not a duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (-0.01, "0 s"),
        (0.42, "0.4 s"),
        (8.0, "8 s"),
        (9.94, "9.9 s"),
        (9.95, "10 s"),
        (41.7, "42 s"),
        (59.49, "59 s"),
        (59.5, "1 min"),
        (200.0, "3 min 20 s"),
        (545.0, "9 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.5, "1 h"),
        (3 * 3600.0 + 5 * 60.0, "3 h 05 min"),
        (24 * 3600.0 - 31.0, "23 h 59 min"),
        (24 * 3600.0 - 30.0, "1 d"),
        (474_963.621, "5 d 12 h"),
        (100 * 3600.0, "4 d 04 h"),
        (1e9, "11,574 d 02 h"),
        (-7800.0, "-2 h 10 min"),
    ],
)
def test_words_of(seconds: float, words: str) -> None:
    assert words_of(seconds) == words
