"""A challenger that also learns from jobs which are still running: accelerated failure times by XGBoost (``survival:aft``).

An ended job's total is known; of a running one only that it is more than what was done so far (right-censored). Leaving the
latter out makes a model believe that jobs are shorter than they are, most of all soon after a new long program has come.
It is evaluated beside the models and never serves. xgboost is imported when a model is fitted or loaded, never before.
"""

from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from predictor.errors import ArtifactError
from predictor.estimator import Estimator
from predictor.intervals import LEVELS, POINTS, Array

ROUNDS: Final = 100
_PARAMETERS: Final[dict[str, Any]] = {
    "objective": "survival:aft",
    "aft_loss_distribution": "logistic",
    "aft_loss_distribution_scale": 0.5,
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.06,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "min_child_weight": 5,
    # Residuals: the recurrence median itself is where the search begins.
    "base_score": 1.0,
    "nthread": 1,
    "verbosity": 0,
}
_LOG_LIMIT: Final = 60.0
"""Beyond e^60 nothing is learnt from a residual, and single precision ends at e^88."""


@runtime_checkable
class CensoredEstimator(Estimator, Protocol):
    """An estimator that can make use of jobs which have not ended."""

    def fit_censored(self, features: Array, residuals: Array, running: Array, floors: Array, seed: int) -> None:
        """As ``fit``; ``running`` (m, features) are jobs of which only a lower bound of the residual, ``floors``, is known."""


class SurvivalBoosting:
    """XGBoost on the likelihood of a log-logistic total. Its distribution is the spread of its own errors on ended jobs."""

    kind = "xgboost_aft"

    def __init__(self) -> None:
        self._model: Any = None
        self._errors: Array = np.zeros(POINTS)

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        self.fit_censored(features, residuals, np.empty((0, features.shape[1])), np.empty(0), seed)

    def fit_censored(self, features: Array, residuals: Array, running: Array, floors: Array, seed: int) -> None:
        """See :class:`CensoredEstimator`."""
        import xgboost

        known = np.exp(np.clip(residuals, -_LOG_LIMIT, _LOG_LIMIT))
        data = xgboost.DMatrix(np.vstack([features, running]), nthread=1)
        lower = np.exp(np.clip(floors, -_LOG_LIMIT, _LOG_LIMIT))
        data.set_float_info("label_lower_bound", np.concatenate([known, lower]))
        data.set_float_info("label_upper_bound", np.concatenate([known, np.full(len(floors), np.inf)]))
        self._model = xgboost.train({**_PARAMETERS, "seed": seed}, data, num_boost_round=ROUNDS)
        self._errors = np.quantile(residuals - self._points(features), LEVELS)

    def predict_points(self, features: Array) -> Array:
        """The point plus its errors on ended jobs."""
        return self._points(features)[:, None] + self._errors

    def _points(self, features: Array) -> Array:
        predicted = np.asarray(self._model.inplace_predict(features), dtype=np.float64)
        return np.clip(np.log(np.maximum(predicted, np.finfo(np.float32).tiny)), -_LOG_LIMIT, _LOG_LIMIT)

    def save(self, path: Path) -> None:
        """Write XGBoost's binary JSON (.ubj): data, no code. The errors are an attribute of it."""
        self._model.set_attr(errors=" ".join(f"{error:.6g}" for error in self._errors))
        self._model.save_model(path)

    def load(self, path: Path) -> None:
        """Read a verified .ubj file."""
        import xgboost

        model = xgboost.Booster()
        try:
            model.load_model(path)
            errors = np.array([float(word) for word in (model.attr("errors") or "").split()])
        except (xgboost.core.XGBoostError, ValueError, OSError) as error:
            raise ArtifactError(f"{path.name}: not a readable XGBoost model ({error})") from error
        if errors.shape != (POINTS,) or not np.isfinite(errors).all():
            raise ArtifactError(f"{path.name}: a survival model without its errors")
        model.set_param({"nthread": 1})
        self._model, self._errors = model, errors
