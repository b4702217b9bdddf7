"""What unfinished jobs say of the experts: they take longer than they have run."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

import numpy as np
import pytest

from policies.model.estimate import Attained, EndedJob, PredictionRequest, Unit
from policies.model.ids import JobId
from predictor.aggregation import EXPECTED_EVERY_S, LEARNT, Aggregation
from predictor.conformal import SpreadCalibration
from predictor.dataset import Example, Knowledge, replay
from predictor.evaluation import coverage, pinball
from predictor.intervals import at_levels
from predictor.prequential import Run, run, serve
from predictor.rows import ended_row
from predictor.serving import LivePredictor
from tests.unit.predictor.predictor_history import ended, request

USERS = 40


def _crowd(seed: int, jobs: int = 600) -> list[EndedJob]:
    """New programs of many users. Those on one GPU take a minute, four of five on 16 GPUs five hours, the fifth fails at once.
    Days of both kinds, then ten jobs a minute on 16 GPUs.
    """
    rng = np.random.default_rng(seed)
    quiet, found = jobs // 3, []
    for job in range(jobs):
        wide = job >= quiet or rng.random() < 0.3
        typical_s = 18_000.0 if wide and rng.random() < 0.8 else 60.0
        found.append(
            ended(
                job + 1,
                None,
                submitted_at_s=min(job, quiet) * 2_000.0 + max(0, job - quiet) * 6.0,
                service_s=typical_s * math.exp(0.3 * rng.normal()),
                name=f"program{job}",
                user=f"user{rng.integers(USERS)}",
                gpus=16 if wide else 1,
            )
        )
    return found


def _run_of(jobs: list[EndedJob], test_start: int) -> Run:
    found = (examples.get(Unit.SERVICE_S) for _, examples in replay(map(ended_row, jobs), Knowledge()))
    examples: list[Example] = [each for each in found if each is not None]
    return run(examples, {}, test_start=test_start, chunks=1, seed=0)


@contextmanager
def _labels_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Aggregation, "expect", lambda self, jobs: None)
        patch.setattr(SpreadCalibration, "expect", lambda self, jobs: None)
        yield


@pytest.mark.parametrize("seed", range(3))
def test_the_first_labels_of_a_crowd_mislead_less(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failures end within minutes, its long jobs after all have been predicted."""
    crowd = _run_of(_crowd(seed), 200)
    with _labels_alone(monkeypatch):
        alone = serve(crowd).tested(crowd)
    served = serve(crowd).tested(crowd)
    assert pinball(crowd.labels, served) < 0.95 * pinball(crowd.labels, alone)
    assert coverage(crowd.labels, served) > coverage(crowd.labels, alone)


def test_nothing_changes_where_each_job_ends_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        ended(job, None, submitted_at_s=1e4 * job, service_s=100.0 + job % 7, name="train", user="ada")
        for job in range(1, 200)
    ]
    quiet = _run_of(jobs, 50)
    with _labels_alone(monkeypatch):
        alone = serve(quiet)
    assert (serve(quiet).quantiles == alone.quantiles).all()


def _live(jobs: list[EndedJob]) -> tuple[LivePredictor, dict[int, np.ndarray]]:
    """The predictor after these jobs, each of which starts at once, and what it combined for each."""
    predictor, combined = LivePredictor(), {}
    by_id = {job.job: job for job in jobs}

    def attained(job: JobId, now_s: float) -> Attained | None:
        of = by_id[job]
        come_s = now_s - (of.ended_at_s - of.service_s)
        return Attained(PredictionRequest(job, of.spec, of.submitted_at_s), come_s, None) if come_s > 0.0 else None

    predictor.watch(attained)
    waiting: list[tuple[float, int, EndedJob]] = []
    for job in jobs:
        while waiting and waiting[0][0] <= job.submitted_at_s:
            predictor.ended(heappop(waiting)[2])
        (answer,) = predictor.predict(job.submitted_at_s, [PredictionRequest(job.job, job.spec, job.submitted_at_s)])
        if answer is not None:
            shadow = next(each for each in answer.shadows if each.model_version == "baseline/aggregation")
            combined[int(job.job)] = np.log(shadow.points)
        heappush(waiting, (job.ended_at_s, int(job.job), job))
    return predictor, combined


def test_the_live_predictor_counts_them_as_the_evaluation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = _crowd(7, 300)
    _, combined = _live(jobs)
    crowd = _run_of(jobs, 0)

    def apart() -> float:
        both = zip(crowd.examples, serve(crowd).combined, strict=True)
        found = [np.abs(combined[each.submission.job] - at_levels(quantiles, LEARNT)).max() for each, quantiles in both]
        return float(np.max(found))

    # What is pending is kept in single precision.
    assert apart() < 1e-6
    with _labels_alone(monkeypatch):
        assert apart() > 0.5


def test_running_jobs_are_looked_at_every_five_minutes_and_never_for_a_plan() -> None:
    predictor, looked = LivePredictor(), []
    predictor.watch(lambda job, now_s: looked.append(now_s))
    predictor.predict(0.0, [request(1, name="a", user="u")])
    predictor.ended(ended(1, None, submitted_at_s=0.0, service_s=50.0, name="a", user="u"))
    for number, now_s in enumerate((100.0, 200.0, EXPECTED_EVERY_S, EXPECTED_EVERY_S + 50.0), 2):
        predictor.predict(now_s, [request(number, name="a", user="u", submitted_at_s=now_s)])
    assert looked == [EXPECTED_EVERY_S] * 2, "the two that were pending then"
    predictor.preview(5_000.0, [request(99, name="a", user="u", submitted_at_s=5_000.0)])
    assert len(looked) == 2
