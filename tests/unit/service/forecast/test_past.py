"""What forecasts take from the past: the rhythm of the service's own jobs, and calibrated forecasts."""

from pathlib import Path

from policies.lifecycle import JobState
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.config.settings import Settings
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import JOBS
from service.domain.forecast_calibration import Calibration, Outcome
from service.domain.forecast_scores import Milestone
from service.engine.record import JobRecord
from service.forecast.arrivals import NO_RHYTHM, Rhythm
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.forecast.forecaster import Forecaster
from service.forecast.past import RecordedPast, calibrated, rhythm_of
from service.forecast.worker import Question, answer
from tests.unit.service.forecast.test_forecasting import Live, Tells, live  # noqa: F401 - a fixture

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


def test_a_calibrated_forecast_keeps_what_was_drawn_and_ends_after_it_starts() -> None:
    start, finish = Spread(110.0, 120.0, 130.0), Spread(210.0, 220.0, 230.0)
    late = Calibration([Outcome(Milestone.START, (10.0, 20.0, 30.0), 900.0)] * 500)
    found = calibrated(Forecast(100.0, 9, {JobId(1): JobForecast(JobId(1), start, finish, 9, "told")}), late)
    moved = found.jobs[JobId(1)]
    assert (moved.drawn_start, moved.drawn_finish) == (start, finish)
    assert moved.start is not None
    assert moved.start.p10_s > 900.0
    assert moved.finish is not None
    assert moved.finish.p10_s >= moved.start.p10_s
    assert moved.finish.p90_s >= moved.start.p90_s


class _Late:
    """A past in which all was late, and nothing arrived but for the rhythm given."""

    def rhythm(self, now_s: float) -> Rhythm:
        return rhythm_of([(record(1, JobState.SUCCEEDED, 3.0), TOLD)], now_s)

    def calibration(self, now_s: float) -> Calibration:
        return Calibration([Outcome(Milestone.FINISH, (100.0, 100.0, 100.0), 260.0)] * 500)


def test_the_live_forecast_has_arrivals_and_is_calibrated(live: Live, tmp_path: Path) -> None:  # noqa: F811
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
    (planned,) = forecaster.plan([JobSpec("b", "u", 1)]).jobs
    assert planned.outlook is not None
    assert planned.outlook.drawn_finish is not None
