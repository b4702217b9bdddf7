"""Who serves: per history bucket one champion for the distribution and one for the point, by what was scored before.

The simplest wins a bucket unless another beats it. Candidates are every baseline, every model, and the blend: the mean, quantile
by quantile, of boosting and the quantile forest, whose errors differ. What a candidate said is judged once the job has ended.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.boosting import Boosting
from predictor.evaluation import coverage, middle, pinball
from predictor.forest import QuantileForest
from predictor.intervals import BUCKET_RESIDUALS_MIN, Array
from predictor.prequential import Run
from predictor.recurrence import BUCKETS

BLEND: Final = "blend"
BLENDED: Final = (Boosting.kind, QuantileForest.kind)
EVIDENCE_ROWS_MAX: Final = 2_000
"""Scored jobs per bucket that count, the newest: what the workload is like now."""
SIMPLEST: Final = "recurrence_median20"
"""Serves the point of a bucket until another is better, and everything while nothing is known."""

Rows = NDArray[np.intp]

LOSS_RATIO_MAX: Final = 0.97
"""To win a bucket takes a loss lower by this, as in the promotion gate: less is noise on a few thousand jobs."""
COVERAGE: Final = 0.8
COVERAGE_MIN: Final = 0.75
COVERAGE_MAX: Final = 0.88
WITHIN_2X_LOSS_MAX: Final = 0.01
OVERTIME_RATIO: Final = 1.05
"""Schedulers grant a few minutes of grace before they end a job."""
OVERTIME_SHARE_MAX: Final = 0.01


class Scores(NamedTuple):
    """How a candidate did on some jobs: mean pinball loss (log), share inside its 80% interval, mean absolute error of its
    middle in units, and share of them within a factor of two.
    """

    pinball: float
    coverage: float
    error: float
    within_2x: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Names of the champions, per history bucket (positions of ``recurrence.BUCKETS``)."""

    distribution: tuple[str, ...]
    point: tuple[str, ...]

    @property
    def name(self) -> str:
        """The champion's name where it is one, else each bucket's: ``0: blend; 1-4: blend, point recurrence_median20; ...``."""
        pairs = list(zip(self.distribution, self.point, strict=True))
        if len({name for pair in pairs for name in pair}) == 1:
            return self.point[0]
        return "; ".join(
            f"{bucket}: {shape}" + (f", point {point}" if point != shape else "")
            for bucket, (shape, point) in zip(BUCKETS, pairs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Served:
    """What the mixes would have answered to the test jobs of a run: ``points`` (jobs, 32), and ``predicted`` log points."""

    points: Array
    predicted: Array
    mixes: tuple[Mix, ...]


def blended(points: Mapping[str, Array]) -> dict[str, Array]:
    """The candidates, and the blend where its parts are among them."""
    if not all(name in points for name in BLENDED):
        return dict(points)
    return {**points, BLEND: np.mean([points[name] for name in BLENDED], axis=0)}


def choose(labels: Array, buckets: Rows, candidates: Mapping[str, Array]) -> Mix:
    """The champions by scored jobs, oldest first: their log labels, history buckets, and what each candidate had said.

    A bucket with too little evidence follows all buckets of jobs that were seen before; jobs never seen do not, as they are
    another population: there the simplest serves.
    """
    chosen = [_champions(labels, _rows_of(buckets, bucket), candidates) for bucket in range(len(BUCKETS))]
    return Mix(tuple(shape for shape, _ in chosen), tuple(point for _, point in chosen))


def _rows_of(buckets: Rows, bucket: int) -> Rows:
    rows = np.flatnonzero(buckets == bucket)
    if len(rows) < BUCKET_RESIDUALS_MIN and bucket > 0:
        rows = np.flatnonzero(buckets > 0)
    return rows[-EVIDENCE_ROWS_MAX:] if len(rows) >= BUCKET_RESIDUALS_MIN else rows[:0]


def _champions(labels: Array, rows: Rows, candidates: Mapping[str, Array]) -> tuple[str, str]:
    truth = labels[rows]
    return champions({name: _scores(truth, points[rows]) for name, points in candidates.items()} if len(rows) else {})


def _scores(truth: Array, points: Array) -> Scores:
    point = middle(points)
    return Scores(
        pinball(truth, points),
        coverage(truth, points),
        float(np.mean(np.abs(np.exp(truth) - np.exp(point)))),
        float(np.mean(np.abs(truth - point) <= np.log(2.0))),
    )


def champions(scores: Mapping[str, Scores], models: Collection[str] | None = None) -> tuple[str, str]:
    """Who serves the distribution and who the point, by what all of them scored on the same jobs; the simplest without any.

    ``models`` are those that may serve a distribution (None: all): who ranks jobs may have been decided by more than scores.
    """
    if not scores:
        return SIMPLEST, SIMPLEST
    allowed = {name: score for name, score in scores.items() if models is None or name in (*BASELINE_NAMES, *models)}
    shape = _distribution(allowed)
    return shape, _point(scores, shape)


def _distribution(scores: Mapping[str, Scores]) -> str:
    """The least pinball loss; it takes the gate's margin to beat the simplest, and a model must beat every baseline and be
    calibrated.
    """
    baselines = [name for name in scores if name in BASELINE_NAMES]
    best = min(baselines, key=lambda name: scores[name].pinball)
    least = scores[best].pinball
    if not _lower(least, scores[SIMPLEST].pinball):
        best = SIMPLEST
    base_gap = abs(scores[best].coverage - COVERAGE)
    better = [
        name
        for name, score in scores.items()
        if name not in BASELINE_NAMES and _lower(score.pinball, least) and _calibrated(score.coverage, base_gap)
    ]
    return min(better, key=lambda name: scores[name].pinball, default=best)


def _lower(loss: float, than: float) -> bool:
    """Lower by the margin. Where nobody ever errs, nobody is better."""
    return loss < than and loss <= LOSS_RATIO_MAX * than


def _calibrated(covered: float, baseline_gap: float) -> bool:
    """Within the gate's range, or no farther from it than what would serve instead."""
    return COVERAGE_MIN <= covered <= COVERAGE_MAX or abs(covered - COVERAGE) <= baseline_gap


def _point(scores: Mapping[str, Scores], shape: str) -> str:
    """The simplest, unless others have a mean error lower by the margin and are within a factor of two as often: then of those
    the middle of the distribution that serves, or, where it is not one, the least mean error.
    """
    simplest = scores[SIMPLEST]
    better = [
        name
        for name, score in scores.items()
        if _lower(score.error, simplest.error) and score.within_2x >= simplest.within_2x - WITHIN_2X_LOSS_MAX
    ]
    return shape if shape in better else min(better, key=lambda name: scores[name].error, default=SIMPLEST)


def serve(run: Run) -> Served:
    """The test jobs of a run, each answered by the mix that was chosen when its chunk opened.

    The evidence of a chunk is what was predicted before it and had ended when it opened. Where that shows that walltimes are
    enforced, no answer lies beyond the job's own, as in the live predictor.
    """
    candidates = blended(run.all_points)
    labels, limits = run.all_labels, _log_walltimes(run)
    buckets = np.array([example.bucket for example in run.examples], dtype=int)
    ended_at_s = np.array([example.ended_at_s for example in run.examples])
    points = np.empty_like(candidates[SIMPLEST])
    predicted = np.empty(len(points))
    mixes: list[Mix] = []
    for chunk in run.chunks:
        known = np.flatnonzero(ended_at_s[: chunk.first] <= chunk.opened_s)
        known = _newest(known[np.argsort(ended_at_s[known], kind="stable")], buckets)
        ceiling = limits if _enforced(labels[known], limits[known]) else np.full(len(limits), math.inf)
        evidence = {name: np.minimum(said[known], ceiling[known, None]) for name, said in candidates.items()}
        mix = choose(labels[known], buckets[known], evidence)
        mixes.append(mix)
        for bucket in range(len(BUCKETS)):
            rows = chunk.first + np.flatnonzero(buckets[chunk.first : chunk.last] == bucket)
            points[rows] = np.minimum(candidates[mix.distribution[bucket]][rows], ceiling[rows, None])
            predicted[rows] = np.minimum(middle(candidates[mix.point[bucket]][rows]), ceiling[rows])
    return Served(points[run.test_start :], predicted[run.test_start :], tuple(mixes))


def _newest(known: Rows, buckets: Rows) -> Rows:
    """Of the rows, oldest first, those that can count as evidence: looking at all of them would cost time and memory."""
    kept = [np.flatnonzero(buckets[known] == bucket)[-EVIDENCE_ROWS_MAX:] for bucket in range(len(BUCKETS))]
    return known[np.sort(np.concatenate(kept))]


def _log_walltimes(run: Run) -> Array:
    walltimes_s = (example.submission.walltime_s for example in run.examples)
    return np.array([math.inf if walltime_s is None else math.log(walltime_s) for walltime_s in walltimes_s])


def _enforced(labels: Array, limits: Array) -> bool:
    """Whether walltimes end jobs: hardly any of those that asked for one ran clearly longer."""
    limited = np.isfinite(limits)
    if limited.sum() < BUCKET_RESIDUALS_MIN:
        return False
    return bool(np.mean(labels[limited] > limits[limited] + math.log(OVERTIME_RATIO)) <= OVERTIME_SHARE_MAX)
