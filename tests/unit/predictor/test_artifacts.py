"""Stored models: a loaded model equals the stored one, and no other file is loaded."""

import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io

from benchmarks.calibration import calibrate
from policies.model.estimate import Unit
from predictor import artifacts, features, forest
from predictor.boosting import Boosting
from predictor.errors import ArtifactError
from predictor.forest import QuantileForest
from predictor.intervals import LEVELS
from predictor.serving import LivePredictor
from predictor.train_process import load_result
from predictor.training import ESTIMATORS
from tests.unit.predictor.predictor_history import recurring_history, request, small_model


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("models") / "one"
    return folder, artifacts.save(small_model(), folder)


@pytest.fixture
def copy(stored: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored[0], tmp_path / "copy"))


def test_a_stored_model_answers_exactly_as_the_trained_one(stored: tuple[Path, str]) -> None:
    folder, digest = stored
    started_s = time.thread_time()
    loaded = artifacts.load(folder, manifest_sha256=digest)
    spent_s = time.thread_time() - started_s
    assert spent_s < 10 * calibrate(), "loading a champion costs a second of an ordinary core at most"
    assert artifacts.metrics_json(loaded) == artifacts.metrics_json(small_model())
    answers = []
    for model in (small_model(), loaded):
        predictor = LivePredictor()
        predictor.warm(recurring_history(240, reports=False))
        predictor.use(model)
        answers.append(predictor.predict(0.0, [request(1, name="program2", user="user2"), request(2)]))
    for first, second in zip(*answers, strict=True):
        assert first is not None
        assert second is not None
        assert {shadow.model_version for shadow in first.shadows} >= {f"{loaded.version}/{kind}" for kind in ESTIMATORS}
        assert first.estimate == second.estimate
        assert set(first.shadows) == set(second.shadows)


