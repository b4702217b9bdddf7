"""Random forests: the classical one, which A-SRPT (arXiv 2501.05563) uses, and the quantile forest (Meinshausen, JMLR 2006).

scikit-learn and quantile-forest are imported when a model is fitted or loaded, never before.
"""

import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np

from predictor import features as feature_schema
from predictor.errors import ArtifactError
from predictor.intervals import LEVELS, Array

TREES: Final = 60
LEAF_MIN: Final = 8
"""Jobs a leaf must hold: below this a leaf repeats single runs."""
FEATURES_RATIO: Final = 0.2
ROWS_PER_TREE_MAX: Final = 8_000
"""Bootstrap size: keeps a fit on 40,000 rows within seconds on one core and the trees small enough to load at once."""

TRUSTED_TYPES: Final = frozenset(
    {
        "sklearn.tree._tree.Tree",
        "quantile_forest._quantile_forest.RandomForestQuantileRegressor",
        "quantile_forest._quantile_forest_fast.QuantileForest",
    }
)
"""The types beyond skops' own defaults that a model file may hold. Hard-coded: a file never widens its own trust."""
_BASE: Final = feature_schema.NAMES.index("base")


def _options(rows: int, seed: int) -> dict[str, Any]:
    return {
        "n_estimators": TREES,
        "min_samples_leaf": LEAF_MIN,
        "max_features": FEATURES_RATIO,
        "max_samples": min(rows, ROWS_PER_TREE_MAX),
        "random_state": seed,
        "n_jobs": 1,
    }


class _Forest:
    """A scikit-learn forest in a skops file."""

    regressor = ""
    """Class name of the stored regressor."""

    def __init__(self) -> None:
        self._model: Any = None

    def save(self, path: Path) -> None:
        """Write a skops file."""
        from skops.io import dump

        dump(self._model, path)

    def load(self, path: Path) -> None:
        """Read a verified skops file. Every type in it is checked before anything of it is constructed."""
        from skops.io import get_untrusted_types, load

        try:
            foreign = set(get_untrusted_types(file=path)) - TRUSTED_TYPES
            if foreign:
                raise ArtifactError(
                    f"{path.name}: contains types that a forest must not contain: {', '.join(sorted(foreign))}"
                )
            model = load(path, trusted=sorted(TRUSTED_TYPES))
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(f"{path.name}: not a readable skops file ({type(error).__name__}: {error})") from error
        if type(model).__name__ != self.regressor:
            raise ArtifactError(f"{path.name}: holds a {type(model).__name__}, not a {self.regressor}")
        self._model = model


class RandomForest(_Forest):
    """Mean of trees: a point. Its distribution is the spread of its own out-of-bag errors."""

    kind = "random_forest"
    regressor = "RandomForestRegressor"

    def __init__(self) -> None:
        super().__init__()
        self._errors: Array = np.zeros(len(LEVELS))

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        from sklearn.ensemble import RandomForestRegressor

        self._model = RandomForestRegressor(**_options(len(residuals), seed), oob_score=True)
        with warnings.catch_warnings():
            # Of a few rows, one may be in every tree's sample; its out-of-bag value is then its own leaf's.
            warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores", category=UserWarning)
            self._model.fit(features, residuals)
        self._errors = np.quantile(residuals - self._model.oob_prediction_, LEVELS)
        # Only the quantiles are needed from here on; the file need not carry a value per training row.
        self._model.oob_prediction_ = self._errors

    def predict_quantiles(self, features: Array) -> Array:
        """The point plus out-of-bag errors."""
        point = np.asarray(self._model.predict(features), dtype=np.float64)
        return point[:, None] + self._errors

    def load(self, path: Path) -> None:
        """Read a verified skops file and the errors in it."""
        super().load(path)
        errors = np.asarray(self._model.oob_prediction_, dtype=np.float64)
        if errors.shape != LEVELS.shape or not np.isfinite(errors).all():
            raise ArtifactError(f"{path.name}: a random forest without its out-of-bag errors")
        self._errors = errors


class QuantileForest(_Forest):
    """Keeps the residuals in its leaves: a distribution of its own, wide where the past was."""

    kind = "quantile_forest"
    regressor = "RandomForestQuantileRegressor"

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        from quantile_forest import RandomForestQuantileRegressor

        self._model = RandomForestQuantileRegressor(**_options(len(residuals), seed), max_samples_leaf=LEAF_MIN)
        self._model.fit(features, residuals)

    def predict_quantiles(self, features: Array) -> Array:
        """Weighted quantiles of the residuals in the leaves."""
        return np.sort(np.asarray(self._model.predict(features, quantiles=list(LEVELS)), dtype=np.float64), axis=1)


class RawQuantileForest(QuantileForest):
    """A quantile forest on the total itself; the recurrence median is only one of its features.

    It is wider where history is thin or misleading. In the setting of A-SRPT a wider distribution can schedule better although
    its loss is higher, so completion times are compared before a model is promoted. Like every estimator it answers residuals.
    """

    kind = "raw_quantile_forest"

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        super().fit(features, residuals + features[:, _BASE], seed)

    def predict_quantiles(self, features: Array) -> Array:
        """Weighted quantiles of the log totals in the leaves, relative to the recurrence median."""
        return super().predict_quantiles(features) - features[:, _BASE, None]
