"""Gradient boosting with XGBoost: quantile regression, and accelerated failure times for censored totals.

xgboost is imported when a model is fitted or loaded, never before.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from predictor import features as feature_schema
from predictor.errors import ArtifactError
from predictor.intervals import LEVELS, POINTS, Array

FITTED_LEVELS: Final[Array] = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95])
"""Levels that are learnt; the 32 points lie between them (flat beyond the outermost, which calibration then corrects)."""
_MEDIAN: Final = FITTED_LEVELS.tolist().index(0.5)
ROUNDS: Final = 100
_COMMON: Final[dict[str, Any]] = {
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.06,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "nthread": 1,
    "verbosity": 0,
}
_QUANTILE: Final[dict[str, Any]] = {
    **_COMMON,
    "objective": "reg:quantileerror",
    "quantile_alpha": FITTED_LEVELS,
    "min_child_weight": 20,
}
_SURVIVAL: Final[dict[str, Any]] = {
    **_COMMON,
    "objective": "survival:aft",
    "aft_loss_distribution": "logistic",
    "aft_loss_distribution_scale": 0.5,
    "min_child_weight": 5,
    # The model learns residuals: the search starts at the recurrence median itself.
    "base_score": 1.0,
}
_LOG_LIMIT: Final = 60.0
"""Residuals are clipped at e^60: single precision ends at e^88."""


def _booster(path: Path) -> Any:
    """A stored booster. Raises :class:`ArtifactError` where the file is not one."""
    import xgboost

    model = xgboost.Booster()
    try:
        model.load_model(path)
        model.set_param({"nthread": 1})
    except (xgboost.core.XGBoostError, ValueError, OSError) as error:
        raise ArtifactError(f"{path.name}: not a readable XGBoost model ({error})") from error
    return model


class Boosting:
    """XGBoost on the quantile (pinball) loss, all levels in one model."""

    kind = "xgboost"

    def __init__(self) -> None:
        self._model: Any = None

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        import xgboost

        data = xgboost.QuantileDMatrix(features, residuals, nthread=1)
        self._model = xgboost.train({**_QUANTILE, "seed": seed}, data, num_boost_round=ROUNDS)

    def predict_points(self, features: Array) -> Array:
        """The fitted levels, sorted (they may cross), interpolated at the 32 levels."""
        fitted = np.sort(np.asarray(self._model.inplace_predict(features), dtype=np.float64), axis=1)
        return np.stack([np.interp(LEVELS, FITTED_LEVELS, row) for row in fitted])

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

        model, width = _booster(path), len(feature_schema.NAMES)
        try:
            shape = (model.num_features(), model.inplace_predict(np.zeros((1, width))).shape)
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise ArtifactError(f"{path.name}: not a readable XGBoost model ({error})") from error
        if shape != (width, (1, len(FITTED_LEVELS))):
            raise ArtifactError(f"{path.name}: an XGBoost model of another shape")
        self._model = model


class SurvivalBoosting:
    """Accelerated failure times (``survival:aft``): a challenger that also learns from jobs which are still running.

    The total of an ended job is known; that of a running one is only bounded from below (right-censored). Without the running
    jobs a model underestimates, most of all soon after a new long program has appeared. The distribution is the point plus the
    quantiles of the model's errors on ended jobs. It is evaluated beside the other models and never serves.
    """

    kind = "xgboost_aft"

    def __init__(self) -> None:
        self._model: Any = None
        self._errors: Array = np.zeros(POINTS)

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        self.fit_censored(features, residuals, np.empty((0, features.shape[1])), np.empty(0), seed)

    def fit_censored(self, features: Array, residuals: Array, running: Array, floors: Array, seed: int) -> None:
        """See :class:`predictor.estimator.CensoredEstimator`."""
        import xgboost

        known = np.exp(np.clip(residuals, -_LOG_LIMIT, _LOG_LIMIT))
        data = xgboost.DMatrix(np.vstack([features, running]), nthread=1)
        lower = np.exp(np.clip(floors, -_LOG_LIMIT, _LOG_LIMIT))
        data.set_float_info("label_lower_bound", np.concatenate([known, lower]))
        data.set_float_info("label_upper_bound", np.concatenate([known, np.full(len(floors), np.inf)]))
        self._model = xgboost.train({**_SURVIVAL, "seed": seed}, data, num_boost_round=ROUNDS)
        self._errors = np.quantile(residuals - self._points(features), LEVELS)

    def predict_points(self, features: Array) -> Array:
        """The point plus the quantiles of the errors on ended jobs."""
        return self._points(features)[:, None] + self._errors

    def _points(self, features: Array) -> Array:
        predicted = np.asarray(self._model.inplace_predict(features), dtype=np.float64)
        return np.clip(np.log(np.maximum(predicted, np.finfo(np.float32).tiny)), -_LOG_LIMIT, _LOG_LIMIT)

    def save(self, path: Path) -> None:
        """Write XGBoost's binary JSON (.ubj): data, no code. The errors are stored as an attribute of the booster."""
        self._model.set_attr(errors=" ".join(f"{error:.6g}" for error in self._errors))
        self._model.save_model(path)

    def load(self, path: Path) -> None:
        """Read a verified .ubj file."""
        model = _booster(path)
        try:
            errors = np.array([float(word) for word in (model.attr("errors") or "").split()])
        except ValueError as error:
            raise ArtifactError(f"{path.name}: not a readable XGBoost model ({error})") from error
        if errors.shape != (POINTS,) or not np.isfinite(errors).all():
            raise ArtifactError(f"{path.name}: a survival model without its errors")
        self._model, self._errors = model, errors
