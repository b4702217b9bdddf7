"""What forecasts take from the past: the rhythm of the service's own jobs, its failures, and calibrated forecasts."""

from pathlib import Path

import pytest
from sqlalchemy import insert

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.config.settings import Settings
from service.db.codec import encode
from service.db.recorded_jobs import jobs_from
from service.db.retention import delete_jobs
from service.db.servers import enroll
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import ATTEMPTS, CYCLES, JOBS, SERVER_EVENTS, SERVERS
from service.domain.forecast_calibration import Calibration, Outcome
from service.domain.forecast_scores import Milestone
from service.engine.record import JobRecord
from service.forecast import past
from service.forecast.arrivals import DAY_S, NO_RHYTHM, Rhythm
from service.forecast.failures import NO_FAILURES, Failures
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.forecast.forecaster import Forecaster
from service.forecast.past import RecordedPast, calibrated, rhythm_of
from service.forecast.worker import Question, answer
from tests.unit.service.forecast.test_forecasting import Live, Tells

TOLD = Estimate((10.0, 20.0), Unit.SERVICE_S, "told", seconds_per_unit=1.0)


def record(number: int, state: JobState, service_s: float) -> JobRecord:
    spec = JobSpec("a", "u", 2, command=("train",), env={"A": "b"}, after=(JobId(9),))
    return JobRecord(JobId(number), spec, 100.0 * number, state=state, service_s=service_s, estimate=TOLD)


def test_the_rhythm_of_jobs_computed_by_hand() -> None:
    jobs = [
        record(1, JobState.FAILED, 3.0),
        record(2, JobState.CANCELLED, 0.0),
        record(3, JobState.QUEUED, 15.0),
    ]
    found = rhythm_of([(each, TOLD) for each in jobs], 1000.0)
    failed, waiting = found.jobs
    assert (found.since_s, failed.submitted_at_s, waiting.submitted_at_s) == (100.0, 100.0, 300.0)
    assert (failed.duration_s, waiting.duration_s, waiting.done) == (3.0, None, 15.0)
    assert failed.spec == JobSpec("a", "u", 2)
    assert rhythm_of([], 1000.0) == NO_RHYTHM


def test_the_recorded_past_is_that_of_the_database(database: Database) -> None:
    with database.writing() as session:
        SqlStore(database).submit(session, [JobSpec("a", "u", 1), JobSpec("b", "u", 1)], 5.0)
        session.connection().execute(JOBS.update().where(JOBS.c.id == 1).values(state="failed", service_s=7.0))
    found = RecordedPast(database).rhythm(2000.0)
    assert [(each.spec.name, each.submitted_at_s, each.duration_s) for each in found.jobs] == [
        ("a", 5.0, 7.0),
        ("b", 5.0, None),
    ]
    assert RecordedPast(database).rhythm(5.0 + 29 * 86_400.0) == NO_RHYTHM, "four weeks count"


def _submitted(database: Database, times_s: list[float]) -> None:
    """A job at each of these times, which ran for a minute."""
    with database.writing() as session:
        for at_s in times_s:
            SqlStore(database).submit(session, [JobSpec("a", "u", 1)], at_s)
        session.connection().execute(JOBS.update().values(state="succeeded", service_s=60.0))


def test_the_first_jobs_since_an_instant_are_found_where_jobs_were_deleted(database: Database) -> None:
    _submitted(database, [10.0 * number for number in range(1, 21)])
    with database.writing() as session:
        delete_jobs(session.connection(), [1, 2, 3, 9, 10, 11, 20])
    with database.reading() as session:
        for since_s in range(0, 230, 5):
            there = [each for each in (*range(4, 9), *range(12, 20)) if 10.0 * each >= since_s]
            found = jobs_from(session.connection(), float(since_s), 4)
            assert [record.id for record, _ in found] == there[:4], since_s


def test_more_submissions_a_day_than_are_read_arrive_as_they_followed_the_same_instant(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "ARRIVALS_MAX", 8)
    hour_s = DAY_S / 24
    _submitted(database, [hour * hour_s for hour in range(24 * 6)])
    now_s = 6 * DAY_S - 0.5 * hour_s
    found = RecordedPast(database).rhythm(now_s)
    assert [each.submitted_at_s for each in found.jobs] == [
        now_s - day * DAY_S + at * hour_s for day in (4, 3, 2, 1) for at in (0.5, 1.5)
    ]
    for number in range(4):
        arrivals = found.ahead(now_s, number, 4, 0, 2)
        assert [each.job.submitted_at_s - now_s for each in arrivals] == [0.5 * hour_s, 1.5 * hour_s]


def test_nothing_arrives_in_the_first_day_however_many_jobs_it_has(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "ARRIVALS_MAX", 8)
    _submitted(database, [float(second) for second in range(20)])
    now_s = DAY_S - 1.0
    assert RecordedPast(database).rhythm(now_s).ahead(now_s, 0, 4, 0, 2) == []


def test_a_large_array_does_not_hide_the_days_before(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "ARRIVALS_MAX", 8)
    quiet_s = [day * DAY_S for day in range(4)]
    _submitted(database, [*quiet_s, *[3.2 * DAY_S] * 50])
    found = RecordedPast(database).rhythm(3.5 * DAY_S)
    assert [each.submitted_at_s for each in found.jobs] == [*quiet_s[1:], 3.2 * DAY_S]


