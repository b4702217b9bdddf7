"""Arrivals of futures: by hand from records of a few jobs, and what they do to a forecast."""

from dataclasses import replace
from typing import Any

import pytest

from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.registry import make_policy
from service.forecast.arrivals import DAY_S, FIRST_ID, PastArrival, Rhythm
from service.forecast.forecast import ForecastOptions, forecast
from tests.unit.service.forecast.test_forecast import NOW_S, job, running, snapshot

HOUR_S = 3600.0
TOLD = Estimate((50.0, 100.0, 200.0), Unit.SERVICE_S, "told", seconds_per_unit=1.0)


def past(at_s: float, name: str = "a", duration_s: float | None = 30.0, **values: Any) -> PastArrival:
    return PastArrival(at_s, JobSpec(name, "u", 1), None, TOLD, duration_s, **values)


def ahead(
    rhythm: Rhythm, now_s: float, number: int = 0, *, futures: int = 4, limit: int = 100
) -> list[tuple[str, float]]:
    found = rhythm.ahead(now_s, number, futures, 0, limit)
    assert [each.job.id for each in found] == [FIRST_ID + index for index in range(len(found))]
    return [(each.job.spec.name, each.job.submitted_at_s - now_s) for each in found]


def test_one_past_day_is_repeated_at_its_hours() -> None:
    """At 12:00 of the second day: what came after 12:00 of the first, then the last 24 hours once more."""
    rhythm = Rhythm(0.0, [past(6.0 * HOUR_S, "morning"), past(13.0 * HOUR_S, "noon"), past(30.0 * HOUR_S, "today")])
    day = [("noon", 1.0 * HOUR_S), ("today", 18.0 * HOUR_S)]
    again = [(name, at_s + DAY_S) for name, at_s in day]
    assert ahead(rhythm, 36.0 * HOUR_S, limit=4) == day + again


def test_each_future_repeats_a_day_of_its_own() -> None:
    rhythm = Rhythm(0.0, [past((24.0 * day + 13.0) * HOUR_S, str(day)) for day in range(4)])
    first = [ahead(rhythm, (4.0 * 24.0 + 12.0) * HOUR_S, number, limit=1) for number in range(4)]
    assert sorted(name for ((name, _),) in first) == ["0", "1", "2", "3"]
    assert {at_s for ((_, at_s),) in first} == {HOUR_S}


def test_a_record_shorter_than_a_day_says_nothing() -> None:
    """A burst of the first hour would else come again each hour."""
    rhythm = Rhythm(0.0, [past(0.0), past(1000.0)])
    assert ahead(rhythm, DAY_S - 1.0) == []
    assert ahead(rhythm, DAY_S, limit=3) == [("a", 0.0), ("a", 1000.0), ("a", DAY_S)]
    assert ahead(Rhythm(0.0, []), 1e6) == []


def test_futures_without_arrivals_are_as_many_as_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.forecast.forecast.RUNS_MAX", 20)
    world = snapshot(job(1, (5.0,)), job(2, (5.0,)))

    def futures(since_s: float) -> int:
        rhythm = Rhythm(since_s, [past(since_s)])
        return forecast(world, make_policy("fifo"), options=ForecastOptions(20), rhythm=rhythm).samples

    assert futures(NOW_S - DAY_S + 1.0) == 10
    assert futures(NOW_S - DAY_S) == 6


def test_a_quiet_time_goes_on_for_a_year_at_most() -> None:
    """The only job came more than a whole day ago, and in a record of three days there are days without one."""
    assert ahead(Rhythm(0.0, [past(0.0)]), 1.9 * DAY_S) == []
    found = ahead(Rhythm(0.0, [past(0.5 * DAY_S)]), 3.0 * DAY_S, limit=10_000)
    assert 0 < len(found) < 366
    assert max(at_s for _, at_s in found) < 370.0 * DAY_S


def test_equal_seeds_give_equal_arrivals() -> None:
    rhythm = Rhythm(0.0, [past(HOUR_S * number, str(number), None if number % 3 else 30.0) for number in range(100)])
    first, again = (rhythm.ahead(100.0 * HOUR_S, 2, 16, 7, 50) for _ in range(2))
    assert first == again
    assert first != rhythm.ahead(100.0 * HOUR_S, 2, 16, 8, 50)
    assert len(first) == 50


def test_an_arrival_needs_what_the_job_needed_and_is_told_what_was_told_of_it() -> None:
    (found,) = Rhythm(0.0, [past(0.0, duration_s=3.0)]).ahead(DAY_S, 0, 1, 0, 1)
    assert (found.truth.duration_s, found.job.estimate) == (3.0, TOLD), "it failed early, and will again"


@pytest.mark.parametrize(("done", "totals"), [(0.0, {50.0, 100.0, 200.0}), (60.0, {100.0, 200.0}), (300.0, {600.0})])
def test_a_job_that_has_not_ended_needs_more_than_it_has_done(done: float, totals: set[float]) -> None:
    rhythm = Rhythm(0.0, [past(0.0, duration_s=None, done=done)])
    assert {each.truth.duration_s for each in rhythm.ahead(DAY_S, 0, 1, 0, 60)} == totals


def test_a_job_that_has_neither_ended_nor_an_estimate_is_left_out() -> None:
    unknown = replace(past(0.0, duration_s=None), estimate=None)
    assert ahead(Rhythm(0.0, [unknown]), DAY_S, limit=5) == []


def test_shorter_jobs_that_arrive_delay_a_long_one() -> None:
    """One GPU, shortest first: each 100 s a job of 30 s comes and goes before the job of 700 s, which waits for another 50 s."""
    world = snapshot(running(job(1, (50.0,)), 0.0), job(2, (700.0,)))
    rhythm = Rhythm(NOW_S - DAY_S, [past(NOW_S - DAY_S + 100.0 * number + 20.0) for number in range(10)])
    alone, among = (
        forecast(world, make_policy("sjf"), options=ForecastOptions(5), rhythm=each)
        for each in (Rhythm(0.0, []), rhythm)
    )
    assert set(among.jobs) == {JobId(1), JobId(2)}, "arrivals have no forecast"
    start = alone.jobs[JobId(2)].start
    assert start is not None
    assert start.p50_s == NOW_S + 50.0
    start = among.jobs[JobId(2)].start
    assert start is not None
    assert start.p50_s == NOW_S + 80.0
