"""Models on disk: one self-contained folder per training run, verified before any library reads it.

    DIR/manifest.json        schema, version, feature schema, library versions, per head the models' files with their sha256
    DIR/metrics.json         metrics and verdict, for people and the service's tables
    DIR/<unit>.<kind>.skops  scikit-learn and quantile-forest models      DIR/<unit>.<kind>.ubj  XGBoost
    DIR/<unit>.weights.json  the aggregation and the calibration, as they were after the test

Never pickle or joblib: a model file is data. A folder that does not match exactly (hash, features, library versions) is refused
with an :class:`ArtifactError` that says what to do; a model is cheap to train again. The service keeps the record of each folder,
a :class:`ModelVersion`, in a table.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from policies.model.estimate import Unit
from predictor.aggregation import Aggregation
from predictor.boosting import Boosting
from predictor.conformal import SpreadCalibration
from predictor.errors import ArtifactError
from predictor.estimator import Estimator
from predictor.experts import BASIC
from predictor.feature_schema import schema as feature_schema
from predictor.training import ESTIMATORS, TrainedHead, TrainedModel, Verdict, library_versions

SCHEMA: Final = "sooner.model/4"
MANIFEST: Final = "manifest.json"
METRICS: Final = "metrics.json"
FILE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Larger files are refused."""


class ModelState(StrEnum):
    """The state of a model; at most one is champion."""

    CANDIDATE = "candidate"
    """Trained and stored; its training's test has scored it, but it predicts no job."""
    CHAMPION = "champion"
    """It serves."""
    RETIRED = "retired"
    """It served before, or never passed; its record stays, its files may be deleted."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One training run. ``kind`` names the best model of each head ("iterations: quantile_forest"); ``sha256`` pins the
    folder."""

    id: str
    kind: str
    trained_until_s: float
    rows: int
    feature_schema: str
    libraries: Mapping[str, str]
    metrics: Mapping[str, Any]
    sha256: str
    path: str
    promotable: bool
    state: ModelState = ModelState.CANDIDATE


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _file_name(unit: Unit, kind: str) -> str:
    return f"{unit}.{kind}.{'ubj' if kind == Boosting.kind else 'skops'}"


