"""Chooses the champions: per history bucket one candidate for the distribution and one for the point, by their past scores.

The simplest wins a bucket unless another beats it. Candidates are every baseline, every model, and two combinations:

- the **blend**: the mean, quantile by quantile, of the models whose errors differ most;
- the **consensus**: the blend, shifted to the median of the models' points and the recurrence median. A single outlier does not
  move it, so its mean error is the most stable.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.boosting import Boosting
from predictor.evaluation import middle
from predictor.forest import QuantileForest, RawQuantileForest
from predictor.intervals import Array
from predictor.recurrence import BUCKETS

BLEND: Final = "blend"
CONSENSUS: Final = "consensus"
COMBINED: Final = (BLEND, CONSENSUS)
"""Combinations of several models; they are not fitted or stored."""
BLENDED: Final = (Boosting.kind, QuantileForest.kind, RawQuantileForest.kind)
SIMPLEST: Final = "recurrence_median20"
"""Serves a bucket until another is better."""

LOSS_RATIO_MAX: Final = 0.97
"""The largest ratio of losses that wins a bucket, as in the promotion gate: less is noise on a few thousand jobs."""
CHANCE: Final = 0.5
"""The ratio is lowered by this over the root of the number of independent scored jobs: the effect of chance on few jobs."""
COVERAGE: Final = 0.8
COVERAGE_MIN: Final = 0.75
COVERAGE_MAX: Final = 0.88
WITHIN_2X_LOSS_MAX: Final = 0.01


class Scores(NamedTuple):
    """A candidate's scores on some jobs: mean pinball loss (log), share inside its 80% interval, mean absolute error of its
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


def blended(points: Mapping[str, Array], bases: Array) -> dict[str, Array]:
    """The candidates, and the combinations where at least two of their parts are among them.

    ``points`` (jobs, m) by candidate; ``bases`` (jobs,) are the log points of the recurrence median.
    """
    parts = [points[name] for name in BLENDED if name in points]
    if len(parts) < 2:
        return dict(points)
    blend = np.mean(parts, axis=0)
    agreed = np.median([*(middle(part) for part in parts), bases], axis=0)
    return {**points, BLEND: blend, CONSENSUS: blend + (agreed - middle(blend))[:, None]}


def champions(scores: Mapping[str, Scores], jobs: float, models: Collection[str] | None = None) -> tuple[str, str]:
    """The candidates that serve the distribution and the point, by the scores of all on the same jobs; the simplest without any.

    ``jobs`` is the number of independent jobs with as much information. ``models`` are those that may serve a distribution (None:
    all), because the model that ranks jobs may have been chosen by more than scores.
    """
    if not scores:
        return SIMPLEST, SIMPLEST
    ratio_max = LOSS_RATIO_MAX - CHANCE / math.sqrt(jobs)
    allowed = {name: score for name, score in scores.items() if models is None or name in (*BASELINE_NAMES, *models)}
    shape = _distribution(allowed, ratio_max)
    return shape, _point(scores, shape, ratio_max)


def _distribution(scores: Mapping[str, Scores], ratio_max: float) -> str:
    """The candidate with the least pinball loss. A baseline must beat the simplest by the margin; a model must beat every
    baseline by it and be calibrated. Of several such models the blend wins, unless one beats it by the margin too: which single
    model is best changes over weeks.
    """
    baselines = [name for name in scores if name in BASELINE_NAMES]
    best = min(baselines, key=lambda name: scores[name].pinball)
    least = scores[best].pinball
    if not _lower(least, scores[SIMPLEST].pinball, ratio_max):
        best = SIMPLEST
    base_gap = abs(scores[best].coverage - COVERAGE)
    better = [
        name
        for name, score in scores.items()
        if name not in (*BASELINE_NAMES, CONSENSUS)
        and _lower(score.pinball, least, ratio_max)
        and _calibrated(score.coverage, base_gap)
    ]
    first = min(better, key=lambda name: scores[name].pinball, default=best)
    return BLEND if BLEND in better and not _lower(scores[first].pinball, scores[BLEND].pinball, ratio_max) else first


def _lower(loss: float, than: float, ratio_max: float) -> bool:
    """Lower by the margin. A loss of 0 is never beaten."""
    return loss < than and loss <= ratio_max * than


def _calibrated(covered: float, baseline_gap: float) -> bool:
    """Within the gate's range, or no further from 80% than the candidate that would serve instead."""
    return COVERAGE_MIN <= covered <= COVERAGE_MAX or abs(covered - COVERAGE) <= baseline_gap


def _point(scores: Mapping[str, Scores], shape: str, ratio_max: float) -> str:
    """The consensus, where its mean error is below that of the simplest, its pinball loss not above, and its share within a
    factor of two hardly less. Else the simplest.

    A mean error depends on a few long jobs, so that the best by it is seldom the best again. The consensus is stable and needs
    no margin. Single models need it, and are used only without a consensus: the one that serves the distribution, or the best.
    """
    simplest = scores[SIMPLEST]
    good = [
        name
        for name, score in scores.items()
        if score.error < simplest.error
        and score.pinball <= simplest.pinball
        and score.within_2x >= simplest.within_2x - WITHIN_2X_LOSS_MAX
    ]
    if CONSENSUS in scores:
        return CONSENSUS if CONSENSUS in good else SIMPLEST
    better = [name for name in good if _lower(scores[name].error, simplest.error, ratio_max)]
    return shape if shape in better else min(better, key=lambda name: scores[name].error, default=SIMPLEST)
