"""A number of things in words."""

import pytest

from service.domain.counts import count_of, gpu_hours


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (20_070, "20,070 GPUs"), (1_000_000, "1,000,000 GPUs")],
)
def test_a_count_says_how_many_of_what(count: int, words: str) -> None:
    assert count_of(count, "GPU") == words


def test_jobs_are_counted_unless_something_else_is_named() -> None:
    assert (count_of(1), count_of(1000)) == ("1 job", "1,000 jobs")


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0.0"), (1e-9, "<0.1"), (0.049, "<0.1"), (0.05, "0.1"), (0.14, "0.1"), (4000.0, "4,000.0")],
)
def test_few_gpu_hours_are_not_none(value: float, words: str) -> None:
    assert gpu_hours(value) == words
