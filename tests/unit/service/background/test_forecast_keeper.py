"""Forecasts on record: whom they are of, how often, and what they are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from policies.lifecycle import Cause, JobState
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.background import forecasts as module
from service.background.forecasts import ForecastKeeper
from service.background.prune import prune
from service.config.settings import Settings
from service.db.forecasts import (
    ForecastTimes,
    forecast_times,
    forecasts_of,
    known_forecasts,
    newest_forecasts,
    score_forecasts,
    scored_forecasts,
)
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import FORECASTS
from service.domain.forecast_calibration import Outcome
from service.domain.forecast_scores import Milestone
from service.engine.events import JobEvent
from service.engine.record import JobRecord
from service.forecast.forecast import Forecast, JobForecast, NoForecast, Spread
from service.forecast.forecaster import Standing
from tests.conformance.store_suite import SPEC, Driver, ended, start, touched


@dataclass
class Shelf:
    """A database with jobs, and a keeper on a clock that is set by hand."""

    database: Database
    driver: Driver
    now_s: float = 1000.0
    keeper: ForecastKeeper = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, time_ratio: float = 1.0) -> None:
        """A keeper that remembers nothing."""
        self.keeper = ForecastKeeper(self.database, lambda: self.now_s, time_ratio, jobs_max=3)

    def submit(self, count: int) -> list[JobRecord]:
        store = SqlStore(self.database)
        with self.database.writing() as session:
            store.submit(session, [SPEC] * count, 5.0)
        return self.driver.admit()

    def tell(self, *jobs: JobForecast, at_s: float | None = None) -> None:
        self.now_s = self.now_s if at_s is None else at_s
        self.keeper.keep(7, Forecast(self.now_s, 16, {job.job: job for job in jobs}, "asrpt"))

    def rows(self) -> Sequence[Any]:
        with self.database.reading() as session:
            return session.connection().execute(select(FORECASTS).order_by(FORECASTS.c.id)).all()

    def score(self, at_s: float = 9e9, limit: int = 100) -> int:
        with self.database.writing() as session:
            return score_forecasts(session.connection(), at_s, limit)


@pytest.fixture
def shelf(database: Database) -> Shelf:
    return Shelf(database, Driver(SqlStore(database)))


def told(number: int, start_s: float | None = 1100.0, finish_s: float | None = 1200.0) -> JobForecast:
    """p10 and p90 are 10 s on either side."""
    spreads = [Spread(at - 10.0, at, at + 10.0) if at is not None else None for at in (start_s, finish_s)]
    return JobForecast(JobId(number), *spreads, 16, "14 past runs", gpus=4, model_version="m1/forest")


def begins(job: JobRecord, at_s: float) -> Any:
    """The write of its next start."""
    write = start(job)
    (event,) = write.events
    write.events[:] = [JobEvent(job.id, at_s, event.source, event.target, event.cause, event.reason, 1, event.attempt)]
    return write


def ends(job: JobRecord, at_s: float, state: JobState = JobState.SUCCEEDED, reason: Reason = Reason.COMPLETED) -> Any:
    """The write of its end."""
    write = ended(job) if job.attempt is not None else touched(job)
    job.state, job.reason, job.finished_at_s = state, reason, at_s
    if write.label is not None:
        write.label = None
    return write


def test_a_forecast_is_stored_completely(shelf: Shelf) -> None:
    shelf.submit(2)
    shelf.tell(told(1), told(2, start_s=None))
    first, second, third = shelf.rows()
    assert (first.job_id, first.milestone, first.made_at_s, first.cycle, first.policy) == (
        1,
        "start",
        1000.0,
        7,
        "asrpt",
    )
    assert (first.p10_s, first.p50_s, first.p90_s) == (1090.0, 1100.0, 1110.0)
    assert (first.model_version, first.source, first.samples, first.gpus) == ("m1/forest", "14 past runs", 16, 4)
    assert (first.scored_at_s, first.error_s) == (None, None)
    assert [(each.job_id, each.milestone, each.p50_s) for each in (second, third)] == [
        (1, "finish", 1200.0),
        (2, "finish", 1200.0),
    ]


def test_a_job_is_forecast_again_when_its_time_has_doubled(shelf: Shelf) -> None:
    shelf.submit(1)
    kept = []
    for at_s in range(1000, 2001, 10):
        before = len(shelf.rows())
        shelf.tell(told(1, finish_s=9000.0), at_s=float(at_s))
        if len(shelf.rows()) > before:
            kept.append(at_s - 1000)
        if at_s == 1300:
            shelf.restart()  # which changes nothing
    assert kept == [0, 60, 120, 240, 480, 960]


def test_the_number_of_forecasts_of_a_job_is_limited(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORECASTS_MAX", 3)
    shelf.submit(1)
    for times in range(8):
        shelf.tell(told(1), at_s=1000.0 + 60.0 * 2**times)
    assert len(shelf.rows()) == 6
    with shelf.database.reading() as session:
        assert forecast_times(session.connection(), [JobId(1), JobId(9)]) == {
            JobId(1): ForecastTimes(1060.0, 1240.0, 3, 1100.0, 1200.0)
        }


def test_scores_of_starts_and_ends_computed_by_hand(shelf: Shelf) -> None:
    (job,) = shelf.submit(1)
    shelf.tell(told(1))
    assert shelf.score() == 0, "nothing has happened yet"
    shelf.driver.commit(begins(job, 1105.0))
    assert shelf.score(at_s=1106.0) == 1
    first, second = shelf.rows()
    assert (first.actual_at_s, first.scored_at_s, first.error_s, first.inside) == (1105.0, 1106.0, -5.0, True)
    assert first.pinball_s == pytest.approx((0.1 * 15.0 + 0.5 * 5.0 + 0.1 * 5.0) / 3)
    assert second.scored_at_s is None
    shelf.driver.commit(ends(job, 1300.0))
    assert shelf.score(at_s=1301.0) == 1
    assert shelf.score(at_s=1302.0) == 0
    _, second = shelf.rows()
    assert (second.actual_at_s, second.scored_at_s, second.error_s, second.inside) == (1300.0, 1301.0, -100.0, False)
    assert second.pinball_s == pytest.approx((0.1 * 110.0 + 0.5 * 100.0 + 0.9 * 90.0) / 3)
    with shelf.database.reading() as session:
        scored = scored_forecasts(session.connection(), 0.0, 10)
        assert [(each.milestone, each.horizon_s, each.gpus) for each in scored] == [
            (Milestone.FINISH, 200.0, 4),
            (Milestone.START, 100.0, 4),
        ]
        assert scored_forecasts(session.connection(), 1000.5, 10) == []
        assert len(scored_forecasts(session.connection(), 0.0, 1)) == 1


def test_a_start_before_the_forecast_is_not_scored(shelf: Shelf) -> None:
    """A job that was preempted waits again: what was told then is about its next start."""
    (job,) = shelf.submit(1)
    shelf.driver.commit(begins(job, 900.0))
    shelf.tell(told(1))
    assert shelf.score() == 0
    shelf.driver.commit(begins(job, 1150.0))
    shelf.driver.commit(begins(job, 1400.0))
    assert shelf.score() == 1
    assert shelf.rows()[0].actual_at_s == 1150.0


def test_what_calibration_reads_computed_by_hand(shelf: Shelf) -> None:
    """A start that came, an end that is late, one that is not late yet, and one of a cancelled job."""
    late, cancelled = shelf.submit(2)
    moved = replace(told(1), drawn_start=Spread(1020.0, 1040.0, 1060.0))
    shelf.tell(moved, told(2))
    shelf.driver.commit(begins(late, 1105.0))
    shelf.driver.commit(ends(cancelled, 1300.0, JobState.CANCELLED, Reason.CANCELLED_BY_USER))
    shelf.score(at_s=1106.0)

    def known(now_s: float, newest: int = 100) -> list[Outcome]:
        with shelf.database.reading() as session:
            return known_forecasts(session.connection(), now_s, newest)

    start = Outcome(Milestone.START, [20.0, 40.0, 60.0], 105.0)
    assert known(1210.0) == [start], "its end is due until its p90"
    assert known(1215.0) == [Outcome(Milestone.FINISH, [190.0, 200.0, 210.0], 215.0), start]
    assert known(1215.0, newest=1) == [Outcome(Milestone.FINISH, [190.0, 200.0, 210.0], 215.0)]
    shelf.driver.commit(ends(late, 1400.0))
    shelf.score(at_s=1401.0)
    assert known(1500.0)[0].actual_s == 400.0


@pytest.mark.parametrize(
    ("state", "reason", "scored"),
    [
        (JobState.FAILED, Reason.CRASHED, True),
        (JobState.CANCELLED, Reason.WALLTIME, True),
        (JobState.CANCELLED, Reason.CANCELLED_BY_USER, False),
    ],
)
def test_forecasts_of_cancelled_jobs_are_closed_without_a_score(
    shelf: Shelf, state: JobState, reason: Reason, scored: bool
) -> None:
    (job,) = shelf.submit(1)
    shelf.tell(told(1))
    shelf.driver.commit(ends(job, 1300.0, state, reason))
    assert shelf.score() == 2
    first, second = shelf.rows()
    assert (first.error_s, first.inside, first.pinball_s, first.actual_at_s) == (None,) * 4
    assert (second.error_s is not None, first.scored_at_s is not None) == (scored, True)


def test_scoring_uses_transactions_of_limited_size(shelf: Shelf) -> None:
    jobs = shelf.submit(3)
    shelf.tell(*(told(job.id, start_s=None) for job in jobs))
    shelf.driver.commit(*(ends(job, 1300.0) for job in jobs))
    assert [shelf.score(limit=2) for _ in range(3)] == [2, 1, 0]


def test_the_newest_forecast_of_each_job(shelf: Shelf) -> None:
    shelf.submit(3)
    shelf.tell(told(1), told(2))
    shelf.tell(told(1, start_s=None, finish_s=1500.0), at_s=1500.0)
    with shelf.database.reading() as session:
        found = newest_forecasts(session.connection(), [1, 2, 3])
        assert {job: sorted(each) for job, each in found.items()} == {
            1: [Milestone.FINISH, Milestone.START],
            2: [Milestone.FINISH, Milestone.START],
        }
        assert (found[1][Milestone.FINISH].p50_s, found[1][Milestone.START].p50_s) == (1500.0, 1100.0)
        assert newest_forecasts(session.connection(), []) == {}
        assert [row.made_at_s for row in forecasts_of(session.connection(), 1, 0, 2)] == [1000.0, 1000.0]
        assert [row.made_at_s for row in forecasts_of(session.connection(), 1, 2, 9)] == [1500.0]


@dataclass
class Asked:
    """A forecaster that counts."""

    shelf: Shelf
    jobs: list[JobForecast]
    refusal: str = ""
    times: int = 0
    reasons: dict[JobId, Reason] = field(default_factory=dict)

    def current(self) -> Forecast:
        self.times += 1
        if self.refusal:
            raise NoForecast(self.refusal)
        found = Forecast(self.shelf.now_s, 16, {job.job: job for job in self.jobs}, "asrpt")
        self.shelf.keeper.keep(1, found)
        return found

    def unfinished(self) -> dict[JobId, Standing]:
        return {job.job: queued(self.reasons.get(job.job, Reason.RESOURCES)) for job in self.jobs}


def queued(reason: Reason = Reason.RESOURCES) -> Standing:
    return Standing(reason, waiting=reason is not Reason.HELD)


def test_a_forecast_is_made_only_when_a_job_is_due(shelf: Shelf) -> None:
    shelf.submit(2)
    source = Asked(shelf, [told(1)])

    def run(at_s: float) -> int:
        shelf.now_s = at_s
        shelf.keeper.run(source, source.unfinished)
        return source.times

    assert [run(at_s) for at_s in (1000.0, 1010.0, 1059.0, 1060.0)] == [1, 1, 1, 2]
    source.jobs.append(JobForecast(JobId(2), None, None, 16, "told", "It is held by a user."))
    source.reasons[JobId(2)] = Reason.HELD
    source.jobs[0] = told(1, 1e6, 1e6)
    assert [run(at_s) for at_s in (1070.0, 1080.0, 1090.0)] == [3, 3, 3], "a held job calls once, not every time"
    assert len(shelf.rows()) == 4
    source.jobs.clear()
    assert run(9000.0) == 3


def test_a_job_is_forecast_as_soon_as_it_is_released(shelf: Shelf) -> None:
    """However long it was held, before which a forecast was recorded or not."""
    shelf.submit(2)
    source = Asked(shelf, [told(1)])

    def run(at_s: float) -> list[float]:
        shelf.now_s = at_s
        shelf.keeper.run(source, source.unfinished)
        return sorted({row.made_at_s for row in shelf.rows() if row.job_id == 1})

    assert run(1000.0) == [1000.0]
    source.jobs[0] = JobForecast(JobId(1), None, None, 16, "told", "It is held by a user.")
    source.reasons[JobId(1)] = Reason.HELD
    for at_s in (2000.0, 9000.0, 50_000.0):
        assert run(at_s) == [1000.0]
    assert source.times == 2
    source.jobs[0] = told(1, 60_000.0, 70_000.0)
    source.reasons[JobId(1)] = Reason.RESOURCES
    assert run(50_010.0) == [1000.0, 50_010.0]


def test_a_job_that_is_held_and_released_all_the_time_is_recorded_once_a_minute_at_most(shelf: Shelf) -> None:
    shelf.submit(1)
    source = Asked(shelf, [told(1, 9e9, 9e9)])
    for at_s in range(1000, 1300, 10):
        shelf.now_s = float(at_s)
        held = at_s % 20 == 10
        source.jobs[0] = JobForecast(JobId(1), None, None, 16, "told", "It is held.") if held else told(1, 9e9, 9e9)
        source.reasons[JobId(1)] = Reason.HELD if held else Reason.RESOURCES
        shelf.keeper.run(source, source.unfinished)
    kept = sorted({row.made_at_s for row in shelf.rows()})
    assert len(kept) >= 4 and min(np.diff(kept)) >= 60.0


def test_a_job_that_is_late_is_forecast_again(shelf: Shelf) -> None:
    """Its start while it waits, its end always; each time after a quarter of the time on record, also after a restart."""
    shelf.submit(1)
    source, waiting = Asked(shelf, [told(1, 1900.0, 9e9)]), [True]

    def kept(times: range) -> list[float]:
        before = len(shelf.rows())
        for at_s in times:
            shelf.now_s = float(at_s)
            shelf.keeper.run(source, lambda: {JobId(1): Standing(Reason.RESOURCES, waiting[0])})
            if at_s == 2150:
                shelf.restart()
        return sorted({row.made_at_s - 1000.0 for row in shelf.rows()[before:]})

    assert kept(range(1000, 1890, 10)) == [0.0, 60.0, 120.0, 240.0, 480.0]
    source.jobs[0] = told(1, 2100.0, 9e9)
    assert kept(range(1890, 2300, 10)) == [900.0, 1130.0], "the second at 2130: a quarter of 900 s after 1900"
    waiting[0], source.jobs[0] = False, told(1, None, 2200.0)
    assert kept(range(2300, 5000, 10)) == [2260.0, 2830.0, 3540.0], (
        "only once its first end, unknown before, is on record"
    )


def test_each_run_scores_settled_forecasts(shelf: Shelf) -> None:
    (job,) = shelf.submit(1)
    shelf.tell(told(1))
    shelf.driver.commit(ends(job, 1300.0))
    shelf.keeper.run(Asked(shelf, []), dict)
    assert [row.scored_at_s for row in shelf.rows()] == [1000.0, 1000.0]


def test_the_database_is_queried_once_for_each_job(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also about one that nothing can be told of, and about none where the queue is too long for forecasts anyway."""
    asked: list[set[JobId]] = []
    monkeypatch.setattr(
        module, "forecast_times", lambda connection, jobs: asked.append(set(jobs)) or forecast_times(connection, jobs)
    )
    source = Asked(shelf, [], refusal="No unfinished job has a prediction yet.")
    for jobs in ([1], [1], [1, 2], [1, 2, 3, 4], [2]):
        shelf.keeper.run(source, lambda jobs=jobs: {JobId(job): queued() for job in jobs})
    assert asked == [{1}, {2}]
    assert source.times == 4


