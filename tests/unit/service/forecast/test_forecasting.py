"""The live forecaster on a real engine: what it copies, what it keeps, and what it remembers of a plan."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.decision import Change, Decision
from policies.model.estimate import Attained, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.model.view import ClusterView
from policies.registry import make_policy
from predictor.serving import LivePredictor
from service.config.settings import Settings
from service.engine.engine import Engine, Ports
from service.engine.memory import MemoryStore
from service.engine.record import JobRecord
from service.engine.watch import WatchingPolicy
from service.engine.world import Costs
from service.forecast import forecaster as forecasting
from service.forecast.forecast import Forecast, NoForecast, Spread
from service.forecast.forecaster import Forecaster, Standing
from service.forecast.worker import answer
from service.sim.clock import SimClock
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.work import JobTruth
from tests.null_sink import NullSink
from tests.unit.predictor.predictor_history import recurring_history, request

CLUSTER = Cluster("c", (Server("a", 2),))


class Tells:
    """A predictor that says 100 s of everything but jobs named "unknown"."""

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        estimate = Estimate((100.0,), Unit.SERVICE_S, "told", seconds_per_unit=1.0)
        return [None if each.spec.name == "unknown" else Prediction(estimate) for each in requests]

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        pass

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """It stays with what it said."""
        return [None] * len(reported)

    def ended(self, label: object) -> Sequence[JobId]:
        """Nothing to learn."""
        return ()


@dataclass
class Live:
    """An engine in a loop that counts how often it is looked at."""

    clock: SimClock
    engine: Engine[Any]
    store: MemoryStore
    cycle_number: int = 0
    looks: int = 0
    before: Callable[[], None] = field(default=lambda: None)
    after: Callable[[], None] = field(default=lambda: None)

    def read(self, look: Callable[[Engine[Any]], Any]) -> Any:
        self.looks += 1
        self.before()
        found = look(self.engine)
        self.after()
        return found

    def submit(self, number: int, name: str = "a", gpus: int = 1) -> None:
        self.store.submit(JobRecord(JobId(number), JobSpec(name, "u", gpus), self.clock.now_s()))
        self.cycle()

    def cycle(self) -> None:
        """Two passes: the second one hears that a launch has begun."""
        for _ in range(2):
            self.clock.advance(self.clock.now_s())
            self.cycle_number = self.engine.cycle().number


def living() -> Live:
    """A service with nothing submitted yet."""
    clock, cluster, store = SimClock(50.0), CLUSTER, MemoryStore()
    truths = {JobId(number): JobTruth(1e6) for number in range(1, 9)}
    executor = SimulatedExecutor(clock, cluster, truths, ExecutorCosts(0.0, 0.0))
    ports = Ports(store, executor, clock, Tells(), NullSink())
    return Live(clock, Engine(make_policy("fifo"), cluster, ports, Costs(0.0, 0.0)), store)


def make(live: Live, tmp_path: Path, **settings: Any) -> Forecaster:
    return Forecaster(live, live.clock.now_s, Tells().predict, Settings(data_dir=tmp_path, **settings), answer)


def test_one_forecast_serves_all_until_the_next_cycle(live: Live, tmp_path: Path) -> None:
    forecaster = make(live, tmp_path)
    live.submit(1, gpus=2)
    first = forecaster.current()
    assert first.jobs[JobId(1)].finish == Spread(150.0, 150.0, 150.0)
    assert forecaster.current() is first
    assert live.looks == 1
    live.submit(2)
    second = forecaster.current()
    assert second.jobs[JobId(2)].start == Spread(150.0, 150.0, 150.0)
    assert live.looks == 2


class _Onlooker(WatchingPolicy):
    """Counts the decisions that it sees."""

    seen = 0

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        self.seen += 1
        return super().decide(view, changes, state)


def test_a_watching_policy_is_not_called_by_forecasts(live: Live, tmp_path: Path) -> None:
    onlooker = _Onlooker(make_policy("fifo"))
    live.engine = Engine(onlooker, CLUSTER, live.engine._ports, Costs(0.0, 0.0))
    live.submit(1, gpus=2)
    live.submit(2)
    seen = onlooker.seen
    assert make(live, tmp_path).current().jobs[JobId(2)].start == Spread(150.0, 150.0, 150.0)
    assert onlooker.seen == seen == 4


def test_each_new_forecast_is_passed_to_keep_once(live: Live, tmp_path: Path) -> None:
    kept: list[tuple[int, Forecast]] = []
    forecaster = Forecaster(
        live,
        live.clock.now_s,
        Tells().predict,
        Settings(data_dir=tmp_path, forecast_jobs_max=1),
        answer,
        keep=lambda cycle, made: kept.append((cycle, made)),
    )
    live.submit(1)
    first = forecaster.current()
    assert forecaster.current() is first
    assert kept == [(live.cycle_number, first)]
    assert (first.policy, first.jobs[JobId(1)].gpus) == ("fifo", 1)
    assert forecaster.unfinished() == {JobId(1): Standing(Reason.STARTED, waiting=False)}
    live.submit(2)
    with pytest.raises(NoForecast):
        forecaster.current()
    assert len(kept) == 1, "a refusal is nothing to keep"


def test_the_kept_forecast_is_the_last_one_and_no_refusal(live: Live, tmp_path: Path) -> None:
    forecaster = make(live, tmp_path, forecast_jobs_max=1)
    live.submit(1)
    assert forecaster.kept() is None
    assert live.looks == 0, "none is made"
    first = forecaster.current()
    assert forecaster.kept() is first
    live.submit(2)
    assert forecaster.kept() is first, "of an earlier cycle"
    with pytest.raises(NoForecast):
        forecaster.current()
    assert forecaster.kept() is None


def test_a_forecast_expires(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecaster = make(live, tmp_path)
    live.submit(1)
    forecaster.current()
    monkeypatch.setattr(forecasting, "KEPT_S", 0.0)
    forecaster.current()
    assert live.looks == 2


def test_concurrent_readers_share_one_computation(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next cycle came while it was made: they would else make one each, one after the other."""
    forecaster = make(live, tmp_path)
    live.submit(1)
    all_asked, monotonic, asking = threading.Event(), time.monotonic, set()

    def count() -> float:
        # Everybody's clock is replaced, also that of threads which are no readers.
        asking.add(threading.current_thread())
        if asking.issuperset(readers):
            all_asked.set()
        return monotonic()

    def stall() -> None:
        assert all_asked.wait(60.0)

    def pass_by() -> None:
        live.cycle_number += 1

    monkeypatch.setattr(forecasting.time, "monotonic", count)
    live.before, live.after = stall, pass_by
    found: list[Forecast] = []
    readers = [threading.Thread(target=lambda: found.append(forecaster.current())) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60.0)
    assert len(found) == 4
    assert live.looks == 1
    forecaster.current()
    assert live.looks == 2


