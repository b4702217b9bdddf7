"""The contract of every predictor: subclass :class:`PredictorSuite`, say how one is made, and every rule is a test."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.engine.ports import Predictor

_TEXT = st.one_of(st.sampled_from(["", "ada", "program3", "user3"]), st.text(max_size=5))
_NUMBER = st.one_of(st.none(), st.integers(-(10**400), 10**400))
_REAL = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
_ODD = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 500.0, 1e4, 1e300, math.inf, math.nan]))
_SPECS = st.builds(
    JobSpec,
    name=_TEXT,
    user=_TEXT,
    project=_TEXT,
    gpus=st.integers(1, 4096),
    declared_iterations=_NUMBER,
    walltime_s=_REAL,
    model=st.one_of(st.none(), _TEXT),
    batch_size=_NUMBER,
    gpu_type=st.one_of(st.none(), _TEXT),
    recurrence_key=st.one_of(st.none(), _TEXT),
    stage_graph=st.sampled_from([None, StageGraph((), ()), StageGraph((Stage("s", 0.1, 0.2, 10**12),), ())]),
)


def _requests(specs: Sequence[JobSpec], at_s: float = 1e6) -> list[PredictionRequest]:
    return [PredictionRequest(JobId(10_000 + i), spec, at_s + i) for i, spec in enumerate(specs)]


def check_prediction(answer: Prediction) -> None:
    """An answer that a policy can use and a table can store."""
    estimate = answer.estimate
    assert estimate.points, "no points"
    assert all(math.isfinite(point) and point > 0.0 for point in estimate.points)
    assert list(estimate.points) == sorted(estimate.points)
    assert estimate.source, "an estimate says where it comes from"
    if estimate.unit is Unit.SERVICE_S:
        assert estimate.seconds_per_unit == 1.0
    elif estimate.seconds_per_unit is not None:
        assert math.isfinite(estimate.seconds_per_unit)
        assert estimate.seconds_per_unit > 0.0
    assert all(math.isfinite(value) for value in answer.features)
    for shadow in answer.shadows:
        assert shadow.model_version
        assert all(math.isfinite(point) and point > 0.0 for point in shadow.points)


class PredictorSuite:
    """Rules of ``service.engine.ports.Predictor``."""

    def make(self) -> Predictor:
        """A fresh predictor, equal to every other that this returns."""
        raise NotImplementedError

    def usual(self) -> list[JobSpec]:
        """Jobs that the predictor may know, and some that it cannot."""
        return [JobSpec(name=f"program{i}", user=f"user{i % 5}", gpus=1 + i % 3, project="vision") for i in range(12)]

    def test_nothing_asked_nothing_answered(self) -> None:
        assert list(self.make().predict(0.0, [])) == []

    def test_answers_come_in_order_one_each(self) -> None:
        requests = _requests(self.usual())
        forward = list(self.make().predict(2e6, requests))
        backward = list(self.make().predict(2e6, requests[::-1]))
        assert len(forward) == len(requests)
        assert forward == backward[::-1]
        for answer in forward:
            if answer is not None:
                check_prediction(answer)

    def test_asking_twice_changes_nothing(self) -> None:
        predictor, requests = self.make(), _requests(self.usual())
        first = list(predictor.predict(2e6, requests))
        assert list(predictor.predict(2e6, requests)) == first

    def test_equal_predictors_answer_equally(self) -> None:
        requests = _requests(self.usual())
        assert list(self.make().predict(2e6, requests)) == list(self.make().predict(2e6, requests))

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(specs=st.lists(_SPECS, min_size=1, max_size=4), at_s=st.floats(allow_nan=True, allow_infinity=True))
    def test_odd_jobs_are_answered_not_raised(self, specs: list[JobSpec], at_s: float) -> None:
        requests = [PredictionRequest(JobId(20_000 + i), spec, at_s if i == 0 else 1e6) for i, spec in enumerate(specs)]
        answers = list(self.make().predict(0.0, requests))
        assert len(answers) == len(requests)
        for answer in answers:
            if answer is not None:
                check_prediction(answer)

    @pytest.mark.parametrize("iterations", [None, 0.0, 1e-9, 5_000.0, 1e300, math.inf, math.nan])
    @pytest.mark.parametrize("service_s", [0.0, 3.0, 1e300, math.nan])
    def test_any_label_is_taken_also_of_a_job_never_asked_about(
        self, iterations: float | None, service_s: float
    ) -> None:
        predictor, (known, *_) = self.make(), _requests(self.usual())
        predictor.predict(2e6, [known])
        label = EndedJob(known.job, known.spec, known.submitted_at_s, 3e6, iterations, service_s, "succeeded")
        predictor.ended(label)
        predictor.ended(replace(label, job=JobId(77_777), final_state="cancelled", spec=JobSpec("", "", 1)))
        predictor.ended(label)
        for answer in predictor.predict(3e6, _requests(self.usual(), at_s=3e6)):
            if answer is not None:
                check_prediction(answer)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(numbers=st.lists(st.tuples(_ODD, _ODD, _ODD, _ODD), max_size=6), speed=st.one_of(st.none(), _ODD))
    def test_reports_of_any_total_are_answered_in_order_not_raised(
        self, numbers: list[tuple[float, float, float, float]], speed: float | None
    ) -> None:
        predictor, requests = self.make(), _requests(self.usual())
        answers = predictor.predict(2e6, requests)
        reported = [
            Reported(request, answer.estimate, done, service_s, total, least, speed)
            for (request, answer), (done, service_s, total, least) in zip(
                zip(requests, answers, strict=True), numbers, strict=False
            )
            if answer is not None
        ]
        revised = list(predictor.revise(2e6, reported))
        assert len(revised) == len(reported)
        for each, answer in zip(reported, revised, strict=True):
            if answer is not None:
                check_prediction(answer)
                assert answer.estimate.unit is each.estimate.unit
        assert list(predictor.revise(2e6, [])) == []

    def test_a_report_of_a_job_never_asked_about_changes_nothing(self) -> None:
        (request, *_) = _requests(self.usual())
        estimate = Estimate((10.0,), Unit.ITERATIONS, "elsewhere")
        stranger = replace(request, job=JobId(77_777))
        assert list(self.make().revise(0.0, [Reported(stranger, estimate, 5.0, 5.0, 99.0, 99.0, 1.0)])) == [None]
