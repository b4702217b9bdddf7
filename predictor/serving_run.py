"""Who would have served the jobs of an evaluation, each by what had been scored when it was submitted."""

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from predictor.evaluation import middle
from predictor.evidence import EVIDENCE_ROWS_MAX, Evidence, scores_of
from predictor.intervals import BUCKET_RESIDUALS_MIN, Array
from predictor.mix import SIMPLEST, Mix, blended
from predictor.prequential import Chunk, Run

OVERTIME_RATIO: Final = 1.05
"""Schedulers grant a few minutes of grace before they end a job."""
OVERTIME_SHARE_MAX: Final = 0.01


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

    Evidence is what was predicted before and had ended by then, as in the live predictor. Where the jobs that had ended when a
    chunk opened show that walltimes are enforced, no answer lies beyond the job's own.
    """
    candidates = blended(run.all_points, run.bases)
    evidence = Evidence(tuple(candidates))
    labels, limits = run.all_labels, _log_walltimes(run)
    points, predicted = np.empty_like(candidates[SIMPLEST]), np.empty(len(labels))
    by: list[tuple[str, str]] = []
    waiting: list[tuple[float, int, Array]] = []
    for chunk in run.chunks:
        rows = slice(chunk.first, chunk.last)
        ceiling = limits[rows, None] if _enforced(run, chunk, labels, limits) else np.inf
        said = {name: np.minimum(own[rows], ceiling) for name, own in candidates.items()}
        middles = {name: middle(own) for name, own in said.items()}
        scored = np.stack([scores_of(labels[rows], own) for own in said.values()], axis=1)
        for row, example in enumerate(run.examples[rows], start=chunk.first):
            while waiting and waiting[0][0] <= example.submission.submitted_at_s:
                _, ended, scores = heappop(waiting)
                evidence.add(run.examples[ended].bucket, scores)
            shape, point = evidence.champions(example.bucket)
            points[row], predicted[row] = said[shape][row - chunk.first], middles[point][row - chunk.first]
            by.append((shape, point))
            heappush(waiting, (example.ended_at_s, row, scored[row - chunk.first]))
    tested = by[run.test_start :]
    return Served(
        points[run.test_start :],
        predicted[run.test_start :],
        tuple(shape for shape, _ in tested),
        tuple(point for _, point in tested),
        evidence.mix(),
    )


def _log_walltimes(run: Run) -> Array:
    walltimes_s = (example.submission.walltime_s for example in run.examples)
    return np.array([math.inf if walltime_s is None else math.log(walltime_s) for walltime_s in walltimes_s])


def _enforced(run: Run, chunk: Chunk, labels: Array, limits: Array) -> bool:
    """Whether walltimes end jobs: hardly any of the newest that asked for one and had ended ran clearly longer."""
    ended = [row for row in range(chunk.first) if run.examples[row].ended_at_s <= chunk.opened_s]
    limited = np.array([row for row in ended if limits[row] < math.inf][-EVIDENCE_ROWS_MAX:], dtype=np.intp)
    if len(limited) < BUCKET_RESIDUALS_MIN:
        return False
    return bool(np.mean(labels[limited] > limits[limited] + math.log(OVERTIME_RATIO)) <= OVERTIME_SHARE_MAX)
