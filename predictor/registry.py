"""The records of models: plain values, which the service keeps in a table. :mod:`predictor.artifacts` keeps the files."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from predictor import artifacts
from predictor.training import TrainedModel


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


def model_version(model: TrainedModel, folder: Path, manifest_sha256: str) -> ModelVersion:
    """The record of a model that was just stored in ``folder``."""
    return ModelVersion(
        id=model.version,
        kind=", ".join(f"{unit}: {head.best}" for unit, head in sorted(model.heads.items())),
        trained_until_s=model.trained_until_s,
        rows=model.rows,
        feature_schema=model.feature_schema,
        libraries=model.libraries,
        metrics=artifacts.metrics_json(model)["heads"],
        sha256=manifest_sha256,
        path=str(folder),
        promotable=model.promotable,
    )


def load_version(version: ModelVersion) -> TrainedModel:
    """The model of a record, verified against it. Raises :class:`predictor.errors.ArtifactError`."""
    return artifacts.load(Path(version.path), manifest_sha256=version.sha256)
