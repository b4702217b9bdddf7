"""Usage by day, user and project: against a count of every single second, in memory and in the database."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.usage import DAY_S, Held, Usage, UsageKey, days_between, usage_of

DAY = 20_000
T0 = DAY * DAY_S


def test_an_attempt_over_two_midnights_computed_by_hand() -> None:
    """Two GPUs from 18:00 to 06:00 two days later: 6, 24 and 6 hours; 27 of the 36 counted."""
    held = Held("ann", "nlp", 2, T0 + 64_800, T0 + 2 * DAY_S + 21_600, 27 * 3600.0, preempted=True)
    assert usage_of([held]) == {
        UsageKey(DAY, "ann", "nlp"): Usage(12 * 3600.0, 9 * 3600.0),
        UsageKey(DAY + 1, "ann", "nlp"): Usage(48 * 3600.0, 36 * 3600.0),
        UsageKey(DAY + 2, "ann", "nlp"): Usage(12 * 3600.0, 9 * 3600.0, attempts=1, preemptions=1),
    }


def test_midnight_belongs_to_the_new_day() -> None:
    assert list(days_between(T0, T0 + DAY_S)) == [(DAY, DAY_S)]
    assert list(days_between(T0 - 1, T0)) == [(DAY - 1, 1.0)]
    assert list(days_between(T0, T0)) == []
    assert usage_of([Held("u", "", 1, T0 - 1, T0, 1.0)])[UsageKey(DAY, "u", "")] == Usage(attempts=1)


def test_a_clock_that_was_set_back_counts_no_negative_time() -> None:
    assert usage_of([Held("u", "", 8, T0 + 10, T0, 5.0)]) == {UsageKey(DAY, "u", ""): Usage(attempts=1)}
    assert usage_of([Held("u", "", 1, T0, T0 + 10, 15.0)])[UsageKey(DAY, "u", "")] == Usage(10.0, 10.0, attempts=1)
    assert usage_of([Held("u", "", 1, T0, T0 + 10, -3.0)])[UsageKey(DAY, "u", "")] == Usage(10.0, 0.0, attempts=1)


HOURS = st.integers(0, 100)
HELD = st.builds(
    lambda user, project, gpus, start, length, counted: Held(
        user, project, gpus, T0 + start * 3600.0, T0 + (start + length) * 3600.0, min(counted, length) * 3600.0
    ),
    st.sampled_from("ab"),
    st.sampled_from(["", "p"]),
    st.integers(1, 8),
    HOURS,
    HOURS,
    HOURS,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(HELD, max_size=8))
def test_the_sums_equal_those_of_single_hours(attempts: list[Held]) -> None:
    held: Counter[UsageKey] = Counter()
    for each in attempts:
        hour_s = each.start_s
        while hour_s < each.end_s:
            held[UsageKey(int(hour_s // DAY_S), each.user, each.project)] += each.gpus
            hour_s += 3600.0
    sums = usage_of(attempts)
    assert {key: sum_.held_gpu_s / 3600 for key, sum_ in sums.items() if sum_.held_gpu_s} == pytest.approx(dict(held))
    useful = sum(sum_.useful_gpu_s for sum_ in sums.values())
    assert useful == pytest.approx(sum(each.gpus * each.counted_s for each in attempts))
    assert all(sum_.useful_gpu_s <= sum_.held_gpu_s + 1e-6 for sum_ in sums.values())
    assert sum(sum_.attempts for sum_ in sums.values()) == len(attempts)
