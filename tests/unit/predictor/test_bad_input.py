"""With any input and a model in service every answer is finite, ascending and has a source."""

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, Unit
from predictor.serving import LivePredictor
from tests.unit.predictor.predictor_history import ended, recurring_history, request, small_model


def _assert_sound(answer: Prediction | None) -> Estimate:
    assert answer is not None
    estimate = answer.estimate
    assert len(estimate.points) == 32
    assert all(math.isfinite(point) and point >= 1.0 for point in estimate.points)
    assert list(estimate.points) == sorted(estimate.points)
    assert estimate.point is None or (math.isfinite(estimate.point) and estimate.point >= 1.0)
    assert estimate.source
    assert all(math.isfinite(value) for value in answer.features)
    return estimate


def _serving() -> LivePredictor:
    predictor = LivePredictor(small_model())
    predictor.warm(recurring_history(240, reports=False))
    return predictor


def test_a_model_without_any_history_answers_nothing_and_then_starts() -> None:
    """A database was lost and the model was kept, or the other way round."""
    predictor = LivePredictor(small_model())
    assert predictor.predict(0.0, [request(1)]) == [None]
    predictor.ended(ended(1, None, service_s=90.0))
    (answer,) = predictor.predict(0.0, [request(2)])
    assert _assert_sound(answer).median == pytest.approx(90.0, rel=0.5)


def test_one_user_with_one_program_and_equal_runs_is_answered_and_trusted() -> None:
    predictor = _serving()
    for job in range(1_000, 1_090):
        predictor.predict(0.0, [request(job, name="only", user="one", gpus=1)])
        predictor.ended(ended(job, None, submitted_at_s=1e6 + job, service_s=737.0, name="only", user="one", gpus=1))
    (answer,) = predictor.predict(0.0, [request(2_000, name="only", user="one", gpus=1)])
    estimate = _assert_sound(answer)
    assert estimate.median == pytest.approx(737.0, rel=0.1)
    assert estimate.trusted


@cache
def _shared() -> LivePredictor:
    """One for all examples: what the odd ones left behind is part of the test."""
    return _serving()


_ODD = st.sampled_from([-5.0, 0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan, 3.5])


@settings(max_examples=25, deadline=None)
@given(
    declared=st.one_of(_ODD, st.just(10**400)),
    walltime_s=_ODD,
    submitted_at_s=st.sampled_from([0.0, -1e9, 1e12, math.nan, math.inf]),
)
def test_absurd_requests_are_answered_as_if_nothing_was_said(
    declared: float, walltime_s: float, submitted_at_s: float
) -> None:
    predictor = _shared()
    spec = replace(
        request(1, name="program3", user="user3", gpus=2).spec,
        declared_iterations=declared,  # type: ignore[arg-type]
        walltime_s=walltime_s,
    )
    (answer,) = predictor.preview(0.0, [PredictionRequest(request(9_999_999).job, spec, submitted_at_s)])
    _assert_sound(answer)


@settings(max_examples=25, deadline=None)
@given(iterations=st.one_of(st.none(), _ODD), service_s=_ODD, number=st.integers(0, 10**6))
def test_absurd_labels_teach_nothing_or_something_sane(iterations: float | None, service_s: float, number: int) -> None:
    predictor = _shared()
    predictor.predict(0.0, [request(10**7 + number, name="program3", user="user3", gpus=2)])
    label: EndedJob = ended(
        10**7 + number, iterations, submitted_at_s=1e6, service_s=service_s, name="program3", user="user3", gpus=2
    )
    predictor.ended(replace(label, ended_at_s=2e6))
    (answer,) = predictor.preview(0.0, [request(9_999_999, name="program3", user="user3", gpus=2)])
    _assert_sound(answer)
    assert math.isfinite(predictor.status().recent_log_error[Unit.SERVICE_S])


@pytest.mark.slow
def test_ten_thousand_programs_and_users_never_seen_before_in_one_batch() -> None:
    predictor = _serving()
    asks = [request(10_000 + i, name=f"n{i}", user=f"u{i % 5_000}", gpus=1 + i % 8) for i in range(10_000)]
    answers = predictor.preview(0.0, asks)
    assert len({_assert_sound(answer).source for answer in answers[:200]}) == 1
    assert all(answer is not None and answer.estimate.source.startswith("cold start") for answer in answers)


def test_the_interval_of_a_program_whose_past_says_nothing_grows_wide() -> None:
    """Its runs take a minute or a month by chance, further apart each time."""
    predictor = _serving()
    ask = request(2_000, name="dice", user="user1", gpus=1)
    narrow = _assert_sound(predictor.preview(0.0, [ask])[0])
    for job in range(1_000, 1_100):
        predictor.predict(0.0, [request(job, name="dice", user="user1", gpus=1)])
        service_s = float(2.0 ** ((job - 1_000) * (1 if job % 2 else -1) / 4.0 + 15.0))
        predictor.ended(
            ended(job, None, submitted_at_s=1e6 + job, service_s=service_s, name="dice", user="user1", gpus=1)
        )
    wide = _assert_sound(predictor.preview(0.0, [ask])[0])
    assert wide.quantile(0.9) / wide.quantile(0.1) > 20.0 * narrow.quantile(0.9) / narrow.quantile(0.1)
    coverage = predictor.status().buckets[Unit.SERVICE_S][3].coverage
    assert coverage is not None
    assert coverage < 0.8
