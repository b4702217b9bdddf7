"""A quantile forest on the total itself, not on what it differs from the recurrence median.

It is wider where history is thin or misleads, and in A-SRPT's own setting a wider distribution can schedule better although its
loss is higher: that is why completion times are compared before a model is promoted.
"""

from predictor import features as feature_schema
from predictor.forest import QuantileForest
from predictor.intervals import Array

_BASE = feature_schema.NAMES.index("base")


class RawQuantileForest(QuantileForest):
    """The same forest with the recurrence median as a mere feature. Speaks of residuals, like every estimator."""

    kind = "raw_quantile_forest"

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        """See :class:`predictor.estimator.Estimator`."""
        super().fit(features, residuals + features[:, _BASE], seed)

    def predict_points(self, features: Array) -> Array:
        """Weighted quantiles of the log totals in the leaves, seen from the recurrence median."""
        return super().predict_points(features) - features[:, _BASE, None]
