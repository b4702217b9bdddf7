"""The estimator protocol: what training, serving and artifacts require of every model, whatever library implements it."""

from pathlib import Path
from typing import Protocol

from predictor.intervals import Array


class Estimator(Protocol):
    """Learns the residual of the log total from the recurrence median. Importing one never imports its library."""

    @property
    def kind(self) -> str:
        """Its name in metrics, artifacts and sources, for instance ``quantile_forest``."""

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """Learn from (n, features) and n residuals. One thread; equal input and seed give an equal model."""

    def predict_quantiles(self, features: Array) -> Array:
        """(n, 25) quantiles of the residual at the predictor's levels, ascending. One thread."""

    def save(self, path: Path) -> None:
        """Write one file that :meth:`load` of the same class reads."""

    def load(self, path: Path) -> None:
        """Read a file that has already been verified. Raises ``ArtifactError`` for anything that is not such a model."""
