"""The cold-start ladder: what to say from history alone, and in words why.

Recurrence -> user -> cluster -> nothing. Each rung is honest about how little it rests on; below a minimum the estimate is shown
but not trusted, so the policy ranks the job by attained service instead.
"""

import math
from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from policies.model.estimate import Unit
from predictor.baselines import BASE
from predictor.dataset import Example, Knowledge
from predictor.declared import Evidence
from predictor.history import HistoryStore
from predictor.intervals import LEVELS, NORMAL_POINTS, POINTS, Array, mixture, quantile_of
from predictor.prequential import BaselineScores
from predictor.recurrence import Level, keys_of
from predictor.rows import UNITS_MAX, UNITS_MIN, Submission

RECURRENCE_SPREAD: Final = 0.5
"""Standard deviation of log error assumed for a recurrence until 50 errors are known: most recurrences are within 2x."""
USER_PROGRAMS_MIN: Final = 5
"""Programs of a user whose first runs make a distribution; with fewer the cluster's is wider and more honest."""
CLUSTER_JOBS_TRUSTED: Final = 20
"""Ended jobs (first runs, where so many are known) from which the cluster's distribution may rank jobs."""
DECLARED_SPREAD: Final = 0.1
"""Standard deviation of log error of a declaration that holds, until the user's own ratios are known."""
DECLARED_RATIOS_MIN: Final = 5
DECLARED_WORDS: Final = "; declared "
"""Begins what the source says of a declaration, behind what it says of history."""
LOG_MAX: Final = math.log(UNITS_MAX)


class Rung(NamedTuple):
    """``points`` in log units, where they come from in words, and whether they may rank jobs."""

    points: Array
    source: str
    trusted: bool


def amount(value: float, unit: Unit) -> str:
    """A number of units for people: ``5,200 iterations``, ``730 s``."""
    return f"{value:,.0f} {'iterations' if unit is Unit.ITERATIONS else 's'}"


def _runs(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def climb(knowledge: Knowledge, scores: BaselineScores, example: Example, unit: Unit) -> Rung | None:
    """The highest rung that holds; None while nothing has ended in this unit."""
    history = knowledge.history[unit]
    if not len(history.cluster):
        return None
    keys = keys_of(example.submission)
    for level, where in ((Level.RECURRENCE_GPUS, "recurrence"), (Level.RECURRENCE, "recurrence on other GPU counts")):
        group = history.group(level, keys[level])
        if group is not None:
            median = amount(math.exp(group.median), unit)
            points = scores.points(BASE, example.bucket, example.base, RECURRENCE_SPREAD)
            return Rung(points, f"{where}: {_runs(group.count, 'past run')}, median {median}", True)
    return _cold(history, keys[Level.USER], unit)


def _cold(history: HistoryStore, user: Hashable | None, unit: Unit) -> Rung:
    """A program that was never run: how the first runs of other programs went, this user's or everybody's."""
    own = history.first_runs_of(user)
    if own is not None and own.count >= USER_PROGRAMS_MIN:
        points = quantile_of(np.array(sorted(own.labels)), LEVELS)
        of = _runs(len(own.labels), "program")
        return Rung(points, f"cold start: median of the user's last {of}, {amount(math.exp(own.median), unit)}", True)
    enough = len(history.first_runs) >= CLUSTER_JOBS_TRUSTED
    labels = history.first_runs if enough else history.cluster
    of = f"{_runs(len(labels), 'program')} at their first run" if enough else _runs(len(labels), "job")
    source = f"cold start: cluster median of {of}, {amount(math.exp(labels.median), unit)}"
    trusted = len(labels) >= CLUSTER_JOBS_TRUSTED
    if not trusted:
        source += f" (too few to rank by; it takes {CLUSTER_JOBS_TRUSTED})"
    return Rung(np.array(labels.points(POINTS)), source, trusted)


def declared_points(declared: float, evidence: Evidence) -> Array:
    """Log points of a declaration: what it says, times how this user's declarations turned out."""
    if len(evidence.log_ratios) < DECLARED_RATIOS_MIN:
        return math.log(max(1.0, declared)) + NORMAL_POINTS * DECLARED_SPREAD
    ratios = np.array(sorted(evidence.log_ratios))
    return np.asarray(math.log(max(1.0, declared)) + quantile_of(ratios, LEVELS))


def weigh_declaration(rung: Rung | None, submission: Submission, evidence: Evidence) -> Rung | None:
    """Mix what the user declared into what history says, by the weight that the user's declarations earned.

    Only for iterations. Without any history a declaration is shown but not trusted: nobody has confirmed it yet.
    """
    declared = submission.declared_iterations
    if declared is None:
        return rung
    said = amount(declared, Unit.ITERATIONS)
    if evidence.exceeded:
        if rung is None:
            return None
        source = f"{rung.source}{DECLARED_WORDS}{said} not counted: too many were exceeded lately"
        return rung._replace(source=source)
    points = declared_points(declared, evidence)
    if rung is None:
        return Rung(points, f"declared: {said}, not confirmed by any past run", False)
    if evidence.weight <= 0.0:
        return rung
    source = f"{rung.source}{DECLARED_WORDS}{said} weighs {evidence.weight:.0%}"
    return Rung(mixture(rung.points, points, evidence.weight), source, rung.trusted)


def in_units(log_points: Array) -> Array:
    """Totals of log points: at least one unit, and finite."""
    return np.exp(np.minimum(np.maximum(log_points, 0.0), LOG_MAX))


def finish(rung: Rung, ceiling: float) -> tuple[float, ...]:
    """The points in units: at least one unit, finite, ascending, and at most ``ceiling``, where something ends the job."""
    return tuple(np.minimum(in_units(np.sort(rung.points)), max(UNITS_MIN, ceiling)).tolist())


def point_in_units(log_point: float, ceiling: float) -> float:
    """A point in units, under the same limits as :func:`finish` sets to a distribution."""
    return min(float(in_units(np.array(log_point))), max(UNITS_MIN, ceiling))


def unit_of(knowledge: Knowledge, submission: Submission, *, speed_known: bool) -> Unit:
    """Which head answers: iterations where this program reports them and a speed makes them time, else seconds.

    A program that was never run counts in iterations only if it declares them (its declaration is then evidence) and its speed
    is known: iterations of *other* programs say nothing about this one, their seconds do.
    """
    if not speed_known:
        return Unit.SERVICE_S
    key = keys_of(submission)[Level.RECURRENCE]
    ran = knowledge.history[Unit.SERVICE_S].group(Level.RECURRENCE, key)
    if ran is None:
        return Unit.ITERATIONS if submission.declared_iterations is not None else Unit.SERVICE_S
    reported = knowledge.history[Unit.ITERATIONS].group(Level.RECURRENCE, key)
    return Unit.ITERATIONS if reported is not None and 2 * reported.count >= ran.count else Unit.SERVICE_S