def test_a_refusal_is_kept_and_copies_no_jobs(live: Live, tmp_path: Path) -> None:
    forecaster = make(live, tmp_path, forecast_jobs_max=1)
    live.submit(1)
    live.submit(2)
    for _ in range(2):
        with pytest.raises(NoForecast, match=r"at most 1 \(forecast_jobs_max\)"):
            forecaster.current()
    assert live.looks == 1


def test_a_plan_in_too_long_a_queue_copies_no_jobs_and_has_a_placement(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecaster = make(live, tmp_path, forecast_jobs_max=2)
    live.submit(1)
    assert forecaster.plan([JobSpec("a", "u", 1)]).jobs[0].outlook is not None
    monkeypatch.setattr(JobRecord, "copy", lambda self: pytest.fail("a job was copied"))
    for planned in forecaster.plan([JobSpec("a", "u", 1), JobSpec("a", "u", 2)]).jobs:
        assert planned.outlook is None
        assert planned.reason == "3 jobs are unfinished; forecasts are made for at most 2 (forecast_jobs_max)."
        assert planned.best is not None
        assert (planned.now is not None) == (planned.spec.gpus == 1)


def test_a_forecast_has_a_time_limit(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live.submit(1)
    forecaster = make(live, tmp_path, forecast_timeout_s=0.1)
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(forecasting.time, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(NoForecast, match="exceeded its time limit"):
        forecaster.current()


def test_a_plan_queues_behind_present_jobs_and_stores_nothing(live: Live, tmp_path: Path) -> None:
    forecaster = make(live, tmp_path)
    live.submit(1, gpus=2)
    before = repr(live.engine.world.jobs)
    planned = forecaster.plan([JobSpec("a", "u", 2), JobSpec("b", "u", 1, hold=True)])
    first, second = planned.jobs
    assert first.outlook is not None
    assert first.outlook.start == Spread(150.0, 150.0, 150.0)
    assert first.outlook.finish == Spread(250.0, 250.0, 250.0)
    assert (first.now, first.reason) == (None, None)
    assert first.best is not None
    assert [(share.server, share.gpus) for share in first.best.placement.shares] == [(0, 2)]
    assert first.estimate is not None
    assert first.estimate.points == (100.0,)
    assert second.reason is not None
    assert "held" in second.reason
    assert repr(live.engine.world.jobs) == before
    assert live.engine.world.jobs[JobId(1)].state is JobState.RUNNING


@pytest.mark.parametrize(("starts_at_s", "closed"), [(40.0, True), (149.0, True), (150.0, False)])
def test_a_server_that_is_set_aside_for_others_is_not_free_for_a_plan(
    live: Live, tmp_path: Path, starts_at_s: float, closed: bool
) -> None:
    """Now, or before the job of 100 s would end."""
    live.engine.world.server_reservations = (
        ServerReservation(1, (ServerIndex(0),), starts_at_s, 10_000.0, user="other"),
    )
    of_others, own = make(live, tmp_path).plan([JobSpec("a", "u", 1), JobSpec("a", "other", 1)]).jobs
    assert (of_others.now is None) == closed
    assert own.now is not None
    assert of_others.best is not None


def test_a_plan_without_a_forecast_has_a_placement_and_a_reason(live: Live, tmp_path: Path) -> None:
    (planned,) = make(live, tmp_path).plan([JobSpec("unknown", "u", 1)]).jobs
    assert (planned.estimate, planned.outlook) == (None, None)
    assert planned.best is not None
    assert planned.now == planned.best
    assert planned.reason == "No unfinished job has a prediction yet."


def test_a_preview_equals_a_prediction_and_is_not_stored() -> None:
    asked = request(2**31, submitted_at_s=1e6, name="program3", user="user3", gpus=2)
    real = request(5_000, submitted_at_s=1e6 + 60.0, name="program3", user="user3", gpus=2)
    curious, other = LivePredictor(), LivePredictor()
    for predictor in (curious, other):
        predictor.warm(recurring_history(240, reports=False))
    (told,) = curious.preview(0.0, [asked])
    assert curious.status().pending == 0
    assert curious.predict(0.0, [real]) == other.predict(0.0, [real])
    assert told is not None
    (again,) = other.predict(0.0, [asked])
    assert again is not None
    assert told.estimate.source == again.estimate.source
