"""What a running job reports of its own total, mixed into what was said of it. No model is asked: a few look-ups a report.

A reported total is a declaration that comes late. It is weighed as declarations are (:mod:`predictor.declared`), by what this
user's earlier ones turned out to be worth, and a job that outlives the least that it ever claimed has lost it all: it is ranked
by the service it has had, and its user's next claims count for nothing until they hold again.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from policies.model.estimate import Estimate, Reported, Unit
from predictor.asked import UNDECLARED, Asked, Revision
from predictor.declared import HELD_LOG_RATIO, Evidence
from predictor.intervals import mixture
from predictor.ladder import Rung, amount, declared_points, finish
from predictor.rows import Submission, believable, request_submission

NEWS_LOG: Final = math.log(1.05)
"""A total that has changed by less says nothing new: speeds are measured anew with each report."""


def claimed(reported: Reported) -> Submission:
    """The job as if it had declared at its submission what it reports now."""
    return replace(request_submission(reported.request), declared_iterations=believable(reported.total_iterations))


def revise(reported: Reported, asked: Asked, evidence: Evidence, ceiling: float = math.inf) -> Estimate | None:
    """The estimate of a job after its report; None where the report changes nothing. Notes the change in ``asked``.

    ``asked`` is what was first said of the job, ``evidence`` what such a claim of its user is worth, and ``ceiling`` the largest
    total that the job can come to before it is ended.
    """
    least = believable(reported.least_iterations)
    if not asked.said or least is None:
        return None
    before, plain = reported.estimate, finish(Rung(asked.base, "", False), ceiling)
    if reported.iterations > least * math.exp(HELD_LOG_RATIO):
        # A claim that never counted, or that has lost its mass already, has nothing to lose.
        return None if _alike(before.points, plain) else _outlived(reported, asked, plain, least)
    total = _total(reported)
    if total is None or evidence.weight <= 0.0 or not _is_news(reported, asked, total):
        return None
    weighed = mixture(asked.base, declared_points(total, evidence), evidence.weight)
    points = finish(Rung(weighed, "", False), ceiling)
    if _alike(before.points, points):
        # Said again after a restart.
        return None
    asked.revision = Revision(total, points)
    claim = amount(reported.total_iterations, Unit.ITERATIONS)
    source = f"{asked.source}; it reports {claim} in all, which weighs {evidence.weight:.0%}"
    return replace(before, points=points, source=source, trusted=asked.trusted, point=None)


def _is_news(reported: Reported, asked: Asked, total: float) -> bool:
    """Whether the total is another than the one that counts; it is, where what was said last did not come to be."""
    last = asked.revision
    if last is not None:
        return last.points != reported.estimate.points or abs(math.log(total / last.total)) >= NEWS_LOG
    declared = believable(reported.request.spec.declared_iterations)
    if declared is None or UNDECLARED not in asked.said:
        return True
    return abs(math.log(total / declared)) >= NEWS_LOG


def _alike(points: Sequence[float], others: Sequence[float]) -> bool:
    """Equal but for the rounding of a logarithm."""
    return len(points) == len(others) and bool(np.allclose(points, others, rtol=1e-9, atol=0.0))


def _total(reported: Reported) -> float | None:
    """The total that was named, in the estimate's unit; None where it cannot be told, or more than that is done already."""
    named = believable(reported.total_iterations)
    if named is None or not named >= reported.iterations:
        return None
    if reported.estimate.unit is Unit.ITERATIONS:
        return named
    if reported.seconds_per_iteration is None:
        return None
    return believable(reported.service_s + (named - reported.iterations) * reported.seconds_per_iteration)


def _outlived(reported: Reported, asked: Asked, plain: tuple[float, ...], least: float) -> Estimate:
    asked.revision = None
    claim = amount(least, Unit.ITERATIONS)
    source = f"{asked.source}; ranked by attained service: it has outlived the {claim} that it claimed"
    return replace(reported.estimate, points=plain, source=source, trusted=False, point=None)