def _fails(database: Database, *, failed: bool) -> None:
    """Two servers since 0 s; if ``failed``, the first was down from 1,000 s to 1,600 s, and the second is since two days."""
    enroll(database, Cluster("two", (Server("a", 1), Server("b", 1))))
    at = {"cycle": 1, "detail": ""}
    share = encode(place([ServerShare(ServerIndex(0), 1)]))
    ran = {"job_id": 1, "state": AttemptState.FAILED.value, "placement": share, "gpu_ids": [[0]], "opened_at_s": 100.0}
    with database.writing() as session:
        connection = session.connection()
        SqlStore(database).submit(session, [JobSpec("a", "u", 1)], 5.0)
        connection.execute(
            insert(CYCLES).values(
                number=1, at_s=0.0, changes=[], actions=[], refusals=[], duration_s={}, wake_at_s=None
            )
        )
        if failed:
            for position, at_s, kind in ((0, 1000.0, "down"), (0, 1600.0, "up"), (1, 2 * DAY_S, "down")):
                connection.execute(insert(SERVER_EVENTS).values(position=position, at_s=at_s, kind=kind, **at))
            connection.execute(SERVERS.update().where(SERVERS.c.position == 1).values(down=True))
            # Its first attempt failed and the job went on, its second was lost with the server, its third ended the job.
            connection.execute(
                JOBS.update().where(JOBS.c.id == 1).values(attempts=3, state="failed", finished_at_s=4000.0)
            )
            for number, began_s, ended_s, state in (
                (1, 200.0, 500.0, "failed"),
                (2, 600.0, 1000.0, "lost"),
                (3, 1700.0, 4000.0, "failed"),
            ):
                values = ran | {"id": f"1.{number}", "number": number, "state": state}
                connection.execute(insert(ATTEMPTS).values(**values, started_at_s=began_s, ended_at_s=ended_s))


def test_the_rates_of_failures_are_those_of_the_database(database: Database) -> None:
    _fails(database, failed=True)
    found = RecordedPast(database).failures(4 * DAY_S)
    up_s = (4 * DAY_S - 600.0) + 2 * DAY_S
    assert found.per_server_s == pytest.approx(2 / 3 * 2 / up_s)
    assert (found.outages_s, found.down_since_s) == ((600.0,), {1: 2 * DAY_S})
    assert (found.ages_s, found.hazards) == ((300.0,), (1 / 2 * 1 / 3,))
    assert RecordedPast(database).failures(DAY_S - 1.0) == NO_FAILURES, "the record is shorter than a day"


def test_a_server_that_is_no_longer_listed_does_not_return(database: Database) -> None:
    _fails(database, failed=True)
    enroll(database, Cluster("one", (Server("a", 1),)))
    assert RecordedPast(database).failures(4 * DAY_S).down_since_s == {}


def test_a_record_without_failures_has_no_rates(database: Database) -> None:
    _fails(database, failed=False)
    assert RecordedPast(database).failures(4 * DAY_S) == NO_FAILURES


def test_a_calibrated_forecast_keeps_what_was_drawn_and_ends_after_it_has_run() -> None:
    start, finish = Spread(110.0, 120.0, 130.0), Spread(210.0, 220.0, 230.0)
    late = Calibration([Outcome(Milestone.START, (10.0, 20.0, 30.0), 900.0)] * 500)
    found = calibrated(
        Forecast(100.0, 9, {JobId(1): JobForecast(JobId(1), start, finish, 9, "told", least_run_s=70.0)}), late
    )
    moved = found.jobs[JobId(1)]
    assert (moved.drawn_start, moved.drawn_finish) == (start, finish)
    assert moved.start is not None
    assert moved.start.p10_s > 900.0
    assert moved.finish is not None
    assert moved.finish.p10_s == moved.start.p10_s + 70.0
    assert moved.finish.p90_s == moved.start.p90_s + 70.0


class _Late:
    """A past in which all was late, and nothing arrived or failed but for what is given."""

    def rhythm(self, now_s: float) -> Rhythm:
        return rhythm_of([(record(1, JobState.SUCCEEDED, 3.0), TOLD)], now_s)

    def failures(self, now_s: float) -> Failures:
        return Failures(1e-9, (now_s,))

    def calibration(self, now_s: float) -> Calibration:
        return Calibration([Outcome(Milestone.FINISH, (100.0, 100.0, 100.0), 260.0)] * 500)


def test_the_live_forecast_has_arrivals_and_failures_and_is_calibrated(live: Live, tmp_path: Path) -> None:
    asked: list[Question] = []

    def compute(question: Question) -> Forecast:
        asked.append(question)
        return answer(question)

    settings = Settings(data_dir=tmp_path)
    forecaster = Forecaster(live, live.clock.now_s, Tells().predict, settings, compute, past=_Late())
    live.submit(1, gpus=2)
    job = forecaster.current().jobs[JobId(1)]
    assert job.drawn_finish == Spread(150.0, 150.0, 150.0)
    assert job.finish is not None
    assert job.finish.p50_s > 300.0
    assert [len(question.rhythm.jobs) for question in asked] == [1]
    assert [question.failures.per_server_s for question in asked] == [1e-9]
    (planned,) = forecaster.plan([JobSpec("b", "u", 1)]).jobs
    assert planned.outlook is not None
    assert planned.outlook.drawn_finish is not None
