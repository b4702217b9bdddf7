"""Who would have served the jobs of an evaluation, each by what had been scored when it was submitted."""

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from predictor.evaluation import middle
from predictor.evidence import Evidence, scores_of
from predictor.intervals import Array
from predictor.mix import SIMPLEST, Mix, blended
from predictor.prequential import Run
from predictor.rows import EndedRow
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

    Evidence is what was predicted before and had ended by then, as in the live predictor. Where the jobs that had ended when a
    chunk opened show that walltimes are enforced, no answer lies beyond the job's own.
    """
    candidates = blended(run.all_points, run.bases)
    evidence, walltimes = Evidence(tuple(candidates)), Walltimes(None)
    labels, limits = run.all_labels, _log_walltimes(run)
    points, predicted = np.empty_like(candidates[SIMPLEST]), np.empty(len(labels))
    by: list[tuple[str, str]] = []
    waiting: list[tuple[float, int, Array]] = []
    for chunk in run.chunks:
        rows = slice(chunk.first, chunk.last)
        _settle(run, waiting, chunk.opened_s, evidence, walltimes)
        ceiling = limits[rows, None] if walltimes.enforced else np.inf
        said = {name: np.minimum(own[rows], ceiling) for name, own in candidates.items()}
        middles = {name: middle(own) for name, own in said.items()}
        scored = np.stack([scores_of(labels[rows], own) for own in said.values()], axis=1)
        for row, example in enumerate(run.examples[rows], start=chunk.first):
            _settle(run, waiting, example.submission.submitted_at_s, evidence, walltimes)
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


def _settle(
    run: Run, waiting: list[tuple[float, int, Array]], now_s: float, evidence: Evidence, walltimes: Walltimes
) -> None:
    """What has ended by now shows who is good, and whether walltimes end jobs. ``waiting``: (end, row, scores), a heap."""
    while waiting and waiting[0][0] <= now_s:
        ended_at_s, row, scores = heappop(waiting)
        example = run.examples[row]
        evidence.add(example.bucket, scores)
        walltimes.observe(EndedRow(example.submission, ended_at_s, None, example.service_s))


def _log_walltimes(run: Run) -> Array:
    walltimes_s = (example.submission.walltime_s for example in run.examples)
    return np.array([math.inf if walltime_s is None else math.log(walltime_s) for walltime_s in walltimes_s])
