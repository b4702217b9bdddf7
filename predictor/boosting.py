"""Gradient boosting with XGBoost: quantile regression.

xgboost is imported when a model is fitted or loaded, never before.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from predictor import features as feature_schema
from predictor.errors import ArtifactError
from predictor.intervals import LEVELS, Array, interpolation, times

FITTED_LEVELS: Final[Array] = np.array([0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])
"""Levels that are learnt; the others lie between them (flat beyond the outermost)."""
_MEDIAN: Final = FITTED_LEVELS.tolist().index(0.5)
_TO_ALL: Final[Array] = interpolation(FITTED_LEVELS, LEVELS)
ROUNDS: Final = 100
SUBSAMPLE: Final = 0.7
ROWS_PER_TREE_MAX: Final = 8_000
"""Rows that a tree learns from, a share of all of them: more cost time and gain nothing."""
_OPTIONS: Final[dict[str, Any]] = {
    "objective": "reg:quantileerror",
    "quantile_alpha": FITTED_LEVELS,
    "tree_method": "hist",
    "max_depth": 4,
    "min_child_weight": 20,
    "eta": 0.06,
    "colsample_bytree": 0.5,
    "nthread": 1,
    "verbosity": 0,
}


class Boosting:
    """XGBoost on the quantile (pinball) loss, all levels in one model."""

    kind = "xgboost"

    def __init__(self) -> None:
        self._model: Any = None

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        import xgboost

        data = xgboost.QuantileDMatrix(features, residuals, nthread=1)
        options = {**_OPTIONS, "seed": seed, "subsample": min(SUBSAMPLE, ROWS_PER_TREE_MAX / len(residuals))}
        self._model = xgboost.train(options, data, num_boost_round=ROUNDS)

    def predict_quantiles(self, features: Array) -> Array:
        """The fitted levels, sorted (they may cross), interpolated at the predictor's levels."""
        fitted = np.sort(np.asarray(self._model.inplace_predict(features), dtype=np.float64), axis=1)
        return times(fitted, _TO_ALL)

    def contributions(self, features: Array) -> Array:
        """What each feature added to the fitted median: shape (rows, features + 1), the last column is the bias.

        A row sums to the median before crossing levels are sorted. XGBoost's ``pred_contribs``.
        """
        import xgboost

        found = self._model.predict(xgboost.DMatrix(features, nthread=1), pred_contribs=True)
        return np.asarray(found[:, _MEDIAN], dtype=np.float64)

    def save(self, path: Path) -> None:
        """Write XGBoost's binary JSON (.ubj): data, no code."""
        self._model.save_model(path)

    def load(self, path: Path) -> None:
        """Read a verified .ubj file."""
        import xgboost

        model, width = xgboost.Booster(), len(feature_schema.NAMES)
        try:
            model.load_model(path)
            model.set_param({"nthread": 1})
            shape = (model.num_features(), model.inplace_predict(np.zeros((1, width))).shape)
        except (xgboost.core.XGBoostError, ValueError, OSError) as error:
            raise ArtifactError(f"{path.name}: not a readable XGBoost model ({error})") from error
        if shape != (width, (1, len(FITTED_LEVELS))):
            raise ArtifactError(f"{path.name}: an XGBoost model of another shape")
        self._model = model
