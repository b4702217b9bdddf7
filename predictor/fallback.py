"""The past that a prediction rests on, in words, and declarations of the total.

Recurrence -> user -> cluster -> nothing. Below a minimum of jobs an estimate is shown but not trusted, and the policy ranks
the job by attained service instead.
"""

import math
from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from policies.model.estimate import Unit
from predictor.dataset import Knowledge
from predictor.declarations import DeclarationWeight
from predictor.experts import USER_PROGRAMS_MIN
from predictor.history import HistoryStore
from predictor.intervals import POINT_LEVELS, Array, as_labels, mixture, probits, quantile_of
from predictor.recurrence import Level, keys_of
from predictor.rows import UNITS_MIN, Submission

CLUSTER_JOBS_TRUSTED: Final = 20
"""Ended jobs (first runs, where so many are known) from which the cluster's distribution may rank jobs."""
ARGUMENTS_LOG_MIN: Final = math.log(1.1)
"""A smaller change of the past's median by the runs that were started alike is not told."""
DECLARED_SPREAD: Final = 0.1
"""Standard deviation of log error of a declaration that holds, until the user's own ratios are known."""
DECLARED_RATIOS_MIN: Final = 5
DECLARED_WORDS: Final = "; declared "
"""Separates the description of history from that of the declaration in a source."""
_NORMAL_POINTS: Final[Array] = probits(POINT_LEVELS)


class Basis(NamedTuple):
    """The nearest past of a job in words, and whether it is enough to rank the job without a model."""

    source: str
    trusted: bool


TOO_FEW: Final = f" (too few to rank jobs; {CLUSTER_JOBS_TRUSTED} are needed)"
"""Follows the words of a past that is not trusted."""


class LogEstimate(NamedTuple):
    """32 equal-mass ``points`` in log units, their source in words, and whether they may rank jobs."""

    points: Array
    source: str
    trusted: bool


def amount(value: float, unit: Unit) -> str:
    """A number of units for people: ``5,200 iterations``, ``730 s``."""
    return f"{value:,.0f} {'iterations' if unit is Unit.ITERATIONS else 's'}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def basis_of(knowledge: Knowledge, submission: Submission, unit: Unit) -> Basis | None:
    """The nearest past of a job; None while no job has ended in this unit."""
    history = knowledge.history[unit]
    if not len(history.cluster):
        return None
    keys = keys_of(submission)
    for level, where in ((Level.RECURRENCE_GPUS, "recurrence"), (Level.RECURRENCE, "recurrence on other GPU counts")):
        group = history.group(level, keys[level])
        if group is not None:
            median = amount(math.exp(group.median), unit)
            source = f"{where}: {_counted(group.count, 'past run')}, median {median}"
            scaled = history.by_arguments(submission)
            if abs(scaled - group.median) >= ARGUMENTS_LOG_MIN:
                # Within the limits of an estimate: numbers of a command line are as small and as large as users like.
                total = float(in_units(np.array(scaled)))
                source += f", {amount(total, unit)} by those started alike"
            return Basis(source, True)
    return _cold_start(history, keys[Level.USER], unit)


def _cold_start(history: HistoryStore, user: Hashable | None, unit: Unit) -> Basis:
    """The past of a new program: the first runs of other programs, of this user or of all users."""
    own = history.first_runs_of(user)
    if own is not None and own.count >= USER_PROGRAMS_MIN:
        median = amount(math.exp(own.median), unit)
        return Basis(f"cold start: median of the user's last {_counted(len(own.labels), 'program')}, {median}", True)
    enough = len(history.first_runs) >= CLUSTER_JOBS_TRUSTED
    labels = history.first_runs if enough else history.cluster
    of = f"{_counted(len(labels), 'program')} at their first run" if enough else _counted(len(labels), "job")
    source = f"cold start: cluster median of {of}, {amount(math.exp(labels.median), unit)}"
    return Basis(source, len(labels) >= CLUSTER_JOBS_TRUSTED)


def declared_points(declared: float, weight: DeclarationWeight) -> Array:
    """Log points of a declared total: the total times the ratios of this user's earlier declarations."""
    if len(weight.log_ratios) < DECLARED_RATIOS_MIN:
        return math.log(max(1.0, declared)) + _NORMAL_POINTS * DECLARED_SPREAD
    ratios = np.array(sorted(weight.log_ratios))
    return np.asarray(math.log(max(1.0, declared)) + quantile_of(ratios, POINT_LEVELS))


def mix_declaration(
    history: LogEstimate | None, submission: Submission, weight: DeclarationWeight
) -> LogEstimate | None:
    """The mixture of history and the declared iterations, by the weight of the user's declarations.

    Without any history a declaration is shown but not trusted, because nothing confirms it.
    """
    declared = submission.declared_iterations
    if declared is None:
        return history
    words = amount(declared, Unit.ITERATIONS)
    if weight.missing:
        if history is None:
            return None
        more = f"{weight.missing} more of the user's declarations {'holds' if weight.missing == 1 else 'hold'}"
        source = f"{history.source}{DECLARED_WORDS}{words} not counted until {more}"
        return history._replace(source=source)
    points = declared_points(declared, weight)
    if history is None:
        return LogEstimate(points, f"declared: {words}, not confirmed by any past run", False)
    if weight.weight <= 0.0:
        return history
    source = f"{history.source}{DECLARED_WORDS}{words} weighs {weight.weight:.0%}"
    return LogEstimate(mixture(history.points, points, weight.weight), source, history.trusted)


def in_units(log_points: Array, ceiling: float = math.inf) -> Array:
    """Totals of log points: finite, at least one unit, and at most ``ceiling`` (at least one unit itself)."""
    return np.minimum(np.exp(as_labels(log_points)), max(UNITS_MIN, ceiling))


def points_in_units(log_points: Array, ceiling: float) -> tuple[float, ...]:
    """The points of an estimate, ascending, within the limits of :func:`in_units`."""
    return tuple(in_units(np.sort(log_points), ceiling).tolist())


def unit_of(knowledge: Knowledge, submission: Submission, *, speed_known: bool) -> Unit:
    """The unit to predict: iterations where the program reports them and its speed is known, else seconds.

    A new program is predicted in iterations only if it declares them and its speed is known: the iterations of other programs
    say nothing about it, their seconds do.
    """
    if not speed_known:
        return Unit.SERVICE_S
    key = keys_of(submission)[Level.RECURRENCE]
    ran = knowledge.history[Unit.SERVICE_S].group(Level.RECURRENCE, key)
    if ran is None:
        return Unit.ITERATIONS if submission.declared_iterations is not None else Unit.SERVICE_S
    reported = knowledge.history[Unit.ITERATIONS].group(Level.RECURRENCE, key)
    return Unit.ITERATIONS if reported is not None and 2 * reported.count >= ran.count else Unit.SERVICE_S
