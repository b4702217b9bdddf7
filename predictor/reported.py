"""Revises the estimate of a running job by what the job itself reports: its total, and its loss. No model runs.

A reported total is weighed like a declaration (:mod:`predictor.declarations`), by how this user's earlier ones turned out. A job
that exceeds the smallest total it ever reported is ranked by attained service, and its user's reports weigh nothing until they
hold again. Losses change what the total is mixed with (:mod:`predictor.loss_curves`). Where no past tells about a job, its own
total is shown, and ranks nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from policies.model.estimate import Estimate, Reported, Unit
from predictor.declarations import HELD_LOG_RATIO, DeclarationWeight
from predictor.fallback import amount, declared_points, points_in_units
from predictor.intervals import Array, mixture, quantile_of
from predictor.loss_curves import LossCurves
from predictor.pending import UNDECLARED, PendingPrediction, Revision
from predictor.rows import Submission, plausible, request_submission

CHANGE_LOG_MIN: Final = math.log(1.05)
"""A smaller change of the total is ignored: speeds are measured anew with each report."""
_COMPARED_LEVELS: Final[Array] = np.array([0.1, 0.5, 0.9])


def with_reported_total(reported: Reported) -> Submission:
    """The submission as if the job had declared the total that it reports now, if it does."""
    submission = request_submission(reported.request)
    if reported.total_iterations is None:
        return submission
    return replace(submission, declared_iterations=plausible(reported.total_iterations))


def revise(
    reported: Reported,
    pending: PendingPrediction,
    weight: DeclarationWeight,
    curves: LossCurves,
    ceiling: float = math.inf,
) -> Estimate | None:
    """The estimate of a job after its report; None where the report changes nothing. Records the change in ``pending``.

    ``pending`` is the job's first prediction, ``weight`` that of its user's reports, ``curves`` those of ended runs, and
    ``ceiling`` the largest total that the job can reach before it is ended.
    """
    named = with_reported_total(reported).declared_iterations
    least, before = plausible(reported.least_iterations), reported.estimate
    exceeded = named is not None and least is not None and reported.iterations > least * math.exp(HELD_LOG_RATIO)
    unit = pending.unit if before is None else before.unit
    total = None if exceeded or weight.weight <= 0.0 else _total(reported, unit, named)
    if before is None or not pending.names:
        # A past stands behind what is trusted: one that is known since, or that of a release which stored other shadows.
        if named is None or total is None or pending.trusted or (before is not None and before.trusted):
            return None
        source = f"the job says {amount(named, Unit.ITERATIONS)} in all, not confirmed by any past run"
        return _unconfirmed(reported, unit, points_in_units(declared_points(total, weight), ceiling), source)
    changed = total is not None and _has_changed(before, reported, pending, total)
    # With a loss curve the estimate of a job that has exceeded its total changes as it goes on: once for each point is enough.
    told = exceeded and (before.trusted or reported.loss_curve is None)
    if not (told or changed or reported.curve_counts):
        return None
    base, source = _with_curve(reported, pending, curves)
    if base is pending.base and not (told or changed):
        return None
    if unit is not pending.unit:
        # It was predicted again since, in the other unit.
        seconds = plausible(reported.seconds_per_iteration)
        if seconds is None:
            return None
        base = base + math.log(seconds) * (1.0 if unit is Unit.SERVICE_S else -1.0)
    if exceeded:
        assert least is not None
        words = amount(least, Unit.ITERATIONS)
        source += f"; ranked by attained service: the job exceeded the {words} that it reported"
    elif total is not None:
        assert named is not None
        base = mixture(base, declared_points(total, weight), weight.weight)
        source += f"; it reports {amount(named, Unit.ITERATIONS)} in all, which weighs {weight.weight:.0%}"
    points = points_in_units(base, ceiling)
    # The same report again after a restart, or one that never counted and has no weight to lose. A loss may tell nothing new.
    if _close(before.points, points) or (not exceeded and not changed and _alike(reported, before, points)):
        return None
    pending.revision = None if total is None else Revision(total, points)
    trusted = (pending.trusted or before.trusted) and not exceeded
    return replace(before, points=points, source=source, trusted=trusted, point=None)


def _unconfirmed(reported: Reported, unit: Unit, points: tuple[float, ...], source: str) -> Estimate | None:
    """The estimate of a job of which nothing but its own total is known; None where that is the one it has."""
    before = reported.estimate
    if before is None:
        seconds = 1.0 if unit is Unit.SERVICE_S else None
        return Estimate(points, unit, source, seconds_per_unit=seconds, trusted=False)
    return None if _alike(reported, before, points) else replace(before, points=points, source=source, point=None)


def _with_curve(reported: Reported, pending: PendingPrediction, curves: LossCurves) -> tuple[Array, str]:
    """The log points of the total in the estimate's unit and their source: as predicted, unless the loss curve says more."""
    done, spent_s, per_s = reported.iterations, reported.service_s, 1.0
    if pending.unit is Unit.ITERATIONS:
        spent_s = done
    else:
        per_s = plausible(reported.seconds_per_iteration) or 0.0
    if reported.loss_curve is None or not per_s:
        return pending.base, pending.source
    left = (np.exp(pending.base) - spent_s) / per_s
    answer = curves.answer(reported, np.log(done + left[left > 0.0]))
    if answer is None:
        return pending.base, pending.source
    points = np.log(spent_s + np.maximum(0.0, np.exp(answer.log_points) - done) * per_s)
    return points, f"{pending.source}; loss curves of {answer.runs} past runs weigh {answer.weight:.0%}"


def _alike(reported: Reported, estimate: Estimate, points: Sequence[float]) -> bool:
    """Whether both estimates, without the totals that the job has exceeded, are equal within 5%."""
    done = reported.iterations if estimate.unit is Unit.ITERATIONS else reported.service_s
    left = [np.log([point for point in each if point > done]) for each in (estimate.points, points)]
    if not all(map(len, left)):
        return False
    before, after = (quantile_of(each, _COMPARED_LEVELS) for each in left)
    return bool(np.abs(after - before).max() < CHANGE_LOG_MIN)


def _has_changed(before: Estimate, reported: Reported, pending: PendingPrediction, total: float) -> bool:
    """Whether the total differs from the one that counts, or the last revision was not applied."""
    last = pending.revision
    if last is not None:
        return last.points != before.points or abs(math.log(total / last.total)) >= CHANGE_LOG_MIN
    declared = plausible(reported.request.spec.declared_iterations)
    if declared is None or UNDECLARED not in pending.names:
        return True
    return abs(math.log(total / declared)) >= CHANGE_LOG_MIN


def _close(points: Sequence[float], others: Sequence[float]) -> bool:
    """Equal up to the rounding of a logarithm."""
    return len(points) == len(others) and bool(np.allclose(points, others, rtol=1e-9, atol=0.0))


def _total(reported: Reported, unit: Unit, named: float | None) -> float | None:
    """The ``named`` total in this unit; None where it is unknown, or less than is done already."""
    if named is None or not named >= reported.iterations:
        return None
    if unit is Unit.ITERATIONS:
        return named
    if reported.seconds_per_iteration is None:
        return None
    return plausible(reported.service_s + (named - reported.iterations) * reported.seconds_per_iteration)
