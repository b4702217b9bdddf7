"""Explains a prediction from the feature vector that was stored with it.

The contributions of the features come from XGBoost alone (``pred_contribs``, exact for trees: Lundberg and others, Nature Machine
Intelligence 2020). No maintained library computes them for the forests. Where a forest answered, the XGBoost model of the same
training run is shown, under its own name: it learnt the same residuals from the same jobs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from policies.model.estimate import Unit
from predictor import features
from predictor.boosting import Boosting
from predictor.fallback import amount
from predictor.feature_schema import schema as feature_schema
from predictor.recurrence import BACKOFF, BUCKETS, Level, bucket_of
from predictor.training import TrainedModel

TOP: Final = 6
"""Number of features that are named. The others are summed."""


class Trust(StrEnum):
    """The source of a job's rank, most trusted first."""

    MODEL = "model"
    """A trained model's distribution."""
    HISTORY = "history"
    """The distribution of the group's past runs."""
    ATTAINED_SERVICE = "attained_service"
    """No trusted prediction: the job is ranked by its attained service."""


def trust_of(model_version: str, trusted: bool) -> Trust:
    """The trust in a stored prediction."""
    if not trusted:
        return Trust.ATTAINED_SERVICE
    return Trust.MODEL if model_version else Trust.HISTORY


@dataclass(frozen=True, slots=True)
class HistoryBasis:
    """The history behind a prediction: past runs with the same GPUs, the bucket of its calibration, the level with a history."""

    past_runs: int
    bucket: str
    level: Level


@dataclass(frozen=True, slots=True)
class Contribution:
    """A feature, its value, and the factor by which it changed the prediction (above 1: longer).

    ``feature`` is a whole level where that has no history.
    """

    feature: str
    words: str
    factor: float


@dataclass(frozen=True, slots=True)
class Contributions:
    """The factors of a model's median before calibration, in the prediction's unit.

    ``total`` = ``history_median`` x ``usual_factor`` x the factors of ``top``, strongest first, x ``others_factor``.
    ``model_version`` is the model that is shown, which may differ from the one that answered.
    """

    model_version: str
    history_median: float
    usual_factor: float
    top: tuple[Contribution, ...]
    others_factor: float
    total: float


def readable(schema: str, vector: Sequence[float | None]) -> bool:
    """Whether a stored vector has the features of this version."""
    return schema == feature_schema() and len(vector) == len(features.NAMES)


def history_basis(vector: Sequence[float | None]) -> HistoryBasis:
    """The history behind a :func:`readable` vector."""
    runs = round(math.expm1(_value(vector, f"{Level.RECURRENCE_GPUS}.log_count")))
    depth = int(_value(vector, "cold_level"))
    return HistoryBasis(runs, BUCKETS[bucket_of(runs)], BACKOFF[depth])


