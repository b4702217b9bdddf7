"""Serving with a model: who answers, what is scored, and what happens when a model is swapped, drifts or breaks."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Unit
from predictor import features, serving
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.forest import QuantileForest
from predictor.serving import LivePredictor
from tests.unit.predictor_history import ended, recurring_history, request, small_model


def _warm() -> LivePredictor:
    predictor = LivePredictor()
    predictor.warm(recurring_history(240, reports=False))
    return predictor


def _ask(job: int = 5_000) -> PredictionRequest:
    return request(job, name="program3", user="user3", gpus=2)


def _run(job: int, service_s: float) -> EndedJob:
    return ended(job, None, submitted_at_s=1e6 + job, service_s=service_s, name="program3", user="user3", gpus=2)


def test_importing_the_live_predictor_loads_no_learning_library() -> None:
    code = (
        "import sys, predictor.serving;"
        "print([m for m in ('sklearn', 'xgboost', 'quantile_forest', 'scipy', 'skops') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_promoted_model_answers_and_says_so_and_everyone_else_shadows() -> None:
    predictor, model = _warm(), small_model()
    (before,) = predictor.predict(0.0, [_ask()])
    predictor.use(model, kind="quantile_forest")
    (after,) = predictor.predict(0.0, [_ask()])
    assert before is not None
    assert after is not None
    assert before.estimate.model_version == ""
    assert after.estimate.model_version == f"{model.version}/quantile_forest"
    assert after.estimate.source == f"{before.estimate.source}; distribution by quantile forest"
    assert after.estimate.points != before.estimate.points
    assert after.features == before.features
    assert after.feature_schema == features.SCHEMA
    names = [shadow.model_version for shadow in after.shadows]
    kinds = ("random_forest", "xgboost", "quantile_forest")
    assert names == [*(f"baseline/{name}" for name in BASELINE_NAMES), *(f"{model.version}/{kind}" for kind in kinds)]
    for shadow in after.shadows:
        assert len(shadow.points) == 8
        assert (np.diff(shadow.points) >= 0.0).all()
    predictor.use(None)
    assert predictor.predict(0.0, [_ask()]) == [before]


def test_candidates_score_every_job_but_never_serve() -> None:
    predictor = _warm()
    predictor.use(None, candidates=[small_model()])
    (answer,) = predictor.predict(0.0, [_ask()])
    assert answer is not None
    assert answer.estimate.model_version == ""
    assert f"{small_model().version}/xgboost" in {shadow.model_version for shadow in answer.shadows}
    assert predictor.status().model_version == ""


def test_a_kind_that_a_model_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="has no 'oracle'"):
        LivePredictor().use(small_model(), kind="oracle")


def test_a_batch_answers_as_single_questions_do() -> None:
    jobs = [request(6_000 + i, name=f"program{i % 12}", user=f"user{i % 6}", gpus=1 + i % 3) for i in range(40)]
    together, alone = _warm(), _warm()
    for predictor in (together, alone):
        predictor.use(small_model(), kind="xgboost")
    batch = together.predict(0.0, jobs)
    singles = [alone.predict(0.0, [job])[0] for job in jobs]
    assert batch == singles


def test_a_model_that_breaks_leaves_the_ladder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = _warm()
    (ladder,) = predictor.predict(0.0, [_ask()])
    predictor.use(small_model(), kind="quantile_forest")

    def broken(self: QuantileForest, matrix: object) -> np.ndarray:
        raise MemoryError("no room")

    monkeypatch.setattr(QuantileForest, "predict_points", broken)
    (answer,) = predictor.predict(0.0, [_ask()])
    assert ladder is not None
    assert answer is not None
    assert answer.estimate == ladder.estimate
    assert "the ladder answers for it" in caplog.text


def test_drift_sets_the_model_aside_and_says_so() -> None:
    predictor = _warm()
    predictor.use(small_model(), kind="quantile_forest")
    for job in range(7_000, 7_320):
        predictor.predict(0.0, [_ask(job)])
        # Steady at first; then every few runs the program takes a hundred times as long, which no interval follows.
        service_s = 60.0 if job < 7_200 or job % 3 else 6_000.0
        predictor.ended(_run(job, service_s))
    assert predictor.status().drifting[Unit.SERVICE_S]
    (answer,) = predictor.predict(0.0, [_ask(9_000)])
    assert answer is not None
    assert answer.estimate.model_version == ""
    assert answer.estimate.source.endswith("; the model is set aside: its errors have grown")


def test_calibration_follows_the_jobs_that_end() -> None:
    """The whole family suddenly takes 5 times as long; the model is not retrained, but its served points move there."""
    predictor = _warm()
    predictor.use(small_model(), kind="quantile_forest")
    (before,) = predictor.predict(0.0, [_ask(8_000)])
    assert before is not None
    version = f"{small_model().version}/quantile_forest"

    def said(answer: Prediction | None) -> float:
        assert answer is not None
        return next(shadow.points[4] for shadow in answer.shadows if shadow.model_version == version)

    for job in range(8_001, 8_121):
        predictor.predict(0.0, [_ask(job)])
        predictor.ended(_run(job, 5.0 * before.estimate.median))
    (after,) = predictor.predict(0.0, [_ask(8_200)])
    assert said(after) > 2.0 * said(before)


def test_pending_predictions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PENDING_MAX", 3)
    predictor = _warm()
    predictor.predict(0.0, [_ask(job) for job in range(10)])
    assert predictor.status().pending == 3
    predictor.ended(ended(9, None, service_s=5.0))
    assert predictor.status().pending == 2


def test_warm_counts_open_jobs_and_labels() -> None:
    predictor = LivePredictor()
    predictor.warm(recurring_history(50), open_jobs=[request(900, submitted_at_s=1e5)])
    assert predictor.status().known_jobs == {Unit.ITERATIONS: 50, Unit.SERVICE_S: 50}
    (answer,) = predictor.predict(0.0, [request(901, submitted_at_s=2e5)])
    assert answer is not None
    assert answer.features[features.NAMES.index("open_recurrence")] == 1.0


def test_models_are_swapped_while_jobs_are_predicted() -> None:
    predictor = _warm()
    versions, errors, stop = set(), [], threading.Event()

    def swap() -> None:
        while not stop.is_set():
            predictor.use(small_model(), kind="xgboost")
            predictor.use(None)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for job in range(60):
            for answer in predictor.predict(0.0, [_ask(9_000 + job), _ask(9_100 + job)]):
                if answer is None:
                    errors.append(job)
                else:
                    versions.add(answer.estimate.model_version)
            predictor.ended(_run(9_000 + job, 50.0))
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
    assert not errors
    assert versions <= {"", f"{small_model().version}/xgboost"}