def test_a_run_without_settled_forecasts_takes_no_write_lock(shelf: Shelf) -> None:
    shelf.submit(1)
    shelf.tell(told(1))
    with shelf.database.writing():
        shelf.keeper.run(Asked(shelf, [told(1)]), lambda: {JobId(1): queued()})


def test_a_long_computation_is_followed_by_a_pause(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.submit(1)
    shelf.restart(time_ratio=0.5)
    source = Asked(shelf, [told(1)], refusal="9 jobs are unfinished; forecasts are made for at most 8.")
    clock_s = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock_s[0])
    current = source.current

    def slow() -> Forecast:
        clock_s[0] += 4.0
        return current()

    monkeypatch.setattr(source, "current", slow)
    asked = []
    for at_s in (0.0, 5.0, 7.9, 8.0, 11.0):
        clock_s[0] = max(clock_s[0], at_s)
        shelf.keeper.run(source, source.unfinished)
        asked.append(source.times)
    assert asked == [1, 1, 1, 2, 2], "half of the time, as the ratio says"


def test_a_forecast_that_cannot_be_stored_is_still_shown(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    shelf.submit(1)
    shelf.tell(told(99))
    assert "could not be stored" in caplog.text
    shelf.tell(told(1))
    assert len(shelf.rows()) == 2


def test_old_scored_forecasts_are_deleted_and_open_ones_are_kept(shelf: Shelf, tmp_path: Path) -> None:
    first, _ = shelf.submit(2)
    shelf.tell(told(1, start_s=None), told(2, start_s=None))
    shelf.driver.commit(ends(first, 1300.0))
    shelf.score()
    settings = Settings(data_dir=tmp_path, forecasts_kept_s=3600.0)
    assert prune(shelf.database, settings, 4000.0).forecasts == 0
    assert prune(shelf.database, settings, 1000.0 + 3601.0).forecasts == 1
    assert [row.job_id for row in shelf.rows()] == [2]


def test_causes_of_starts_are_those_of_the_engine(shelf: Shelf) -> None:
    """The story that scores read is the one that the engine writes: a start is decided under this name."""
    (job,) = shelf.submit(1)
    (event,) = start(job).events
    assert (event.target, event.cause) == (JobState.STARTING, Cause.START_DECIDED)
