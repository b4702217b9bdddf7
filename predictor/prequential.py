"""The prequential evaluation: predict each job with what was known at its submission, retrain in chunks, score at its end.

A label counts from the job's end. Models are fitted at the start of a chunk on the jobs that had ended; the baselines' residuals
and the weights of the aggregation are updated continuously. At the end they are those of a service that saw the same jobs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from predictor.aggregation import CENSORED_MAX, EXPECTED_EVERY_S, LEARNT, Aggregation, Bursts, Censored
from predictor.conformal import SpreadCalibration
from predictor.dataset import Example
from predictor.estimator import Estimator
from predictor.experts import BASIC, BaselineScores
from predictor.intervals import LEVELS, Array, as_labels, at_levels
from predictor.recurrence import BUCKETS, error_group
from predictor.rows import EndedRow
from predictor.walltimes import Walltimes

ROWS_MAX = 40_000
"""Jobs a model learns from: the newest ended."""
FIT_ROWS_MIN = 40
"""Jobs that a model needs to be fitted at all."""
WARM_CHUNKS = 3
"""One retraining in the warm-up for so many in the test."""

Factories = Mapping[str, Callable[[], Estimator]]


def fit(factories: Factories, examples: Sequence[Example], seed: int) -> dict[str, Estimator]:
    """Every model on these examples (the newest :data:`ROWS_MAX` by end)."""
    newest = sorted(examples, key=lambda example: (example.ended_at_s, example.submission.job))[-ROWS_MAX:]
    features = np.array([example.features for example in newest])
    residuals = np.array([label_of(example) - example.base for example in newest])
    models: dict[str, Estimator] = {}
    for kind, make in factories.items():
        models[kind] = make()
        models[kind].fit(features, residuals, seed)
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
    """The predictions of the protocol, in submission order: first rows of the warm-up, from ``test_start`` on the test.

    ``quantiles`` (rows, experts, 25) of ``experts``; NaN where one has no answer. ``fit_s`` and ``predict_s`` are processor
    seconds, of each fit and in all.
    """

    examples: Sequence[Example]
    test_start: int
    chunks: Sequence[Chunk]
    experts: tuple[str, ...]
    quantiles: Array
    fit_s: dict[str, list[float]]
    predict_s: dict[str, float]

    @property
    def labels(self) -> Array:
        """Log label of each test row."""
        return np.array([label_of(example) for example in self.examples[self.test_start :]])

    @property
    def buckets(self) -> list[int]:
        """History bucket of each test row."""
        return [example.bucket for example in self.examples[self.test_start :]]

    @property
    def tested(self) -> dict[str, Array]:
        """The quantiles of each expert for the test rows. Where one has no answer, those of the first, which would have
        served."""
        of_test = self.quantiles[self.test_start :]
        first = of_test[:, 0]
        return {
            name: np.where(np.isnan(of_test[:, index]), first, of_test[:, index])
            for index, name in enumerate(self.experts)
        }


def _chunks(start: int, test_start: int, end: int, chunks: int) -> Iterator[tuple[int, int]]:
    """The warm-up [start, test_start) in a third as many equal parts as the test, then the test in ``chunks``; 0: all in one."""
    if not chunks:
        test_start = end
    warm = np.linspace(start, test_start, max(1, chunks // WARM_CHUNKS) + 1)[:-1]
    edges = [int(edge) for edge in (*warm, *np.linspace(test_start, end, max(1, chunks) + 1))]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def run(
    examples: Sequence[Example],
    factories: Factories,
    *,
    test_start: int,
    chunks: int,
    seed: int,
    warm_rows_max: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run the protocol on labelled examples sorted by submission; positions from ``test_start`` on are the test.

    The second half of the warm-up (at most ``warm_rows_max`` rows) is predicted too, so that the aggregation has learnt when the
    test begins. With 0 ``chunks`` the models fitted at the start of the warm-up predict the test too. ``on_progress`` is
    called after each chunk with the number of rows done and in all.
    """
    usable = [example for example in examples if example.base == example.base]
    test_start = max(0, test_start - (len(examples) - len(usable)))
    start = max(test_start // 2, 0 if warm_rows_max is None else test_start - warm_rows_max)
    predicted = usable[start:]
    experts = (*BASIC, *factories)
    outcome = Run(
        examples=predicted,
        test_start=test_start - start,
        chunks=[
            Chunk(first - start, last - start, usable[first].submission.submitted_at_s)
            for first, last in _chunks(start, test_start, len(usable), chunks)
        ],
        experts=experts,
        quantiles=np.full((len(predicted), len(experts), len(LEVELS)), math.nan),
        fit_s={kind: [] for kind in factories},
        predict_s=dict.fromkeys(experts, 0.0),
    )
    _basic(usable, start, outcome)
    for chunk in outcome.chunks:
        known = [each for each in usable[: start + chunk.first] if each.ended_at_s <= chunk.opened_s]
        _predict_chunk(outcome, chunk, known, factories, seed)
        if on_progress is not None:
            on_progress(chunk.last, len(predicted))
    return outcome


def _basic(usable: Sequence[Example], start: int, outcome: Run) -> None:
    """The predictions of the experts that need no training, in the order of submission."""
    scores = BaselineScores()
    waiting: list[tuple[float, int]] = []
    for position, example in enumerate(usable):
        while waiting and waiting[0][0] <= example.submission.submitted_at_s:
            ended = usable[heappop(waiting)[1]]
            scores.observe(ended.bucket, ended.baselines, label_of(ended))
        if position >= start:
            outcome.quantiles[position - start, : len(BASIC)] = scores.basic(
                example.bucket, example.baselines, example.empirical
            )
        heappush(waiting, (example.ended_at_s, position))


def _predict_chunk(outcome: Run, chunk: Chunk, known: Sequence[Example], factories: Factories, seed: int) -> None:
    """The predictions of each model, fitted on the jobs that are known, for the rows of the chunk."""
    if len(known) < FIT_ROWS_MIN:
        return
    rows = outcome.examples[chunk.first : chunk.last]
    features, bases = np.array([each.features for each in rows]), np.array([each.base for each in rows])
    for kind in factories:
        started_s = time.process_time()
        model = fit({kind: factories[kind]}, known, seed)[kind]
        fitted_s = time.process_time()
        outcome.quantiles[chunk.first : chunk.last, outcome.experts.index(kind)] = as_labels(
            bases[:, None] + model.predict_quantiles(features)
        )
        outcome.fit_s[kind].append(fitted_s - started_s)
        outcome.predict_s[kind] += time.process_time() - fitted_s


@dataclass(frozen=True, slots=True)
class Served:
    """What an aggregation served for the rows of a run: ``quantiles`` (rows, 25), and ``combined``, the same before calibration.
    ``aggregation`` and ``calibration`` are those at the end, ``weights`` the weights of the median per history bucket at the
    opening of each chunk (chunks, buckets, experts).
    """

    experts: tuple[str, ...]
    quantiles: Array
    combined: Array
    aggregation: Aggregation
    calibration: SpreadCalibration
    weights: Array

    def tested(self, run: Run) -> Array:
        """The quantiles of the test rows."""
        return self.quantiles[run.test_start :]


class HeadTest(NamedTuple):
    """The test run of a head, what was served in it, and what would have been served ``without`` models."""

    run: Run
    served: Served
    without: Served


def serve(run: Run, experts: Sequence[str] | None = None) -> Served:
    """Aggregate the predictions of a run (None: of all its experts) as the live predictor does: with what has ended by each
    submission, and how far the others have come, as if each ran without interruption until its end. Where the ended jobs show
    that walltimes are enforced, a prediction is limited to the job's walltime.
    """
    names = run.experts if experts is None else tuple(experts)
    chosen = run.quantiles[:, [run.experts.index(name) for name in names]]
    learnt = at_levels(chosen, LEARNT)
    aggregation, calibration, bursts, walltimes = Aggregation(names), SpreadCalibration(), Bursts(), Walltimes(None)
    served, mixed = np.empty((len(run.examples), len(LEVELS))), np.empty((len(run.examples), len(LEVELS)))
    combined = np.empty((len(run.examples), len(LEARNT)))
    opened = {chunk.first for chunk in run.chunks}
    weights: list[Array] = []
    waiting: list[tuple[float, int]] = []
    expected_s = -math.inf
    for row, example in enumerate(run.examples):
        now_s = example.submission.submitted_at_s
        while waiting and waiting[0][0] <= now_s:
            _learn(run, heappop(waiting)[1], learnt, combined, aggregation, calibration, bursts, walltimes)
        if now_s >= expected_s + EXPECTED_EVERY_S:
            expected_s = now_s
            censored = _censored(run, sorted(at for _, at in waiting), now_s, learnt, combined, bursts)
            aggregation.expect(censored)
            calibration.expect(censored)
        if row in opened:
            middle = LEARNT.tolist().index(0.5)
            weights.append(np.stack([aggregation.weights(bucket)[:, middle] for bucket in range(len(BUCKETS))]))
        mixed[row] = as_labels(aggregation.combine(example.bucket, chosen[row][None])[0])
        combined[row] = at_levels(mixed[row], LEARNT)
        ceiling = walltimes.ceiling(example.submission.walltime_s, example.unit)
        served[row] = as_labels(np.minimum(calibration.calibrate(example.bucket, mixed[row]), math.log(ceiling)))
        heappush(waiting, (example.ended_at_s, row))
    while waiting:
        _learn(run, heappop(waiting)[1], learnt, combined, aggregation, calibration, bursts, walltimes)
    aggregation.expect(())
    calibration.expect(())
    return Served(names, served, mixed, aggregation, calibration, np.array(weights))


def _censored(
    run: Run, rows: Sequence[int], now_s: float, learnt: Array, combined: Array, bursts: Bursts
) -> list[Censored]:
    """What is known at ``now_s`` of the jobs in these rows, which have not ended, as far as they have begun."""
    begun = [(row, now_s - begun_s) for row in rows if (begun_s := _begun_s(run.examples[row])) < now_s][-CENSORED_MAX:]
    examples = [run.examples[row] for row, _ in begun]
    counts = bursts.censored(
        (error_group(*each.submission.recurrence), each.submission.submitted_at_s) for each in examples
    )
    return [
        Censored(each.bucket, _log_rate(each) + math.log(come_s), combined[row], learnt[row], *count)
        for (row, come_s), each, count in zip(begun, examples, counts, strict=True)
    ]


def _begun_s(example: Example) -> float:
    # Rounded: what is known now must not depend on when the job will end, not even by the rounding of a difference.
    return round(example.ended_at_s - example.service_s, 3)


def _log_rate(example: Example) -> float:
    """The log of units per second: 0 for seconds."""
    return round(label_of(example) - math.log(example.service_s), 9)


def _learn(
    run: Run,
    row: int,
    learnt: Array,
    combined: Array,
    aggregation: Aggregation,
    calibration: SpreadCalibration,
    bursts: Bursts,
    walltimes: Walltimes,
) -> None:
    example = run.examples[row]
    submission = example.submission
    group = error_group(*submission.recurrence)
    share, delay = bursts.ended(group, submission.submitted_at_s, example.ended_at_s)
    aggregation.delayed(delay)
    aggregation.observe(example.bucket, label_of(example), learnt[row], combined[row], share)
    calibration.observe(example.bucket, label_of(example), combined[row])
    walltimes.observe(EndedRow(submission, example.ended_at_s, None, example.service_s))
