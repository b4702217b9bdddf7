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
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60.0, "1 min"),
        (59 * 60 + 59, "1 h"),
        (7800.0, "2 h 10 min"),
        (24 * 3600.0 - 1, "1 d"),
        (100 * 3600.0, "4 d 4 h"),
    ],
)
def test_words_of(seconds: float, words: str) -> None:
    assert words_of(seconds) == words
