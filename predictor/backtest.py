"""What the champions would have predicted for the jobs of an evaluation, chosen by the scores known at each submission."""

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from predictor.candidate_scores import CandidateScores, scores_of
from predictor.evaluation import middle
from predictor.intervals import Array
from predictor.mix import SIMPLEST, Mix, blended
from predictor.prequential import Run, label_of
from predictor.rows import EndedRow
from predictor.tracking import IntervalTracker, Tracked
from predictor.walltimes import Walltimes


@dataclass(frozen=True, slots=True)
class Backtest:
    """The predictions for the test jobs of a run: ``points`` (jobs, 32) and ``predicted`` log points, and the names of the
    candidates that made them. ``mix`` are the champions after the last submission.
    """

    points: Array
    predicted: Array
    distribution_by: tuple[str, ...]
    point_by: tuple[str, ...]
    mix: Mix


class _Waiting(NamedTuple):
    """A job that has not ended: the scores of each candidate, and the prediction before the walltime limits it."""

    ended_at_s: float
    row: int
    scores: Array
    tracked: Tracked


@dataclass(frozen=True, slots=True)
class _State:
    """What is learnt from jobs that have ended: the candidates' scores, the tracked ends, and whether walltimes end jobs."""

    run: Run
    scores: CandidateScores
    tracker: IntervalTracker
    walltimes: Walltimes
    waiting: list[_Waiting]

    def advance(self, now_s: float) -> None:
        """Learn from the jobs that have ended by now."""
        while self.waiting and self.waiting[0].ended_at_s <= now_s:
            ended = heappop(self.waiting)
            example = self.run.examples[ended.row]
            self.scores.add(example.bucket, ended.scores)
            self.tracker.observe(example.bucket, label_of(example), ended.tracked)
            self.walltimes.observe(EndedRow(example.submission, ended.ended_at_s, None, example.service_s))


def backtest(run: Run) -> Backtest:
    """Predict each test job of a run by the champions of its bucket at its submission.

    The champions are chosen as in the live predictor, by the predictions of jobs that had ended by then, and the ends of the
    distribution are tracked as there. Where the jobs that had ended when a chunk opened show that walltimes are enforced, a
    prediction is limited to the job's walltime.
    """
    candidates = blended(run.all_points, run.bases)
    state = _State(run, CandidateScores(tuple(candidates)), IntervalTracker(), Walltimes(None), [])
    labels, limits = run.all_labels, _log_walltimes(run)
    points, predicted = np.empty_like(candidates[SIMPLEST]), np.empty(len(labels))
    by: list[tuple[str, str]] = []
    for chunk in run.chunks:
        rows = slice(chunk.first, chunk.last)
        state.advance(chunk.opened_s)
        unlimited = np.full(chunk.last - chunk.first, np.inf)
        ceiling = (limits[rows] if state.walltimes.enforced else unlimited)[:, None]
        limited = {name: np.minimum(own[rows], ceiling) for name, own in candidates.items()}
        middles = {name: middle(own) for name, own in limited.items()}
        scores = np.stack([scores_of(labels[rows], own) for own in limited.values()], axis=1)
        for offset, example in enumerate(run.examples[rows]):
            row = chunk.first + offset
            state.advance(example.submission.submitted_at_s)
            shape, point = state.scores.champions(example.bucket)
            tracked = state.tracker.track(example.bucket, candidates[shape][row])
            points[row] = np.minimum(tracked.served, ceiling[offset])
            predicted[row] = middles[point][offset]
            by.append((shape, point))
            heappush(state.waiting, _Waiting(example.ended_at_s, row, scores[offset], tracked))
    shapes, tested_points = zip(*by[run.test_start :], strict=True)
    return Backtest(points[run.test_start :], predicted[run.test_start :], shapes, tested_points, state.scores.mix())


def _log_walltimes(run: Run) -> Array:
    walltimes_s = (example.submission.walltime_s for example in run.examples)
    return np.array([math.inf if walltime_s is None else math.log(walltime_s) for walltime_s in walltimes_s])
