"""The evaluation protocol: predict each job with what was known at its submission, retrain in chunks, score when it ends.

A label counts from the job's end. Models are fitted at the start of a chunk on the jobs that had ended; calibration and the
baselines' residuals roll on between. What remains of the run (calibrators, residuals) is what a service would have by then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import Example
from predictor.estimator import Estimator
from predictor.intervals import NORMAL_POINTS, POINTS, Array, ConformalCalibrator, PointResiduals

ROWS_MAX = 40_000
"""Jobs a model learns from: the newest ended."""
FIT_ROWS_MIN = 40
"""Below this a model is not even tried."""
PRIOR_SPREAD = 0.7
"""Standard deviation of a baseline's log error while fewer than 50 of its errors are known: half of the jobs within 1.6x."""

Factories = Mapping[str, Callable[[], Estimator]]


class BaselineScores:
    """The rolling residuals of every baseline: what turns their points into distributions."""

    def __init__(self) -> None:
        self._residuals = tuple(PointResiduals() for _ in BASELINE_NAMES)

    def observe(self, bucket: int, baselines: Sequence[float], label: float) -> None:
        """A job ended with this log label; its baselines had said these log points (NaN: they knew nothing)."""
        for residuals, point in zip(self._residuals, baselines, strict=True):
            if point == point:
                residuals.observe(bucket, label - point)

    def points(self, index: int, bucket: int, point: float, prior_spread: float = PRIOR_SPREAD) -> Array:
        """The distribution of a baseline that says ``point``: its residuals, or a log-normal prior while there are few."""
        shape = self._residuals[index].quantiles(bucket)
        return point + (NORMAL_POINTS * prior_spread if shape is None else shape)

    def known(self, index: int, bucket: int) -> bool:
        """Whether measured residuals (and not the prior) make its distribution."""
        return self._residuals[index].quantiles(bucket) is not None


def fit(factories: Factories, examples: Sequence[Example], seed: int) -> dict[str, Estimator]:
    """Every model on these examples (the newest :data:`ROWS_MAX` by end)."""
    newest = sorted(examples, key=lambda example: (example.ended_at_s, example.submission.job))[-ROWS_MAX:]
    features = np.array([example.features for example in newest])
    residuals = np.array([_label(example) - example.base for example in newest])
    models: dict[str, Estimator] = {}
    for kind, make in factories.items():
        models[kind] = make()
        models[kind].fit(features, residuals, seed)
    return models


def _label(example: Example) -> float:
    assert example.label is not None, "training and scoring see ended jobs only"
    return example.label


@dataclass(slots=True)
class Run:
    """What the protocol measured: labels and buckets in submission order, points per predictor, and the rolling state."""

    labels: Array
    buckets: list[int]
    points: dict[str, Array]
    calibrators: dict[str, ConformalCalibrator]
    scores: BaselineScores


@dataclass(slots=True)
class _Rolling:
    """Predictions that wait for their job's end, and what they teach when it comes."""

    scores: BaselineScores
    calibrators: dict[str, ConformalCalibrator]
    waiting: list[tuple[float, int, Example, dict[str, Array]]] = field(default_factory=list)

    def settle(self, now_s: float) -> None:
        while self.waiting and self.waiting[0][0] <= now_s:
            _, _, example, raw = heappop(self.waiting)
            self.scores.observe(example.bucket, example.baselines, _label(example))
            for kind, points in raw.items():
                self.calibrators[kind].observe(example.bucket, _label(example), points)

    def wait(self, example: Example, raw: dict[str, Array]) -> None:
        heappush(self.waiting, (example.ended_at_s, example.submission.job, example, raw))


def _chunks(start: int, test_start: int, end: int, chunks: int) -> Iterator[tuple[int, int]]:
    """The calibration chunk [start, test_start), then the test in ``chunks`` equal parts."""
    edges = [start, *(int(x) for x in np.linspace(test_start, end, chunks + 1))]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def run(examples: Sequence[Example], factories: Factories, *, test_start: int, chunks: int, seed: int) -> Run:
    """Run the protocol on labelled examples sorted by submission; positions from ``test_start`` on are the test.

    The fifth of the warm-up just before the test is predicted too, for calibration alone.
    """
    usable = [example for example in examples if example.base == example.base]
    test_start = max(0, test_start - (len(examples) - len(usable)))
    calibration_start = test_start - test_start // 5
    rolling = _Rolling(BaselineScores(), {kind: ConformalCalibrator() for kind in factories})
    for example in usable[:calibration_start]:
        rolling.wait(example, {})
    test: list[Example] = usable[test_start:]
    points = {name: np.empty((len(test), POINTS)) for name in (*BASELINE_NAMES, *factories)}
    for first, last in _chunks(calibration_start, test_start, len(usable), chunks):
        opened_s = usable[first].submission.submitted_at_s
        known = [example for example in usable[:first] if example.ended_at_s <= opened_s]
        models = fit(factories, known, seed) if len(known) >= FIT_ROWS_MIN else {}
        features = np.array([example.features for example in usable[first:last]])
        raw = {kind: model.predict_points(features) for kind, model in models.items()}
        for position in range(first, last):
            example = usable[position]
            rolling.settle(example.submission.submitted_at_s)
            said = {kind: example.base + rows[position - first] for kind, rows in raw.items()}
            if position >= test_start:
                _record(points, position - test_start, example, said, rolling)
            rolling.wait(example, said)
    rolling.settle(float("inf"))
    labels = np.array([_label(example) for example in test])
    return Run(labels, [example.bucket for example in test], points, rolling.calibrators, rolling.scores)


def _record(points: dict[str, Array], row: int, example: Example, said: dict[str, Array], rolling: _Rolling) -> None:
    for index, name in enumerate(BASELINE_NAMES):
        points[name][row] = rolling.scores.points(index, example.bucket, example.baselines[index])
    for kind in rolling.calibrators:
        # A model that had too little to learn from is scored as what would have served instead.
        points[kind][row] = (
            rolling.calibrators[kind].calibrate(example.bucket, said[kind])
            if kind in said
            else points["recurrence_median20"][row]
        )
