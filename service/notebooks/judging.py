"""Errors of predictions as figures that are easy to read: factors, shares, and calibration levels."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from predictor.aggregation import LEARNT
from predictor.intervals import Array, quantile_of
from predictor.rows import UNITS_MIN
from service.notebooks.source import HISTORY, Scored
from service.sim.value import expert_of

NEAR = math.log(2.0)
FAR_UNDER = math.log(4.0)


@dataclass(frozen=True, slots=True)
class Score:
    """The errors of some jobs. Factors are at least 1, shares from 0 to 1.

    ``median_factor`` and ``p90_factor``: half, or 90%, of the jobs are off by at most this. ``under_4x``: the job took more than
    four times the prediction. ``covered``: it ended between p10 and p90 (80% should).
    """

    jobs: int
    median_factor: float
    p90_factor: float
    within_2x: float
    under_4x: float
    covered: float
    below: float
    above: float


def score(rows: Sequence[Scored]) -> Score:
    """The errors of these jobs. Raises ValueError where there is none."""
    if not rows:
        raise ValueError("there is nothing to score: no job that was predicted has ended yet")
    errors = np.array([row.log_error for row in rows])
    off = np.abs(errors)
    below = float(np.mean([row.actual < row.p10 for row in rows]))
    above = float(np.mean([row.actual > row.p90 for row in rows]))
    return Score(
        jobs=len(rows),
        median_factor=float(np.exp(np.median(off))),
        p90_factor=float(np.exp(np.quantile(off, 0.9))),
        within_2x=float(np.mean(off <= NEAR)),
        under_4x=float(np.mean(errors < -FAR_UNDER)),
        covered=1.0 - below - above,
        below=below,
        above=above,
    )


def by_group(
    rows: Sequence[Scored], key: Callable[[Scored], str], *, most: int | None = None, jobs_min: int = 1
) -> dict[str, list[Scored]]:
    """Jobs by ``key``, the largest groups first: at most ``most``, each of at least ``jobs_min``."""
    groups: defaultdict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return dict([(name, group) for name, group in ordered if len(group) >= jobs_min][:most])


def by_history(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Jobs by how often their program had run before; buckets without a job are left out."""
    groups = by_group(rows, lambda row: row.history)
    return {name: groups[name] for name in HISTORY if name in groups}


def against_others(rows: Sequence[Scored], *, jobs_min: int = 50) -> dict[str, tuple[int, float]]:
    """For every baseline and model with predictions for at least ``jobs_min`` of these jobs: the number of jobs, and its mean
    pinball loss over that of the served predictions on them. Above 1: the served ones were better. The best first.

    Both are compared at the levels that are stored of the others. Versions of one model count together.
    """
    by_name: defaultdict[str, list[tuple[Scored, Sequence[float]]]] = defaultdict(list)
    for row in rows:
        for name, points in row.others.items() if row.points else ():
            # Earlier releases stored other levels.
            if len(points) == len(LEARNT):
                by_name[expert_of(name)].append((row, points))
    ratios = {name: (len(pairs), _ratio(pairs)) for name, pairs in by_name.items() if len(pairs) >= jobs_min}
    return dict(sorted(ratios.items(), key=lambda item: item[1][1]))


def _ratio(pairs: Sequence[tuple[Scored, Sequence[float]]]) -> float:
    labels = np.log([row.actual for row, _ in pairs])
    others = np.log(np.maximum([points for _, points in pairs], UNITS_MIN))
    served = np.stack([quantile_of(np.log(row.points), LEARNT) for row, _ in pairs])
    return _pinball(labels, others) / max(_pinball(labels, served), 1e-12)


def _pinball(labels: Array, quantiles: Array) -> float:
    """Mean pinball loss over the levels that are stored."""
    error = labels[:, None] - quantiles
    return float(np.maximum(LEARNT * error, (LEARNT - 1.0) * error).mean())


def over_time(rows: Sequence[Scored], parts: int) -> list[tuple[float, list[Scored]]]:
    """Parts with equally many jobs in the order of submission, each with the submission time of its middle job."""
    ordered = sorted(rows, key=lambda row: (row.submitted_at_s, row.job_id))
    edges = np.linspace(0, len(ordered), min(parts, len(ordered)) + 1).astype(int).tolist()
    pieces = [ordered[first:end] for first, end in pairwise(edges) if end > first]
    return [(piece[len(piece) // 2].submitted_at_s, piece) for piece in pieces]


def calibration_curve(rows: Sequence[Scored]) -> tuple[list[float], list[float]]:
    """Nominal levels, and the share of jobs that took no more than the predicted quantile of each.

    From the whole distributions where the source has them, else from p10, p50 and p90.
    """
    if all(len(row.points) > 1 for row in rows) and len({len(row.points) for row in rows}) == 1:
        points = np.array([row.points for row in rows])
        levels = ((np.arange(points.shape[1]) + 0.5) / points.shape[1]).tolist()
    else:
        points = np.array([(row.p10, row.p50, row.p90) for row in rows])
        levels = [0.1, 0.5, 0.9]
    actual = np.array([row.actual for row in rows])
    return levels, np.mean(actual[:, None] <= points, axis=0).tolist()


def answered_by(row: Scored) -> str:
    """The source of the prediction: a model, a kind of history, or attained service without a trusted prediction."""
    if not row.trusted:
        return "no trusted prediction: attained service"
    if row.model:
        return "a model"
    if row.source.startswith("recurrence"):
        return "history of the program"
    if "the user's" in row.source:
        return "history of the user"
    if row.source.startswith("cold start"):
        return "history of the cluster"
    return row.source.partition(":")[0]
