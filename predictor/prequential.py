"""The prequential evaluation: predict each job with what was known at its submission, retrain in chunks, score at its end.

A label counts from the job's end. Models are fitted at the start of a chunk on the jobs that had ended; calibration and the
baselines' residuals are updated continuously. At the end of a run they are those of a service that saw the same jobs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import Example
from predictor.estimator import CensoredEstimator, Estimator
from predictor.intervals import NORMAL_POINTS, POINTS, Array, ConformalCalibrator, PointResiduals
from predictor.mix import blended

ROWS_MAX = 40_000
"""Jobs a model learns from: the newest ended."""
FIT_ROWS_MIN = 40
"""Jobs that a model needs to be fitted at all."""
PRIOR_SPREAD = 0.7
"""Standard deviation of a baseline's log error while fewer than 50 of its errors are known: half of the jobs within 1.6x."""

Factories = Mapping[str, Callable[[], Estimator]]


class BaselineScores:
    """The rolling residuals of every baseline, which turn its points into distributions."""

    def __init__(self) -> None:
        self._residuals = tuple(PointResiduals() for _ in BASELINE_NAMES)

    def observe(self, bucket: int, baselines: Sequence[float], label: float) -> None:
        """A job ended with this log label; ``baselines`` are the log points at its submission (NaN: unknown)."""
        for residuals, point in zip(self._residuals, baselines, strict=True):
            if point == point:
                residuals.observe(bucket, label - point)

    def points(self, index: int, bucket: int, point: float, prior_spread: float = PRIOR_SPREAD) -> Array:
        """The distribution of a baseline's ``point``: with its residuals, or a log-normal prior while there are few."""
        shape = self._residuals[index].quantiles(bucket)
        return point + (NORMAL_POINTS * prior_spread if shape is None else shape)


Running = Sequence[tuple[Example, float]]
"""Jobs that had not ended yet, each with the log of the work that it had certainly done."""


def fit(factories: Factories, examples: Sequence[Example], seed: int, running: Running = ()) -> dict[str, Estimator]:
    """Every model on these examples (the newest :data:`ROWS_MAX` by end), and on ``running`` jobs where it can use them."""
    newest = sorted(examples, key=lambda example: (example.ended_at_s, example.submission.job))[-ROWS_MAX:]
    features = np.array([example.features for example in newest])
    residuals = np.array([label_of(example) - example.base for example in newest])
    models: dict[str, Estimator] = {}
    for kind, make in factories.items():
        model = models[kind] = make()
        if running and isinstance(model, CensoredEstimator):
            open_features = np.array([example.features for example, _ in running])
            floors = np.array([floor - example.base for example, floor in running])
            model.fit_censored(features, residuals, open_features, floors, seed)
        else:
            model.fit(features, residuals, seed)
    return models


def label_of(example: Example) -> float:
    """The log label of an ended job."""
    assert example.label is not None, "training and scoring see ended jobs only"
    return example.label


class Chunk(NamedTuple):
    """Rows [first, last) of a run, predicted by models that were fitted at ``opened_s``, the first of their submissions."""

    first: int
    last: int
    opened_s: float


@dataclass(slots=True)
class Run:
    """The predictions of the protocol, in submission order: first the rows for calibration alone, from ``test_start`` the test.

    ``all_points`` (rows, 32) per predictor. ``fit_s`` and ``predict_s`` are processor seconds, of each fit and in all. The
    calibrators and the baselines' residuals are those at the end.
    """

    examples: Sequence[Example]
    test_start: int
    chunks: Sequence[Chunk]
    all_points: dict[str, Array]
    calibrators: dict[str, ConformalCalibrator]
    scores: BaselineScores
    fit_s: dict[str, list[float]]
    predict_s: dict[str, float]

    @property
    def all_labels(self) -> Array:
        """Log label of each row."""
        return np.array([label_of(example) for example in self.examples])

    @property
    def labels(self) -> Array:
        """Log label of each test row."""
        return self.all_labels[self.test_start :]

    @property
    def bases(self) -> Array:
        """Log point of the recurrence median for each row."""
        return np.array([example.base for example in self.examples])

    @property
    def buckets(self) -> list[int]:
        """History bucket of each test row."""
        return [example.bucket for example in self.examples[self.test_start :]]

    @property
    def points(self) -> dict[str, Array]:
        """The points of each predictor for the test rows."""
        return {name: points[self.test_start :] for name, points in self.all_points.items()}

    @property
    def candidates(self) -> dict[str, Array]:
        """The same, with the combinations of several models."""
        return blended(self.points, self.bases[self.test_start :])


@dataclass(slots=True)
class _Rolling:
    """Predictions that wait for their job's end, and the state that learns from them."""

    scores: BaselineScores
    calibrators: dict[str, ConformalCalibrator]
    waiting: list[tuple[float, int, Example, dict[str, Array]]] = field(default_factory=list)

    def advance(self, now_s: float) -> None:
        while self.waiting and self.waiting[0][0] <= now_s:
            _, _, example, raw = heappop(self.waiting)
            self.scores.observe(example.bucket, example.baselines, label_of(example))
            for kind, points in raw.items():
                self.calibrators[kind].observe(example.bucket, label_of(example), points)

    def wait(self, example: Example, raw: dict[str, Array]) -> None:
        heappush(self.waiting, (example.ended_at_s, example.submission.job, example, raw))