def contributions(model: TrainedModel, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
    """The contributions of the features to the model's median, for a :func:`readable` vector. Takes about 1 ms.

    None if the model has no XGBoost for the unit, or if no history was known.
    """
    head = model.heads.get(unit)
    boosting = head.estimators.get(Boosting.kind) if head is not None else None
    base = _value(vector, "base")
    if not isinstance(boosting, Boosting) or base <= features.MISSING:
        return None
    row = np.array([[math.nan if value is None else value for value in vector]])
    *moved, usual = boosting.contributions(row)[0].tolist()
    # The features of a group without a history have one meaning, so they are shown as one.
    parts: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, value, change in zip(features.NAMES, row[0].tolist(), moved, strict=True):
        key = name.partition(".")[0] if value <= features.MISSING else name
        parts[key] = parts.get(key, 0.0) + change
        texts.setdefault(key, words(name, value, base, unit))
    order = sorted(parts, key=lambda key: -abs(parts[key]))
    top = [key for key in order[:TOP] if parts[key] != 0.0]
    return Contributions(
        model_version=f"{model.version}/{Boosting.kind}",
        history_median=math.exp(base),
        usual_factor=math.exp(usual),
        top=tuple(Contribution(key, texts[key], math.exp(parts[key])) for key in top),
        others_factor=math.exp(sum(parts[key] for key in order if key not in top)),
        total=math.exp(base + usual + sum(moved)),
    )


def _value(vector: Sequence[float | None], name: str) -> float:
    value = vector[features.NAMES.index(name)]
    return features.MISSING if value is None else value


_LEVELS: Final = {
    Level.RECURRENCE_GPUS: "runs of this program with as many GPUs",
    Level.RECURRENCE: "runs of this program",
    Level.PROGRAM: "runs under this name by any user",
    Level.USER_GPUS: "the user's jobs with as many GPUs",
    Level.USER: "the user's jobs",
    Level.PROJECT: "the project's jobs",
    Level.MODEL: "jobs with the same request (model and batch size, or project and walltime, and GPUs)",
}


def _amount(log_total: float, unit: Unit) -> str:
    return amount(math.exp(log_total), unit)


def _factor(log_ratio: float, unit: Unit) -> str:
    return f"a factor of {math.exp(log_ratio):.2f}"


def _log_number(value: float, unit: Unit) -> str:
    return f"{math.exp(value):,.10g}"


def _log_count(value: float, unit: Unit) -> str:
    return f"{math.expm1(value):,.0f}"


def _number(value: float, unit: Unit) -> str:
    return f"{value:,.3g}"


_Format = Callable[[float, Unit], str]
_GROUP: Final[dict[str, tuple[str, _Format]]] = {
    "log_count": ("number of {}", _log_count),
    "median": ("median of {}", _amount),
    "last": ("the newest of {}", _amount),
    "previous": ("the one before the newest of {}", _amount),
    "ewma": ("weighted mean of {}", _amount),
    "low": ("10% point of {}", _amount),
    "high": ("90% point of {}", _amount),
    "spread": ("spread of {}", _factor),
    "failed_ratio": ("failed of {}", lambda value, unit: f"{value:.0%}"),
    "log_age_s": ("time since the newest of {} ended", lambda value, unit: f"{math.expm1(value):,.0f} s"),
}
"""Words and format of a group's features; ``{}`` stands for the group's jobs."""
_RELATIVE: Final = frozenset(
    {"last", "previous", "ewma", "low", "high", "request_last_submitted", "cluster_last_submitted"}
)
"""Features, or those of a group, that are relative to ``base``."""
_LATELY: Final[dict[str, tuple[str, _Format]]] = {
    "since_submission_log_s": ("time since the last of {} was submitted, s", _log_count),
    "open": ("number of {} that are unfinished", _number),
    "open_log_age_s": ("age of the oldest of {} that is unfinished, s", _log_count),
    "open_newest_log_age_s": ("age of the newest of {} that is unfinished, s", _log_count),
    "last_submitted": ("the ended one of {} that was submitted last", _amount),
    "last_submitted_log_age_s": ("time since the ended one of {} that was submitted last, s", _log_count),
}
"""Words and format of what happened lately in a group; ``{}`` stands for the group's jobs."""
_REQUEST: Final[dict[str, tuple[str, _Format]]] = {
    "base": ("median of the nearest history", _amount),
    "cluster_median": ("median of all jobs", _amount),
    "cluster_first_median": ("median of programs' first runs", _amount),
    "user_first_median": ("median of first runs of the user's programs", _amount),
    "log_gpus": ("GPUs", _log_number),
    "log_walltime_s": ("requested walltime, s", _log_number),
    "log_declared": ("declared iterations", _log_number),
    "log_stages": ("stages", _log_number),
    "log_parameter_bytes": ("parameters, bytes", _log_number),
    "log_batch_size": ("batch size", _log_number),
    "log_gpu_speed": ("published speed of the GPU type", _log_number),
    "declared_weight": ("weight of the user's declarations", _number),
    "cold_level": ("back-off levels without past runs", _number),
    "hour": ("hour of day, UTC", _number),
    "weekday": ("day of the week (0 = Thursday)", _number),
    "open_recurrence": ("unfinished runs of this program", _number),
    "open_user": ("unfinished jobs of the user", _number),
    "log_cluster_count": ("ended jobs known", _log_count),
    "open_recurrence_log_age_s": ("age of the oldest unfinished run of this program, s", _log_count),
    "open_user_log_age_s": ("age of the user's oldest unfinished job, s", _log_count),
    **{
        f"open_{group}_{part}": (f"{quantile} of {jobs}, unfinished ones included, over that of history alone", _factor)
        for group, jobs in (("recurrence", "runs of this program"), ("user", "the user's jobs"))
        for part, quantile in (("low", "lower quartile"), ("median", "median"), ("high", "upper quartile"))
    },
    **{
        f"{group}_{part}": (label.format(jobs), form)
        for group, jobs in (("request", "the jobs with the same request"), ("cluster", "all jobs"))
        for part, (label, form) in _LATELY.items()
    },
}


def words(name: str, value: float, base: float, unit: Unit) -> str:
    """A feature and its value in words. ``base`` is the log of the total to which group features are relative."""
    group, _, part = name.partition(".")
    if part and value <= features.MISSING:
        return f"{_LEVELS[Level(group)]}: none"
    if part:
        label, form = _GROUP[part]
        return f"{label.format(_LEVELS[Level(group)])}: {form(base + value if part in _RELATIVE else value, unit)}"
    label, form = _REQUEST[name]
    if value <= features.MISSING and form is not _number:
        return f"{label}: none"
    return f"{label}: {form(base + value if name in _RELATIVE else value, unit)}"