def _write_json(path: Path, value: object) -> str:
    """Replace a file; returns the sha256 of the new one."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return sha256_of(path)


def _save_head(folder: Path, head: TrainedHead) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for kind, estimator in head.estimators.items():
        model = folder / _file_name(head.unit, kind)
        estimator.save(model)
        models[kind] = {"file": model.name, "sha256": sha256_of(model)}
    weights = folder / f"{head.unit}.weights.json"
    state = {"aggregation": head.aggregation.dump(), "calibration": head.calibration.dump()}
    digest = _write_json(weights, state)
    return {"rows": head.rows, "weights": weights.name, "weights_sha256": digest, "models": models}


def metrics_json(model: TrainedModel) -> dict[str, Any]:
    """Metrics and verdict of all heads, as ``metrics.json`` holds them."""
    return {
        "version": model.version,
        "rows": model.rows,
        "trained_until_s": model.trained_until_s,
        "promotable": model.promotable,
        "heads": {
            unit.value: {
                "rows": head.rows,
                "verdict": {**asdict(head.verdict), "reasons": list(head.verdict.reasons)},
                "models": dict(head.metrics),
            }
            for unit, head in model.heads.items()
        },
    }


def save(model: TrainedModel, out: Path) -> str:
    """Write the folder ``out`` atomically; it must not exist, or be empty. Returns the manifest's sha256."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        heads = {unit.value: _save_head(draft, head) for unit, head in model.heads.items()}
        manifest = {
            "schema": SCHEMA,
            "version": model.version,
            "seed": model.seed,
            "rows": model.rows,
            "trained_until_s": model.trained_until_s,
            "feature_schema": model.feature_schema,
            "libraries": dict(model.libraries),
            "metrics_sha256": _write_json(draft / METRICS, metrics_json(model)),
            "heads": heads,
        }
        digest = _write_json(draft / MANIFEST, manifest)
        draft.replace(out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return digest


def _verified(folder: Path, name: object, expected: object) -> Path:
    if not isinstance(name, str) or Path(name).name != name:
        raise ArtifactError(f"{folder / MANIFEST}: {name!r} is not a file name in the folder")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise ArtifactError(f"{path}: missing; train again")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ArtifactError(f"{path}: must have at most {FILE_BYTES_MAX} bytes (has {path.stat().st_size})")
    if sha256_of(path) != expected:
        raise ArtifactError(f"{path}: its sha256 is not the one on record; the file is damaged or was replaced")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: not a readable model folder ({error})") from None
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: not a JSON object")
    return value


def _check_on_record(path: Path, manifest_sha256: str) -> None:
    """Verify the manifest before it is read."""
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise ArtifactError(f"{path}: not a readable model folder ({error})") from None
    if digest != manifest_sha256:
        raise ArtifactError(f"{path}: its sha256 is not the one in the registry; the folder is damaged or was replaced")


def _check_fit(path: Path, manifest: dict[str, Any]) -> None:
    """Refuse a manifest of another format, other features or other library versions."""
    if manifest.get("schema") != SCHEMA:
        raise ArtifactError(f"{path}: schema {manifest.get('schema')!r} is not {SCHEMA}")
    if manifest.get("feature_schema") != feature_schema():
        raise ArtifactError(
            f"{path}: made for features {manifest.get('feature_schema')!r}, but this version uses {feature_schema()!r}; "
            "train again"
        )
    libraries = library_versions()
    if manifest.get("libraries") != libraries:
        raise ArtifactError(
            f"{path}: made with {manifest.get('libraries')}, but {libraries} are installed; train again"
        )


def _load_head(folder: Path, unit: Unit, stored: dict[str, Any], measured: dict[str, Any]) -> TrainedHead:
    estimators: dict[str, Estimator] = {}
    for kind, entry in stored["models"].items():
        if kind not in ESTIMATORS:
            raise ArtifactError(f"{folder}: holds a model of unknown kind {kind!r}")
        estimators[kind] = ESTIMATORS[kind]()
        estimators[kind].load(_verified(folder, entry["file"], entry["sha256"]))
    state = _read_json(_verified(folder, stored["weights"], stored["weights_sha256"]))
    aggregation = Aggregation.load(state["aggregation"])
    basic, kinds = aggregation.experts[: len(BASIC)], aggregation.experts[len(BASIC) :]
    if basic != BASIC or sorted(kinds) != sorted(estimators):
        # The weights of other experts, as of another version of Sooner, would count for those of this one.
        raise ArtifactError(
            f"{folder / str(stored['weights'])}: made for other experts than this version has; train again"
        )
    verdict = Verdict(measured["verdict"]["passed"], tuple(measured["verdict"]["reasons"]))
    return TrainedHead(
        unit,
        stored["rows"],
        estimators,
        aggregation,
        SpreadCalibration.load(state["calibration"]),
        verdict,
        measured["models"],
    )


def load(folder: Path, *, manifest_sha256: str | None = None) -> TrainedModel:
    """Read and verify a folder. ``manifest_sha256`` is the one in the registry; the manifest has those of all other files.

    Raises :class:`ArtifactError` for anything that is not exactly a model of this version of Sooner.
    """
    path = folder / MANIFEST
    if manifest_sha256 is not None:
        _check_on_record(path, manifest_sha256)
    manifest = _read_json(path)
    _check_fit(path, manifest)
    measured = _read_json(_verified(folder, METRICS, manifest.get("metrics_sha256")))
    try:
        heads = {
            Unit(unit): _load_head(folder, Unit(unit), stored, measured["heads"][unit])
            for unit, stored in manifest["heads"].items()
        }
        return TrainedModel(
            version=manifest["version"],
            heads=heads,
            seed=manifest["seed"],
            rows=manifest["rows"],
            trained_until_s=manifest["trained_until_s"],
            feature_schema=manifest["feature_schema"],
            libraries=manifest["libraries"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path}: not a complete manifest ({type(error).__name__}: {error})") from error


def model_version(model: TrainedModel, folder: Path, manifest_sha256: str) -> ModelVersion:
    """The record of a model that was just stored in ``folder``."""
    return ModelVersion(
        id=model.version,
        kind=", ".join(f"{unit}: {head.best}" for unit, head in sorted(model.heads.items())),
        trained_until_s=model.trained_until_s,
        rows=model.rows,
        feature_schema=model.feature_schema,
        libraries=model.libraries,
        metrics=metrics_json(model)["heads"],
        sha256=manifest_sha256,
        path=str(folder),
        promotable=model.promotable,
    )


def load_version(version: ModelVersion) -> TrainedModel:
    """The model of a record, verified against it. Raises :class:`ArtifactError`."""
    return load(Path(version.path), manifest_sha256=version.sha256)