def _chunks(start: int, test_start: int, end: int, chunks: int) -> Iterator[tuple[int, int]]:
    """The calibration chunk [start, test_start), then the test in ``chunks`` equal parts."""
    edges = [start, *(int(x) for x in np.linspace(test_start, end, chunks + 1))]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def run(
    examples: Sequence[Example],
    factories: Factories,
    *,
    test_start: int,
    chunks: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run the protocol on labelled examples sorted by submission; positions from ``test_start`` on are the test.

    The last fifth of the warm-up is predicted too, for calibration and to score the candidates. ``on_progress`` is called after
    each chunk with the number of rows done and in all.
    """
    usable = [example for example in examples if example.base == example.base]
    test_start = max(0, test_start - (len(examples) - len(usable)))
    start = test_start - test_start // 5
    rolling = _Rolling(BaselineScores(), {kind: ConformalCalibrator() for kind in factories})
    for example in usable[:start]:
        rolling.wait(example, {})
    predicted = usable[start:]
    outcome = Run(
        examples=predicted,
        test_start=test_start - start,
        chunks=[
            Chunk(first - start, last - start, usable[first].submission.submitted_at_s)
            for first, last in _chunks(start, test_start, len(usable), chunks)
        ],
        all_points={name: np.empty((len(predicted), POINTS)) for name in (*BASELINE_NAMES, *factories)},
        calibrators=rolling.calibrators,
        scores=rolling.scores,
        fit_s={kind: [] for kind in factories},
        predict_s=dict.fromkeys((*BASELINE_NAMES, *factories), 0.0),
    )
    for chunk in outcome.chunks:
        submitted = usable[: start + chunk.first]
        known = [example for example in submitted if example.ended_at_s <= chunk.opened_s]
        floors = (
            (example, example.floor(chunk.opened_s)) for example in submitted if example.ended_at_s > chunk.opened_s
        )
        running = [(example, floor) for example, floor in floors if floor is not None]
        raw = _predict_chunk(outcome, chunk, known, running, factories, seed)
        for row in range(chunk.first, chunk.last):
            example = predicted[row]
            rolling.advance(example.submission.submitted_at_s)
            own = {kind: example.base + rows[row - chunk.first] for kind, rows in raw.items()}
            _record(outcome, row, example, own)
            rolling.wait(example, own)
        if on_progress is not None:
            on_progress(chunk.last, len(predicted))
    rolling.advance(float("inf"))
    return outcome


def calibrate_in_order(
    examples: Sequence[Example], raw: Mapping[str, Array], calibrators: Mapping[str, ConformalCalibrator]
) -> dict[str, Array]:
    """The ``raw`` log points (jobs, 32) of each model, calibrated for jobs in order of submission.

    The calibrators learn from each job that has ended by the next submission, as they do live.
    """
    points = {kind: np.empty_like(own) for kind, own in raw.items()}
    waiting: list[tuple[float, int]] = []
    for row, example in enumerate(examples):
        while waiting and waiting[0][0] <= example.submission.submitted_at_s:
            ended = heappop(waiting)[1]
            for kind, calibrator in calibrators.items():
                calibrator.observe(examples[ended].bucket, label_of(examples[ended]), raw[kind][ended])
        for kind, calibrator in calibrators.items():
            points[kind][row] = calibrator.calibrate(example.bucket, raw[kind][row])
        heappush(waiting, (example.ended_at_s, row))
    return points


def _predict_chunk(
    outcome: Run, chunk: Chunk, known: Sequence[Example], running: Running, factories: Factories, seed: int
) -> dict[str, Array]:
    """Residual points of each model, fitted on the jobs that are known, for the rows of the chunk."""
    raw: dict[str, Array] = {}
    features = np.array([example.features for example in outcome.examples[chunk.first : chunk.last]])
    for kind in factories if len(known) >= FIT_ROWS_MIN else ():
        started_s = time.process_time()
        model = fit({kind: factories[kind]}, known, seed, running)[kind]
        fitted_s = time.process_time()
        raw[kind] = model.predict_points(features)
        outcome.fit_s[kind].append(fitted_s - started_s)
        outcome.predict_s[kind] += time.process_time() - fitted_s
    return raw


def _record(outcome: Run, row: int, example: Example, raw: dict[str, Array]) -> None:
    for index, name in enumerate(BASELINE_NAMES):
        started_s = time.perf_counter()
        outcome.all_points[name][row] = outcome.scores.points(index, example.bucket, example.baselines[index])
        outcome.predict_s[name] += time.perf_counter() - started_s
    for kind, calibrator in outcome.calibrators.items():
        # A model with too few jobs to be fitted is scored as the baseline that would have served instead.
        outcome.all_points[kind][row] = (
            calibrator.calibrate(example.bucket, raw[kind])
            if kind in raw
            else outcome.all_points["recurrence_median20"][row]
        )
