"""A leader whose predictor is still reading its history: nothing is lost, nothing new goes without its prediction."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from policies.lifecycle import JobState
from policies.model.estimate import Attained, EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
from service.engine.engine import Engine, Ports
from service.engine.world import Costs
from service.server.leader_store import PatientStore
from service.server.warming import WarmingPredictor
from tests.scenarios.dsl import Story, policy


class Warming(Story):
    """A story whose predictor is warmed when the story says so."""

    def __init__(self, shape: str) -> None:
        self.warming: WarmingPredictor | None = None
        super().__init__(shape, policy("fifo"))

    def _engine(self) -> Engine[Any]:
        self.warming = warming = WarmingPredictor(self.told)
        store = PatientStore(self.store, lambda: warming.warm)
        ports = Ports(store, self.wire, self.clock, warming, self.log)
        return Engine(self.policy, self.cluster, ports, Costs(0.0, 0.0), self.settings)

    def get_warm(self) -> None:
        assert self.warming is not None
        self.warming.warm_with(lambda: None)


def _taken_over() -> Warming:
    """One job runs and one waits, as a new leader finds them."""
    story = Warming("1x4")
    story.get_warm()
    story.job("runs", gpus=4, runs_s=100).job("waits", gpus=4, runs_s=10).until(10)
    story.restart()
    return story


def test_what_is_queued_and_what_runs_does_not_wait_for_the_predictor() -> None:
    story = _taken_over()
    story.until(105)
    assert story.state("runs") is JobState.SUCCEEDED
    assert story.state("waits") is JobState.RUNNING


def test_a_new_job_waits_until_it_can_be_predicted_and_requests_do_not() -> None:
    story = _taken_over()
    story.job("new", gpus=1, at_s=20).cancel("waits").until(50)
    assert story.state("waits") is JobState.CANCELLED
    assert len(story.engine.world.jobs) == 1, "the new one is not taken in"
    story.get_warm()
    story.until(60)
    assert story.record("new").estimate is not None
    assert story.until(200).state("new") is JobState.SUCCEEDED


def test_ends_are_learnt_from_once_it_is_warm() -> None:
    story = _taken_over()
    known = len(story.told.learnt)
    story.until(150)
    assert len(story.told.learnt) == known
    story.get_warm()
    assert [label.job for label in story.told.learnt[known:]] == [story.ids["runs"], story.ids["waits"]]


class _Slow:
    """A predictor whose end of learning is the test's decision."""

    def __init__(self) -> None:
        self.learnt: list[int] = []

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        raise AssertionError("it was asked before it was warm")

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        pass

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        raise AssertionError("it was asked before it was warm")

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        self.learnt.append(label.job)
        return ()


def _label(job: int) -> Any:
    return type("Label", (), {"job": job})()


def test_it_asks_for_a_pass_when_it_is_warm_and_nobody_waits_meanwhile() -> None:
    go, warm = threading.Event(), threading.Event()
    slow = _Slow()
    warming = WarmingPredictor(slow)

    def work() -> None:
        go.wait(60.0)

    warming.begin(work, warm.set)
    assert warming.predict(0.0, [object()]) == [None]  # type: ignore[list-item]
    assert warming.revise(0.0, [object()]) == [None]  # type: ignore[list-item]
    warming.ended(_label(1))
    warming.ended(_label(2))
    assert slow.learnt == []
    go.set()
    assert warm.wait(60.0)
    assert warming.warm
    warming.ended(_label(3))
    assert slow.learnt == [1, 2, 3]


def test_a_history_that_cannot_be_read_is_no_reason_to_take_nothing_in() -> None:
    def broken() -> None:
        raise ValueError("unreadable")

    warming = WarmingPredictor(_Slow())
    warming.warm_with(broken)
    assert warming.warm


class _Away:
    """Work that the database does not answer at first, and that the test counts."""

    def __init__(self, times: int) -> None:
        self.left, self.tried = times, threading.Semaphore(0)

    def __call__(self) -> None:
        self.tried.release()
        self.left -= 1
        if self.left >= 0:
            raise OperationalError("BEGIN", None, Exception("the database is away"))


def test_a_history_that_cannot_be_read_now_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.server.warming.AGAIN_S", 0.001)
    warming, warm, away = WarmingPredictor(_Slow()), threading.Event(), _Away(times=3)
    warming.begin(away, warm.set)
    assert warm.wait(60.0)
    assert warming.warm
    assert away.left == -1, "three times in vain, then once"


def test_who_leads_no_more_stops_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.server.warming.AGAIN_S", 60.0)
    warming, warm, away = WarmingPredictor(_Slow()), threading.Event(), _Away(times=10**9)
    before = set(threading.enumerate())
    warming.begin(away, warm.set)
    assert away.tried.acquire(timeout=60.0)
    warming.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(60.0)
        assert not thread.is_alive()
    assert not warming.warm
    assert not warm.is_set()


def test_what_is_asked_of_a_new_job_waits_with_it_until_the_predictor_is_warm() -> None:
    story = _taken_over()
    story.job("new", gpus=4, at_s=20).until(30)
    story.cancel("new").until(50)
    story.get_warm()
    story.until(60)
    assert story.state("new") is JobState.CANCELLED
