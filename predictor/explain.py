"""Why a prediction says what it says, from the feature vector that was stored with it: nothing is computed anew.

What moved a model is read from XGBoost alone (its own ``pred_contribs``, exact for trees: Lundberg and others, Nature Machine
Intelligence 2020). Forests of the same training run learnt the same residuals from the same jobs, but nothing maintained splits
theirs, so where one of them answered, the XGBoost model beside it is shown, by its name.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from policies.model.estimate import Unit
from predictor import features
from predictor.boosting import Boosting
from predictor.ladder import amount
from predictor.recurrence import BUCKETS, LADDER, Level, bucket_of
from predictor.training import TrainedModel

TOP: Final = 6
"""Features that are named; what all others did together is one number."""


class Trust(StrEnum):
    """The ladder of trust: who ranks the job."""

    MODEL = "model"
    """A trained model's distribution."""
    HISTORY = "history"
    """The distribution of the group's past runs."""
    ATTAINED_SERVICE = "attained_service"
    """Nothing that is predicted: it rests on too little, and the job is ranked by what it has had."""


def trust_of(model_version: str, trusted: bool) -> Trust:
    """The rung of a stored prediction."""
    if not trusted:
        return Trust.ATTAINED_SERVICE
    return Trust.MODEL if model_version else Trust.HISTORY


@dataclass(frozen=True, slots=True)
class Ground:
    """What a prediction rested on: past runs with as many GPUs, the bucket it is calibrated in, the level that had a past."""

    past_runs: int
    bucket: str
    level: Level


@dataclass(frozen=True, slots=True)
class Contribution:
    """A feature, its value in words, and how many times longer (above 1) or shorter (below 1) it made the prediction.

    ``feature`` is a whole level where that has no past.
    """

    feature: str
    words: str
    factor: float


@dataclass(frozen=True, slots=True)
class Contributions:
    """How a model came to its median before calibration, in the prediction's unit.

    ``total`` = ``history_median`` x ``usual_factor`` x the factors of ``top``, strongest first, x ``others_factor``.
    ``model_version`` names the model that is shown, which need not be the one that answered.
    """

    model_version: str
    history_median: float
    usual_factor: float
    top: tuple[Contribution, ...]
    others_factor: float
    total: float


def readable(schema: str, vector: Sequence[float | None]) -> bool:
    """Whether a stored vector means what this version's features mean."""
    return schema == features.SCHEMA and len(vector) == len(features.NAMES)


def ground_of(vector: Sequence[float | None]) -> Ground:
    """What a :func:`readable` vector says of the history behind it."""
    runs = round(math.expm1(_value(vector, f"{Level.RECURRENCE_GPUS}.log_count")))
    depth = int(_value(vector, "cold_level"))
    return Ground(runs, BUCKETS[bucket_of(runs)], LADDER[depth])


