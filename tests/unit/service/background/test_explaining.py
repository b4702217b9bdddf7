"""Explaining predictions of models that serve, that served once, and that are gone."""

from pathlib import Path

import pytest

from policies.model.estimate import Unit
from predictor import artifacts, features
from predictor.artifacts import model_version
from predictor.explain import contributions
from predictor.serving import LivePredictor
from service.background import model_explanations as explaining
from service.background.model_explanations import Explainer
from service.db import models as model_records
from service.db.session import Database
from tests.unit.predictor.predictor_history import small_model

VECTOR = tuple(1.0 + 0.01 * position for position in range(len(features.NAMES)))


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    """A model on record that does not serve."""
    out = tmp_path / "models" / "earlier"
    version = model_version(small_model(), out, artifacts.save(small_model(), out))
    model_records.insert_version(database, version, 0.0)
    return out


def test_a_retired_model_is_explained_from_its_files(database: Database, folder: Path) -> None:
    expected = contributions(small_model(), Unit.SERVICE_S, VECTOR)
    explainer = Explainer(database, LivePredictor())
    assert expected is not None
    assert explainer.contributions(f"{small_model().version}/blend", Unit.SERVICE_S, VECTOR) == expected
    (folder / artifacts.MANIFEST).unlink()
    assert explainer.contributions(f"{small_model().version}/xgboost", Unit.SERVICE_S, VECTOR) == expected, "kept"


def test_a_model_that_serves_is_not_loaded_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "load_version", None)
    predictor = LivePredictor(small_model())
    found = Explainer(database, predictor).contributions(f"{small_model().version}/blend", Unit.SERVICE_S, VECTOR)
    assert found == contributions(small_model(), Unit.SERVICE_S, VECTOR)


def test_missing_or_damaged_models_are_not_explained(
    database: Database, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    explainer = Explainer(database, LivePredictor())
    assert explainer.contributions("m-unheard/blend", Unit.SERVICE_S, VECTOR) is None
    next(folder.glob("*.ubj")).write_bytes(b"something else")
    assert explainer.contributions(f"{small_model().version}/blend", Unit.SERVICE_S, VECTOR) is None
    assert "cannot be loaded for an explanation" in caplog.text
