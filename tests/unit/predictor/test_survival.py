"""The product-limit estimate: by hand, against the textbook, and as features."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import Unit
from predictor import features
from predictor.dataset import Knowledge
from predictor.history import OpenJobs
from predictor.rows import EndedRow, Submission
from predictor.survival import LEVELS, OPEN_JOBS_MAX, quantiles

_SECONDS = st.floats(1.0, 1e6)


def _seconds(ended_s: list[float], ages_s: list[float]) -> list[float]:
    found = quantiles([math.log(each_s) for each_s in ended_s], sorted(ages_s))
    return [math.exp(each) for each in found]


def test_without_open_jobs_it_is_the_past() -> None:
    assert _seconds([40.0, 10.0, 30.0, 20.0], []) == pytest.approx([10.0, 20.0, 30.0])
    assert _seconds([50.0], []) == pytest.approx([50.0] * 3)


def test_without_ended_jobs_it_is_the_longest_that_runs() -> None:
    assert _seconds([], [40.0, 10.0]) == pytest.approx([40.0] * 3)


def test_open_jobs_make_it_longer_by_hand() -> None:
    """Of eight jobs four have ended after 10 to 40 s. Of those that run three are 25 s old and one is 100 s.

    Surviving: 7/8 after 10 s, 6/8 after 20 s (six are left), and then three of them are no longer followed: 6/8 x 2/3 = 1/2
    after 30 s, and 1/4 after 40 s.
    """
    assert _seconds([10.0, 20.0, 30.0, 40.0], [25.0, 25.0, 25.0, 100.0]) == pytest.approx([20.0, 30.0, 40.0])
    # Twice as many that are 100 s old: 11/12, 10/12, 10/12 x 6/7, 10/12 x 5/7: only a quarter is known to have ended.
    longer = _seconds([10.0, 20.0, 30.0, 40.0], [25.0, 25.0, 25.0, *[100.0] * 5])
    assert longer == pytest.approx([30.0, 100.0, 100.0])


def _textbook(ended_s: list[float], ages_s: list[float]) -> list[float]:
    """Kaplan and Meier's product over the distinct times at which jobs ended."""
    found, surviving = [], 1.0
    for time_s in sorted(set(ended_s)):
        at_risk = sum(each_s >= time_s for each_s in (*ended_s, *ages_s))
        surviving *= 1.0 - ended_s.count(time_s) / at_risk
        found.append((time_s, surviving))
    longest_s = max((*ended_s, *ages_s))
    return [next((at_s for at_s, left in found if left <= 1.0 - level + 1e-9), longest_s) for level in LEVELS]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 2.0, 5.0, 60.0, 61.0]) | _SECONDS, min_size=1, max_size=20),
    st.lists(st.sampled_from([1.0, 2.0, 5.0, 60.0, 61.0]) | _SECONDS, max_size=20),
)
def test_it_is_the_textbooks(ended_s: list[float], ages_s: list[float]) -> None:
    # Through the same logarithms and back, so that equal times stay equal.
    ended_s, ages_s = ([math.exp(math.log(each_s)) for each_s in times_s] for times_s in (ended_s, ages_s))
    assert _seconds(ended_s, ages_s) == pytest.approx(_textbook(ended_s, ages_s), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(_SECONDS, min_size=1, max_size=20), st.lists(_SECONDS, max_size=20), _SECONDS)
def test_one_more_open_job_never_makes_it_shorter(ended_s: list[float], ages_s: list[float], age_s: float) -> None:
    before, after = _seconds(ended_s, ages_s), _seconds(ended_s, [*ages_s, age_s])
    assert all(later >= earlier * (1.0 - 1e-9) for earlier, later in zip(before, after, strict=True))
    assert before == sorted(before)


def test_ages_of_the_newest_open_jobs() -> None:
    jobs = OpenJobs()
    for job in range(100):
        jobs.add(job, float(job), ("k",))
    assert jobs.ages_s("k", 50.0, 50, 3) == (1.0, 2.0, 3.0)
    assert jobs.ages_s("k", 1.0, 1, 3) == (1.0,)
    assert jobs.ages_s("k", 0.0, 0, 3) == jobs.ages_s("other", 50.0, 50, 3) == ()
    assert len(jobs.ages_s("k", 1_000.0, 1_000, OPEN_JOBS_MAX)) == OPEN_JOBS_MAX


def _asked(ran_s: list[float], open_since_s: list[float], asks: str = "train") -> dict[str, float]:
    """The features of a job at second 10,000 whose program has run so long, with 10^6 iterations, and runs since then."""
    known = Knowledge()
    submission = Submission(0, "ada", "p", "train", 2, 0.0)
    for job, seconds in enumerate(ran_s):
        known.end(EndedRow(replace(submission, job=job), 5_000.0, 1e6, seconds, "succeeded"))
    for job, since_s in enumerate(open_since_s, start=10):
        known.submit(replace(submission, job=job, name=asks, submitted_at_s=since_s))
    asked = replace(submission, job=99, name=asks, submitted_at_s=10_000.0)
    vectors = [dict(zip(features.NAMES, known.example(asked, unit).features, strict=True)) for unit in Unit]
    names = [
        name for name in features.NAMES if name.startswith("open_") and name.endswith(("_low", "_median", "_high"))
    ]
    assert len(names) == 6
    assert [vectors[0][name] for name in names] == [vectors[1][name] for name in names], "the same in either head"
    return {name: vectors[0][name] for name in names}


def test_a_job_sees_by_what_factor_the_open_ones_outlast_the_past() -> None:
    # Four that ended after 100 s, and six that are 1,000 s old: 9/10, 8/10, 7/10, 6/10 survive 100 s.
    found = _asked([100.0] * 4, [9_000.0] * 6)
    assert [found[f"open_{group}_low"] for group in ("recurrence", "user")] == pytest.approx([0.0, 0.0])
    assert [found[f"open_{group}_median"] for group in ("recurrence", "user")] == pytest.approx([math.log(10.0)] * 2)
    # Without open jobs the quartiles of the past alone: of 50, 100 and 200 s, over the median.
    found = _asked([50.0, 100.0, 200.0], [])
    assert list(found.values()) == pytest.approx([math.log(0.5), 0.0, math.log(2.0)] * 2)


def test_a_program_of_which_nothing_has_ended_is_known_by_what_runs() -> None:
    found = _asked([100.0] * 4, [9_000.0, 9_900.0], asks="new")
    assert [found[f"open_recurrence_{part}"] for part in ("low", "median", "high")] == pytest.approx(
        [math.log(10.0)] * 3
    )
    assert found["open_user_low"] == pytest.approx(0.0), "the user's past jobs count where those of the program do not"
    assert set(_asked([], []).values()) == {features.MISSING}
    assert set(_asked([], [9_000.0]).values()) == {features.MISSING}, "nothing to compare with"
