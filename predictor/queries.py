"""The requests of a batch while they are being answered, and what the models say of them."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.model.estimate import Estimate, Unit
from policies.model.placement import Slowdown
from predictor.dataset import Example
from predictor.fallback import Basis
from predictor.intervals import Array, as_labels
from predictor.rows import Submission
from predictor.training import TrainedModel

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Query:
    """One request while it is being answered.

    ``basis`` is the past that it rests on. ``raw`` are the models' log quantiles, by kind; ``quantiles`` those of every expert
    and of the aggregation, by the names of their shadows. ``estimate`` is the answer.
    """

    submission: Submission
    unit: Unit
    example: Example
    basis: Basis | None
    seconds_per_unit: float | None
    raw: dict[str, Array] = field(default_factory=dict)
    quantiles: dict[str, Array] = field(default_factory=dict)
    estimate: Estimate | None = None
    slowdown: Slowdown | None = None


def run_models(model: TrainedModel, queries: Sequence[Query]) -> None:
    """Run each kind of model on the queries of its unit, in one call each, into their ``raw``. One that fails is left out."""
    for unit, head in model.heads.items():
        ready = [query for query in queries if query.unit is unit and not math.isnan(query.example.base)]
        if not ready:
            continue
        features = np.array([query.example.features for query in ready])
        bases = np.array([query.example.base for query in ready])
        for kind, estimator in head.estimators.items():
            try:
                quantiles = bases[:, None] + estimator.predict_quantiles(features)
            except Exception:
                _log.exception("model %s/%s failed; the other experts answer", model.version, kind)
                continue
            for query, row in zip(ready, quantiles, strict=True):
                if np.isfinite(row).all():
                    query.raw[kind] = as_labels(row)
