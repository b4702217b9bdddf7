"""The forest on the raw target, and the challenger that learns from jobs which are still running."""

import math
from pathlib import Path

import numpy as np
import pytest

from policies.model.estimate import Unit
from predictor import features as schema
from predictor import prequential
from predictor.boosting import SurvivalBoosting
from predictor.dataset import Example, Knowledge, replay
from predictor.errors import ArtifactError
from predictor.estimator import CensoredEstimator, Estimator
from predictor.forest import QuantileForest, RawQuantileForest
from predictor.intervals import Array
from predictor.rows import Submission, ended_row
from tests.unit.predictor.predictor_history import recurring_history

BASE = schema.NAMES.index("base")


def _data(rows: int = 400, seed: int = 0) -> tuple[Array, Array]:
    """One feature tells the truth, the base is off by as much in both directions."""
    rng = np.random.default_rng(seed)
    features = np.zeros((rows, len(schema.NAMES)))
    features[:, 0] = rng.integers(0, 2, rows)
    features[:, BASE] = rng.normal(5.0, 1.0, rows)
    total = 4.0 + 2.0 * features[:, 0] + 0.1 * rng.normal(size=rows)
    return features, total - features[:, BASE]


def test_the_raw_forest_learns_totals_and_speaks_of_residuals() -> None:
    features, residuals = _data()
    forest = RawQuantileForest()
    forest.fit(features, residuals, seed=1)
    points = forest.predict_points(features[:50])
    assert points.shape == (50, 32)
    assert (np.diff(points, axis=1) >= 0.0).all()
    totals = points.mean(axis=1) + features[:50, BASE]
    errors = np.abs(totals - (4.0 + 2.0 * features[:50, 0]))
    assert errors.mean() < 0.1 and errors.max() < 0.5, "its base is off by 1"
    moved = features[:50].copy()
    moved[:, BASE] += 100.0
    # A forest on the residual would follow its base anywhere; the total that this one learnt is bounded by what it saw.
    assert (forest.predict_points(moved).mean(axis=1) + moved[:, BASE] < 7.0).all()
    plain = QuantileForest()
    plain.fit(features, residuals, seed=1)
    assert (plain.predict_points(moved).mean(axis=1) + moved[:, BASE] > 50.0).all()


def test_running_jobs_make_the_challenger_expect_longer_ones() -> None:
    """Half of the jobs with this feature still run and have already taken e times what the ended ones took."""
    features, residuals = _data()
    ones = features[:, 0] == 1.0
    running, floors = features[ones], residuals[ones] + 1.0
    without, with_running = SurvivalBoosting(), SurvivalBoosting()
    without.fit(features, residuals, seed=1)
    with_running.fit_censored(features, residuals, running, floors, seed=1)
    assert isinstance(without, CensoredEstimator)
    assert not isinstance(QuantileForest(), CensoredEstimator)
    gain = with_running.predict_points(features).mean(axis=1) - without.predict_points(features).mean(axis=1)
    assert gain[ones].mean() > 0.3
    assert gain[ones].mean() > gain[~ones].mean() + 0.3


def test_a_lower_bound_that_says_nothing_new_changes_little() -> None:
    features, residuals = _data()
    without, with_running = SurvivalBoosting(), SurvivalBoosting()
    without.fit(features, residuals, seed=1)
    with_running.fit_censored(features, residuals, features[:100], residuals[:100] - 6.0, seed=1)
    gain = with_running.predict_points(features).mean(axis=1) - without.predict_points(features).mean(axis=1)
    assert np.abs(gain).mean() < 0.15


@pytest.mark.parametrize("make", [RawQuantileForest, SurvivalBoosting])
def test_they_survive_the_trip_through_a_file(make: type[Estimator], tmp_path: Path) -> None:
    features, residuals = _data(150)
    first, second = make(), make()
    first.fit(features, residuals, seed=2)
    first.save(tmp_path / "model")
    if isinstance(first, SurvivalBoosting):
        (tmp_path / "model").rename(tmp_path / "model.ubj")
        first.save(tmp_path / "model.ubj")
    (path,) = tmp_path.iterdir()
    second.load(path)
    assert second.predict_points(features) == pytest.approx(first.predict_points(features), rel=1e-3, abs=1e-4)


def test_a_survival_model_without_its_errors_is_refused(tmp_path: Path) -> None:
    features, residuals = _data(150)
    model = SurvivalBoosting()
    model.fit(features, residuals, seed=2)
    model._model.save_model(tmp_path / "bare.ubj")
    with pytest.raises(ArtifactError, match="a survival model without its errors"):
        SurvivalBoosting().load(tmp_path / "bare.ubj")
    (tmp_path / "bare.ubj").write_bytes(b"\x00garbage")
    with pytest.raises(ArtifactError, match="not a readable XGBoost model"):
        SurvivalBoosting().load(tmp_path / "bare.ubj")


def test_what_a_running_job_has_done_for_certain() -> None:
    """400 s of work, ended at 1000 s: at 900 s at least 300 s were done, at 600 s and before perhaps nothing."""
    example = Example(Submission(1, "", "", "", 1, 0.0), (), 0, (), math.log(800.0), 1000.0, 400.0)
    assert example.floor(900.0) == pytest.approx(math.log(600.0))
    assert example.floor(600.0) is None
    assert example.floor(1000.0) is None


def test_the_protocol_shows_a_censored_model_the_jobs_that_run_when_a_chunk_opens() -> None:
    rows = [ended_row(label) for label in recurring_history(200, reports=False)]
    examples = [found[Unit.SERVICE_S] for _, found in replay(rows, Knowledge())]
    seen: list[tuple[int, Array]] = []

    class Spy(SurvivalBoosting):
        def fit_censored(self, features: Array, residuals: Array, running: Array, floors: Array, seed: int) -> None:
            seen.append((len(running), floors))
            super().fit_censored(features, residuals, running, floors, seed)

    outcome = prequential.run(examples, {"spy": Spy}, test_start=120, chunks=2, seed=0)
    assert any(count for count, _ in seen)
    for chunk, (count, floors) in zip(outcome.chunks, seen, strict=True):
        before = [e for e in examples if e.base == e.base and e.submission.submitted_at_s < chunk.opened_s]
        running = [e for e in before if e.ended_at_s > chunk.opened_s]
        assert count == len(running)
        done_s = [chunk.opened_s - e.submission.submitted_at_s for e in running]
        # Each ran from its submission on.
        assert floors + [e.base for e in running] == pytest.approx(np.log(done_s))
