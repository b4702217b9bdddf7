"""Revises the estimate of a running job by the total that the job itself reports. No model runs: a few look-ups per report.

A reported total is weighed like a declaration (:mod:`predictor.declarations`), by how this user's earlier ones turned out. A job
that exceeds the smallest total it ever reported is ranked by attained service, and its user's reports weigh nothing until they
hold again.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from policies.model.estimate import Estimate, Reported, Unit
from predictor.declarations import HELD_LOG_RATIO, DeclarationWeight
from predictor.fallback import amount, declared_points, points_in_units
from predictor.intervals import mixture
from predictor.pending import UNDECLARED, PendingPrediction, Revision
from predictor.rows import Submission, plausible, request_submission

CHANGE_LOG_MIN: Final = math.log(1.05)
"""A smaller change of the total is ignored: speeds are measured anew with each report."""


def with_reported_total(reported: Reported) -> Submission:
    """The submission as if the job had declared the total that it reports now."""
    return replace(request_submission(reported.request), declared_iterations=plausible(reported.total_iterations))


def revise(
    reported: Reported, pending: PendingPrediction, weight: DeclarationWeight, ceiling: float = math.inf
) -> Estimate | None:
    """The estimate of a job after its report; None where the report changes nothing. Records the change in ``pending``.

    ``pending`` is the job's first prediction, ``weight`` that of its user's reports, and ``ceiling`` the largest total that the
    job can reach before it is ended.
    """
    least, named = plausible(reported.least_iterations), reported.total_iterations
    if not pending.names or least is None or named is None:
        return None
    before, unweighted = reported.estimate, points_in_units(pending.base, ceiling)
    if reported.iterations > least * math.exp(HELD_LOG_RATIO):
        # A report that never counted, or no longer does, has no weight to lose.
        return None if _close(before.points, unweighted) else _exceeded(reported, pending, unweighted, least)
    total = _total(reported)
    if total is None or weight.weight <= 0.0 or not _has_changed(reported, pending, total):
        return None
    points = points_in_units(mixture(pending.base, declared_points(total, weight), weight.weight), ceiling)
    if _close(before.points, points):
        # The same report again after a restart.
        return None
    pending.revision = Revision(total, points)
    words = amount(named, Unit.ITERATIONS)
    source = f"{pending.source}; it reports {words} in all, which weighs {weight.weight:.0%}"
    return replace(before, points=points, source=source, trusted=pending.trusted, point=None)


def _has_changed(reported: Reported, pending: PendingPrediction, total: float) -> bool:
    """Whether the total differs from the one that counts, or the last revision was not applied."""
    last = pending.revision
    if last is not None:
        return last.points != reported.estimate.points or abs(math.log(total / last.total)) >= CHANGE_LOG_MIN
    declared = plausible(reported.request.spec.declared_iterations)
    if declared is None or UNDECLARED not in pending.names:
        return True
    return abs(math.log(total / declared)) >= CHANGE_LOG_MIN


def _close(points: Sequence[float], others: Sequence[float]) -> bool:
    """Equal up to the rounding of a logarithm."""
    return len(points) == len(others) and bool(np.allclose(points, others, rtol=1e-9, atol=0.0))


def _total(reported: Reported) -> float | None:
    """The reported total in the estimate's unit; None where it is unknown, or less than is done already."""
    named = plausible(reported.total_iterations)
    if named is None or not named >= reported.iterations:
        return None
    if reported.estimate.unit is Unit.ITERATIONS:
        return named
    if reported.seconds_per_iteration is None:
        return None
    return plausible(reported.service_s + (named - reported.iterations) * reported.seconds_per_iteration)


def _exceeded(reported: Reported, pending: PendingPrediction, points: tuple[float, ...], least: float) -> Estimate:
    pending.revision = None
    words = amount(least, Unit.ITERATIONS)
    source = f"{pending.source}; ranked by attained service: the job exceeded the {words} that it reported"
    return replace(reported.estimate, points=points, source=source, trusted=False, point=None)