def contributions(model: TrainedModel, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
    """What moved the model's median away from the history's, for a :func:`readable` vector. About a millisecond.

    None where the model has no XGBoost for the unit, or nothing was known to start from.
    """
    head = model.heads.get(unit)
    boosting = head.estimators.get(Boosting.kind) if head is not None else None
    base = _value(vector, "base")
    if not isinstance(boosting, Boosting) or base <= features.MISSING:
        return None
    row = np.array([[math.nan if value is None else value for value in vector]])
    *moved, usual = boosting.contributions(row)[0].tolist()
    # Of a group without a past every feature says the same: "none". Together they are one.
    parts: dict[str, float] = {}
    said: dict[str, str] = {}
    for name, value, change in zip(features.NAMES, row[0].tolist(), moved, strict=True):
        key = name.partition(".")[0] if value <= features.MISSING else name
        parts[key] = parts.get(key, 0.0) + change
        said.setdefault(key, words(name, value, base, unit))
    order = sorted(parts, key=lambda key: -abs(parts[key]))
    top = [key for key in order[:TOP] if parts[key] != 0.0]
    return Contributions(
        model_version=f"{model.version}/{Boosting.kind}",
        history_median=math.exp(base),
        usual_factor=math.exp(usual),
        top=tuple(Contribution(key, said[key], math.exp(parts[key])) for key in top),
        others_factor=math.exp(sum(parts[key] for key in order if key not in top)),
        total=math.exp(base + usual + sum(moved)),
    )


def _value(vector: Sequence[float | None], name: str) -> float:
    value = vector[features.NAMES.index(name)]
    return features.MISSING if value is None else value


_LEVELS: Final = {
    Level.RECURRENCE_GPUS: "runs of this program with as many GPUs",
    Level.RECURRENCE: "runs of this program",
    Level.PROGRAM: "runs under this name by anybody",
    Level.USER_GPUS: "the user's jobs with as many GPUs",
    Level.USER: "the user's jobs",
    Level.PROJECT: "the project's jobs",
    Level.MODEL: "jobs that ask for the same (model and batch size, or project and walltime, and GPUs)",
}
_TOTALS: Final = {
    "last": "the newest of",
    "previous": "the one before the newest of",
    "ewma": "weighted mean of",
    "low": "10% point of",
    "high": "90% point of",
}
_LOG_AMOUNTS: Final = {
    "base": "median of the nearest past",
    "cluster_median": "median of all jobs",
    "cluster_first_median": "median of programs' first runs",
    "user_first_median": "median of first runs of the user's programs",
}
_LOG_PLAIN: Final = {
    "log_gpus": "GPUs",
    "log_walltime_s": "walltime asked for, s",
    "log_declared": "declared iterations",
    "log_stages": "stages",
    "log_parameter_bytes": "parameters, bytes",
    "log_batch_size": "batch size",
}
_PLAIN: Final = {
    "declared_weight": "weight of the user's declarations",
    "cold_level": "levels without a past",
    "hour": "hour of day, UTC",
    "weekday": "day of the week, counted from Thursday",
    "open_recurrence": "unfinished runs of this program",
    "open_user": "unfinished jobs of the user",
}
_LOG_COUNTS: Final = {
    "log_cluster_count": "ended jobs known",
    "open_recurrence_log_age_s": "age of the oldest unfinished run of this program, s",
    "open_user_log_age_s": "age of the user's oldest unfinished job, s",
}
_FACTORS: Final = {
    f"open_{group}_{part}": f"{quantile} of {jobs} with the unfinished ones, over what history says"
    for group, jobs in (("recurrence", "runs of this program"), ("user", "the user's jobs"))
    for part, quantile in (("low", "lower quartile"), ("median", "median"), ("high", "upper quartile"))
}

_REQUEST: Final = {**_LOG_AMOUNTS, **_LOG_PLAIN, **_PLAIN, **_LOG_COUNTS, **_FACTORS}


def words(name: str, value: float, base: float, unit: Unit) -> str:
    """A feature and its value for people. ``base`` is the log of the total that group features are relative to."""
    group, _, part = name.partition(".")
    if part:
        return _group_words(_LEVELS[Level(group)], part, value, base, unit)
    label = _REQUEST[name]
    if name in _PLAIN:
        return f"{label}: {value:,.3g}"
    if value <= features.MISSING:
        return f"{label}: none"
    if name in _LOG_AMOUNTS:
        return f"{label}: {amount(math.exp(value), unit)}"
    if name in _FACTORS:
        return f"{label}: a factor of {math.exp(value):.2f}"
    return f"{label}: {math.expm1(value):,.0f}" if name in _LOG_COUNTS else f"{label}: {math.exp(value):,.10g}"


def _group_words(jobs: str, part: str, value: float, base: float, unit: Unit) -> str:
    if value <= features.MISSING:
        return f"{jobs}: none"
    if part == "log_count":
        return f"number of {jobs}: {math.expm1(value):,.0f}"
    if part == "median":
        return f"median of {jobs}: {amount(math.exp(value), unit)}"
    if part == "spread":
        return f"spread of {jobs}: a factor of {math.exp(value):.2f}"
    if part == "failed_ratio":
        return f"failed of {jobs}: {value:.0%}"
    if part == "log_age_s":
        return f"time since the newest of {jobs} ended: {math.expm1(value):,.0f} s"
    return f"{_TOTALS[part]} {jobs}: {amount(math.exp(base + value), unit)}"