def test_a_folder_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(self: QuantileForest, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(QuantileForest, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        artifacts.save(small_model(), tmp_path / "models" / "one")
    assert list((tmp_path / "models").iterdir()) == []


def _manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / artifacts.MANIFEST
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return spoil


def _flip_a_byte(folder: Path) -> None:
    path = folder / "service_s.xgboost.ubj"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _link(folder: Path) -> None:
    path = folder / "service_s.xgboost.ubj"
    path.rename(folder.parent / "elsewhere.ubj")
    path.symlink_to(folder.parent / "elsewhere.ubj")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_flip_a_byte, "its sha256 is not the one on record"),
        (_link, "missing; train again"),
        (lambda folder: (folder / "service_s.random_forest.skops").unlink(), "missing; train again"),
        (lambda folder: (folder / "metrics.json").write_text("{}"), "its sha256 is not the one on record"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "not a readable model folder"),
        (lambda folder: (folder / "manifest.json").unlink(), "not a readable model folder"),
        (_manifest(lambda m: m.update(schema="sooner.model/9")), "schema 'sooner.model/9' is not"),
        (_manifest(lambda m: m.update(feature_schema="features/0:abc")), "made for features 'features/0:abc'"),
        (_manifest(lambda m: m["libraries"].update(numpy="1.0")), "train again"),
        (_manifest(lambda m: m.pop("seed")), "not a complete manifest"),
        (
            _manifest(lambda m: m["heads"]["service_s"]["models"]["xgboost"].update(file="../../etc/passwd")),
            "not a file name in the folder",
        ),
        (
            _manifest(lambda m: m["heads"]["service_s"]["models"].update(oracle={})),
            "unknown kind 'oracle'",
        ),
    ],
)
def test_what_does_not_match_is_refused_in_words(copy: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(copy)
    with pytest.raises(ArtifactError, match=message):
        artifacts.load(copy)


def test_no_reader_of_a_library_sees_a_file_before_its_hash_is_checked(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XGBoost's own reader crashes the process on a file that was cut off: it must never be handed one."""
    seen: list[Path] = []
    for kind in (Boosting, forest.RandomForest, QuantileForest):
        monkeypatch.setattr(kind, "load", lambda self, path: seen.append(path))
    for path in sorted([*copy.glob("*.ubj"), *copy.glob("*.skops"), *copy.glob("*.weights.json")]):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        for load in (artifacts.load, load_result):
            seen.clear()
            with pytest.raises(ArtifactError, match=r"sha256 is not the one on record"):
                load(copy)
            assert path not in seen
            assert all(artifacts.sha256_of(each) in _hashes(copy) for each in seen)
        path.write_bytes(whole)


def _hashes(folder: Path) -> set[str]:
    manifest = json.loads((folder / artifacts.MANIFEST).read_text())
    return {entry["sha256"] for head in manifest["heads"].values() for entry in head["models"].values()}


def _spoil_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the stored weights, under a hash that is right."""
    path = folder / "service_s.weights.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    digest = artifacts.sha256_of(path)
    _manifest(lambda m: m["heads"]["service_s"].update(weights_sha256=digest))(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("aggregation"), "not a complete manifest"),
        (lambda state: state.update(aggregation=[]), "must have the keys experts, labels, delays, regrets and squares"),
        (lambda state: state["aggregation"].update(experts=[]), "experts: must be a list of names"),
        (
            lambda state: state["aggregation"].update(experts=["retired", *state["aggregation"]["experts"][1:]]),
            "made for other experts than this version has; train again",
        ),
        (
            lambda state: state["aggregation"].update(experts=[*state["aggregation"]["experts"][:-1], "retired"]),
            "made for other experts than this version has; train again",
        ),
        (lambda state: state["aggregation"].update(labels=[1, 2]), "labels: must be 4 whole numbers"),
        (lambda state: state["aggregation"].update(delays=[3, -1.0]), "delays: must be their number and their mean"),
        (lambda state: state["aggregation"].update(delays=0.0), "delays: must be their number and their mean"),
        (lambda state: state["aggregation"].update(regrets=[[0.0]]), "regrets, squares: must have the shape"),
        (lambda state: state["aggregation"].update(squares=state["aggregation"]["labels"]), "must have the shape"),
        (
            lambda state: state.update(calibration=[[0.0, 0.0]]),
            "calibration: must be 4 pairs of numbers from -1.5 to 1.5",
        ),
        (lambda state: state.update(calibration=[[0.0, 9.0]] * 4), "calibration: must be 4 pairs"),
    ],
)
def test_weights_of_another_form_are_refused(
    copy: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    _spoil_weights(copy, change)
    with pytest.raises(ArtifactError, match=message):
        artifacts.load(copy)


def test_the_registry_pins_the_manifest(copy: Path, stored: tuple[Path, str]) -> None:
    _manifest(lambda manifest: manifest.update(rows=7))(copy)
    assert artifacts.load(copy).rows == 7
    with pytest.raises(ArtifactError, match="not the one in the registry"):
        artifacts.load(copy, manifest_sha256=stored[1])


def test_a_hostile_file_never_runs_code(tmp_path: Path) -> None:
    """A skops file that would call ``exec`` on load: its type is not on the list, so nothing of it is constructed."""
    from sklearn.preprocessing import FunctionTransformer

    mark = tmp_path / "ran"
    hostile = FunctionTransformer(func=exec, kw_args={"x": f"open({str(mark)!r}, 'w')"})
    path = tmp_path / "model.skops"
    skops.io.dump(hostile, path)
    with pytest.raises(ArtifactError, match="types that a forest must not contain"):
        QuantileForest().load(path)
    assert not mark.exists()


class _Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("kind", ["random_forest", "raw_quantile_forest", "xgboost"])
def test_a_pickle_in_a_models_place_never_runs_although_its_hash_is_right(
    copy: Path, tmp_path: Path, kind: str
) -> None:
    """Whoever can write the folder can also write the manifest: what is hashed is not trusted for it."""
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(_Payload(mark)))
    assert mark.exists()
    mark.unlink()
    entry = json.loads((copy / artifacts.MANIFEST).read_text())["heads"]["service_s"]["models"][kind]
    (copy / entry["file"]).write_bytes(pickle.dumps(_Payload(mark)))
    digest = artifacts.sha256_of(copy / entry["file"])
    _manifest(lambda m: m["heads"]["service_s"]["models"][kind].update(sha256=digest))(copy)
    with pytest.raises(ArtifactError, match="not a readable"):
        artifacts.load(copy)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../metrics.json", "/etc/passwd", "a/b", "", ".", "..", None, 7])
@pytest.mark.parametrize("field", ["file"])
def test_no_name_in_a_manifest_leads_out_of_its_folder(copy: Path, field: str, name: object) -> None:
    _manifest(lambda m: m["heads"]["service_s"]["models"]["xgboost"].update({field: name}))(copy)
    with pytest.raises(ArtifactError, match=r"not a file name in the folder|missing; train again"):
        artifacts.load(copy)


def test_a_library_sees_no_byte_of_a_file_whose_hash_is_wrong(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XGBoost's reader ends the whole process on some damaged files: only whole ones may reach it."""
    path = copy / "service_s.xgboost.ubj"
    path.write_bytes(path.read_bytes()[:20])
    monkeypatch.setattr(Boosting, "load", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ArtifactError, match="its sha256 is not the one on record"):
        artifacts.load(copy)


@pytest.mark.parametrize("content", [b"", b"{", b'{"learner": 3}', bytes(range(256)) * 20])
def test_what_is_no_xgboost_model_is_an_artifact_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.ubj").write_bytes(content)
    with pytest.raises(ArtifactError, match="not a readable XGBoost model"):
        Boosting().load(tmp_path / "model.ubj")


def test_foreign_and_damaged_files_are_artifact_errors(tmp_path: Path) -> None:
    from sklearn.linear_model import LinearRegression

    path = tmp_path / "model.skops"
    skops.io.dump(LinearRegression(), path)
    with pytest.raises(ArtifactError, match="holds a LinearRegression, not a RandomForestQuantileRegressor"):
        QuantileForest().load(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(ArtifactError, match="not a readable skops file"):
        QuantileForest().load(path)
    other = forest.RandomForest()
    with pytest.raises(ArtifactError, match="not a readable skops file"):
        other.load(tmp_path / "absent.skops")


def test_models_of_other_features_are_refused(stored: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "feature_schema", lambda: "features/2:0000")
    with pytest.raises(ArtifactError, match="this version uses 'features/2:0000'; train again"):
        artifacts.load(stored[0])


def test_points_of_every_model_ascend_and_are_finite() -> None:
    head = small_model().heads[Unit.SERVICE_S]
    odd = np.vstack([np.full((1, len(features.NAMES)), value) for value in (-1e9, 0.0, 1e9)])
    for estimator in head.estimators.values():
        points = estimator.predict_quantiles(odd)
        assert points.shape == (3, len(LEVELS))
        assert np.isfinite(points).all()
        assert (np.diff(points, axis=1) >= 0.0).all()
