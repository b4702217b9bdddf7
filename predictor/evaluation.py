"""Metrics of a predictor. Labels and quantiles are natural logs of the total; errors in units are taken after ``exp``.

MAE does not predict JCT. A scheduler depends on the ranking (tau, concordance), on the under-4x tail, which harms SRPT most, and
on calibration.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from predictor.intervals import MIDDLE, Array, at_levels
from predictor.recurrence import BUCKETS, Level, keys_of
from predictor.rows import Submission

PINBALL_LEVELS: Final[Array] = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
CONCORDANCE_SPAN: Final = 50
"""Concordance compares pairs submitted within this many jobs of each other: those that compete for the same GPUs."""
BURST_S: Final = 300.0
"""Runs of one program that are submitted within this time are one burst, such as a job array."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """``mae`` in units (seconds or iterations); ratios and levels are plain numbers. NaN where undefined (under two jobs)."""

    jobs: int
    mae: float
    median_ape: float
    r2_log: float
    within_2x: float
    under_4x: float
    kendall_tau: float
    concordance: float
    pinball_log: float
    coverage_80: float

    def to_json(self) -> dict[str, float | int | None]:
        """A JSON object; NaN becomes null."""
        return {key: None if value != value else value for key, value in asdict(self).items()}


def pinball_rows(labels: Array, quantiles: Array) -> Array:
    """Mean pinball loss of each job over the seven levels, natural log. ``quantiles`` (n, 25) at the predictor's levels."""
    error = labels[:, None] - at_levels(quantiles, PINBALL_LEVELS)
    return np.asarray(np.maximum(PINBALL_LEVELS * error, (PINBALL_LEVELS - 1.0) * error).mean(axis=1))


def pinball(labels: Array, quantiles: Array) -> float:
    """Mean pinball loss over the seven levels and the jobs, natural log. ``quantiles`` (n, 25) at the predictor's levels."""
    return float(np.mean(pinball_rows(labels, quantiles)))


def inside(labels: Array, quantiles: Array, level: float) -> NDArray[np.bool_]:
    """Which labels are inside the central interval of this level."""
    ends = at_levels(quantiles, np.array([0.5 - level / 2.0, 0.5 + level / 2.0]))
    return np.asarray((labels >= ends[:, 0]) & (labels <= ends[:, 1]))


def coverage(labels: Array, quantiles: Array, level: float = 0.8) -> float:
    """Share of labels inside the central interval of this level."""
    return float(np.mean(inside(labels, quantiles, level)))


def concordance(labels: Array, predicted: Array) -> float:
    """Share of pairs within :data:`CONCORDANCE_SPAN` jobs that are predicted in the right order (a tie counts half).

    Pairs with equal labels do not count. O(n * span).
    """
    right = pairs = 0.0
    for lag in range(1, min(CONCORDANCE_SPAN, len(labels) - 1) + 1):
        truth = np.sign(labels[lag:] - labels[:-lag])
        agreed = truth * np.sign(predicted[lag:] - predicted[:-lag])
        counted = truth != 0.0
        pairs += float(counted.sum())
        right += float((agreed[counted] > 0.0).sum()) + 0.5 * float((agreed[counted] == 0.0).sum())
    return right / pairs if pairs else float("nan")


def kendall_tau(labels: Array, predicted: Array) -> float:
    """Kendall's tau-b; NaN where one side is constant."""
    from scipy.stats import kendalltau

    if len(labels) < 2 or np.ptp(labels) == 0.0 or np.ptp(predicted) == 0.0:
        return float("nan")
    return float(kendalltau(labels, predicted).statistic)


def first_of_bursts(submissions: Sequence[Submission]) -> NDArray[np.bool_]:
    """Marks the first row of each burst of a program with the same GPUs. Jobs without user and name are all kept."""
    seen: set[object] = set()
    first = np.ones(len(submissions), dtype=bool)
    for row, submission in enumerate(submissions):
        key = keys_of(submission)[Level.RECURRENCE_GPUS]
        if key is not None:
            burst = (key, submission.submitted_at_s // BURST_S)
            first[row] = burst not in seen
            seen.add(burst)
    return first


def by_user(users: Sequence[str], labels: Array, quantiles: Array) -> dict[str, float | int]:
    """The metrics that are means over jobs, averaged per user and then over users, so that each user counts alike.

    ``users`` names each row's user; the rest as in :func:`measure`. The key ``users`` is their number.
    """
    names, of = np.unique(np.array(users, dtype=object).astype(str), return_inverse=True)
    sizes = np.bincount(of, minlength=len(names))
    predicted = middle(quantiles)
    actual, guess = np.exp(labels), np.exp(predicted)
    error = np.abs(actual - guess)
    per_row = {
        "mae": error,
        "within_2x": np.abs(labels - predicted) <= np.log(2.0),
        "under_4x": guess < actual / 4.0,
        "pinball_log": pinball_rows(labels, quantiles),
        "coverage_80": inside(labels, quantiles, 0.8),
    }
    means = {key: float(np.mean(np.bincount(of, weights=values) / sizes)) for key, values in per_row.items()}
    by_size = np.split((error / actual)[np.argsort(of, kind="stable")], np.cumsum(sizes)[:-1])
    medians = [float(np.median(errors)) for errors in by_size]
    return {"users": len(names), **means, "median_ape": float(np.mean(medians))}


def middle(quantiles: Array) -> Array:
    """The median of each distribution."""
    return np.asarray(quantiles[..., MIDDLE])


def measure(labels: Array, quantiles: Array) -> Metrics:
    """All metrics. ``labels`` in submission order; the point of a prediction is its middle."""
    if len(labels) == 0:
        nan = float("nan")
        return Metrics(0, nan, nan, nan, nan, nan, nan, nan, nan, nan)
    predicted = middle(quantiles)
    actual, guess = np.exp(labels), np.exp(predicted)
    variance = float(np.sum((labels - labels.mean()) ** 2))
    log_ratio = np.abs(labels - predicted)
    return Metrics(
        jobs=len(labels),
        mae=float(np.mean(np.abs(actual - guess))),
        median_ape=float(np.median(np.abs(actual - guess) / actual)),
        r2_log=1.0 - float(np.sum((labels - predicted) ** 2)) / variance if variance > 0.0 else float("nan"),
        within_2x=float(np.mean(log_ratio <= np.log(2.0))),
        under_4x=float(np.mean(guess < actual / 4.0)),
        kendall_tau=kendall_tau(labels, predicted),
        concordance=concordance(labels, predicted),
        pinball_log=pinball(labels, quantiles),
        coverage_80=coverage(labels, quantiles),
    )


def by_history(labels: Array, quantiles: Array, buckets: Sequence[int]) -> dict[str, Any]:
    """Metrics of all jobs, of seen and cold ones apart, and per history bucket, as JSON."""
    bucket = np.array(buckets, dtype=int)

    def part(rows: NDArray[np.bool_]) -> dict[str, float | int | None]:
        return measure(labels[rows], quantiles[rows]).to_json()

    return {
        **measure(labels, quantiles).to_json(),
        "seen": part(bucket > 0),
        "cold": part(bucket == 0),
        "buckets": {name: part(bucket == i) for i, name in enumerate(BUCKETS)},
    }
