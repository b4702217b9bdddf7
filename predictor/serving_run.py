"""Who would have served the jobs of an evaluation, each by what had been scored when it was submitted."""

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from predictor.evaluation import middle
from predictor.evidence import Evidence, scores_of
from predictor.intervals import Array
from predictor.mix import SIMPLEST, Mix, blended
from predictor.prequential import Run
from predictor.rows import EndedRow
from predictor.tracking import IntervalTracker, Tracked
from predictor.walltimes import Walltimes


@dataclass(frozen=True, slots=True)
class Served:
    """What the mix would have answered to the test jobs of a run: ``points`` (jobs, 32) and ``predicted`` log points, and whose
    they were, by name. ``mix`` would serve after the last of them was submitted.
    """

    points: Array
    predicted: Array
    distribution_by: tuple[str, ...]
    point_by: tuple[str, ...]
    mix: Mix


def serve(run: Run) -> Served:
    """The test jobs of a run, each answered by the champions of its bucket at its submission.

    Evidence is what was predicted before and had ended by then, as in the live predictor; the ends of the distribution are
    tracked as there. Where the jobs that had ended when a chunk opened show that walltimes are enforced, no answer lies beyond
    the job's own.
    """
    candidates = blended(run.all_points, run.bases)
    state = _State(Evidence(tuple(candidates)), IntervalTracker(), Walltimes(None))
    evidence, walltimes = state.evidence, state.walltimes
    labels, limits = run.all_labels, _log_walltimes(run)
    points, predicted = np.empty_like(candidates[SIMPLEST]), np.empty(len(labels))
    by: list[tuple[str, str]] = []
    waiting: list[_Waiting] = []
    for chunk in run.chunks:
        rows = slice(chunk.first, chunk.last)
        state.settle(run, waiting, chunk.opened_s)
        ceiling = (limits[rows] if walltimes.enforced else np.full(chunk.last - chunk.first, np.inf))[:, None]
        said = {name: np.minimum(own[rows], ceiling) for name, own in candidates.items()}
        middles = {name: middle(own) for name, own in said.items()}
        scored = np.stack([scores_of(labels[rows], own) for own in said.values()], axis=1)
        for row, example in enumerate(run.examples[rows], start=chunk.first):
            state.settle(run, waiting, example.submission.submitted_at_s)
            shape, point = evidence.champions(example.bucket)
            tracked = state.tracker.track(example.bucket, candidates[shape][row])
            points[row] = np.minimum(tracked.served, ceiling[row - chunk.first])
            predicted[row] = middles[point][row - chunk.first]
            by.append((shape, point))
            heappush(waiting, _Waiting(example.ended_at_s, row, scored[row - chunk.first], tracked))
    tested = by[run.test_start :]
    return Served(
        points[run.test_start :],
        predicted[run.test_start :],
        tuple(shape for shape, _ in tested),
        tuple(point for _, point in tested),
        evidence.mix(),
    )


class _Waiting(NamedTuple):
    """A job that has not ended: what each candidate will have scored, and what was said of it before walltimes."""

    ended_at_s: float
    row: int
    scores: Array
    tracked: Tracked


@dataclass(frozen=True, slots=True)
class _State:
    """What the jobs that have ended show: who is good, where the ends belong, and whether walltimes end jobs."""

    evidence: Evidence
    tracker: IntervalTracker
    walltimes: Walltimes

    def settle(self, run: Run, waiting: list[_Waiting], now_s: float) -> None:
        """Take in what has ended by now. ``waiting`` is a heap; no two of its jobs have the same row."""
        while waiting and waiting[0].ended_at_s <= now_s:
            ended = heappop(waiting)
            example = run.examples[ended.row]
            assert example.label is not None, "tested jobs have ended"
            self.evidence.add(example.bucket, ended.scores)
            self.tracker.observe(example.bucket, example.label, ended.tracked)
            self.walltimes.observe(EndedRow(example.submission, ended.ended_at_s, None, example.service_s))


def _log_walltimes(run: Run) -> Array:
    walltimes_s = (example.submission.walltime_s for example in run.examples)
    return np.array([math.inf if walltime_s is None else math.log(walltime_s) for walltime_s in walltimes_s])
