"""From what everybody says of a job to the one answer: the champions' distribution and point, as far as they are trusted."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from policies.model.estimate import Unit
from predictor.asked import LADDER, baseline_name, tracked_shadows
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import Example
from predictor.evaluation import middle
from predictor.intervals import Array
from predictor.ladder import Rung
from predictor.mix import SIMPLEST, Mix, blended
from predictor.prequential import BaselineScores
from predictor.rows import Submission
from predictor.served import ServedModel
from predictor.tracking import IntervalTracker
from predictor.training import TrainedHead, TrainedModel
from predictor.trust import Standing, Switch, TrustRung

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plan:
    """One request on its way to an answer. ``raw`` are the models' log points before calibration, by version and kind, ``said``
    those after it, by full names.
    """

    submission: Submission
    unit: Unit
    example: Example
    rung: Rung | None
    seconds_per_unit: float | None
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)
    said: dict[str, Array] = field(default_factory=dict)


class Choice(NamedTuple):
    """Who answers: the rung with its source in words, a log point that is not its middle, and the model's name ("": none)."""

    rung: Rung
    log_point: float | None
    model_version: str


def insisted_kind(model: TrainedModel, unit: Unit, kind: str | None) -> str | None:
    """The kind that serves all of a head because a person promoted it. Raises ValueError where the model has no such kind."""
    head = model.heads.get(unit)
    if head is None:
        return None
    # A model of which no head passed the gate serves only because a person promoted it: then with the best it has.
    chosen = kind or (None if model.promotable else head.best)
    if chosen is not None and chosen not in head.kinds:
        raise ValueError(f"model {model.version} has no {chosen!r} for {unit}; it has {sorted(head.kinds)}")
    return chosen


def run_models(served: Sequence[ServedModel], plans: Sequence[Plan]) -> None:
    """Every model on every job of its unit, in one call each."""
    for unit in Unit:
        ready = [plan for plan in plans if plan.unit is unit and not math.isnan(plan.example.base)]
        if not ready:
            continue
        matrix = np.array([plan.example.features for plan in ready])
        bases = np.array([plan.example.base for plan in ready])
        for each in served:
            head = each.model.heads.get(unit)
            if head is not None:
                run_head(each.model.version, head, matrix, bases, [plan.raw for plan in ready])


def run_head(
    version: str, head: TrainedHead, matrix: Array, bases: Array, raw: Sequence[dict[tuple[str, str], Array]]
) -> None:
    """Every model of a head on rows of features, into ``raw``. A model that breaks says nothing."""
    for kind, estimator in head.estimators.items():
        try:
            residuals = estimator.predict_points(matrix)
        except Exception:
            _log.exception("model %s/%s failed; the ladder answers for it", version, kind)
            continue
        finite = np.asarray(np.isfinite(residuals).all(axis=1))
        for target, base, row, spoke in zip(raw, bases, residuals, finite, strict=True):
            if spoke:
                target[version, kind] = base + row


def calibrate(served: Sequence[ServedModel], plans: Sequence[Plan]) -> None:
    """What the models say of each job, into its ``said``: one array operation for all jobs of which the same models spoke."""
    alike: dict[tuple[Unit, int, tuple[tuple[str, str], ...]], list[Plan]] = {}
    for plan in plans:
        alike.setdefault((plan.unit, plan.example.bucket, tuple(plan.raw)), []).append(plan)
    for (unit, bucket, spoke), jobs in alike.items():
        for each in served:
            points = {
                kind: calibrator.calibrate(bucket, np.array([plan.raw[each.model.version, kind] for plan in jobs]))
                for kind, calibrator in each.calibrators.get(unit, {}).items()
                if (each.model.version, kind) in spoke
            }
            bases = np.array([plan.example.base for plan in jobs])
            for kind, rows in blended(points, bases).items():
                name = each.version(kind)
                for plan, row in zip(jobs, rows, strict=True):
                    plan.said[name] = row


def baseline_points(scores: BaselineScores, plan: Plan) -> dict[str, Array]:
    """What the baselines say of the job, by their names as shadows; nothing while nothing has ended."""
    if math.isnan(plan.example.base):
        return {}
    bucket = plan.example.bucket
    return {
        baseline_name(name): scores.points(index, bucket, plan.example.baselines[index])
        for index, name in enumerate(BASELINE_NAMES)
    }


def choose(
    plan: Plan, said: dict[str, Array], version: str, mix: Mix, standing: Standing, tracker: IntervalTracker
) -> Choice | None:
    """The answer; None where nothing is known. Adds what the ladder and the champions say to ``said``.

    ``version`` is the serving model's ("": none). A champion that could not speak is replaced by the ladder. The ends of its
    distribution are tracked.
    """
    rung = plan.rung
    if rung is None:
        return None
    shape, points, name = _spoken(mix.distribution[plan.example.bucket], said, version, rung)
    point, point_points, _ = _spoken(mix.point[plan.example.bucket], said, version, rung)
    said[LADDER] = rung.points
    tracked = tracker.track(plan.example.bucket, points)
    said |= tracked_shadows(version, tracked)
    log_point = None if point == shape else float(middle(point_points))
    if standing.rung is TrustRung.ATTAINED_SERVICE:
        source = f"{rung.source}; ranked by attained service: {standing.reason}"
        return Choice(Rung(rung.points, source, False), None, "")
    if standing.rung is TrustRung.GROUP:
        aside = f"; {_words(shape)} is set aside: {standing.reason}" if shape != SIMPLEST else ""
        return Choice(rung._replace(source=rung.source + aside), None, "")
    # A model that serves has earned it, even of programs of which history alone knows too little.
    trusted = rung.trusted or bool(name)
    return Choice(Rung(tracked.served, rung.source + _served_by(shape, point), trusted), log_point, name)


def _spoken(champion: str, said: Mapping[str, Array], version: str, rung: Rung) -> tuple[str, Array, str]:
    """The champion, its log points, and its full name where it is a model; the ladder's where it said nothing."""
    is_model = champion not in BASELINE_NAMES
    name = f"{version}/{champion}" if is_model else baseline_name(champion)
    if champion == SIMPLEST or name not in said:
        return SIMPLEST, rung.points, ""
    return champion, said[name], name if is_model else ""


def _served_by(shape: str, point: str) -> str:
    parts = [f"distribution by {_words(shape)}"] if shape != SIMPLEST else []
    parts += [f"point by {_words(point)}"] if point != shape else []
    return f"; {', '.join(parts)}" if parts else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def log_switch(unit: Unit, switch: Switch) -> None:
    """One line a change of trust, with its numbers."""
    reason = switch.reason or "its record has recovered"
    _log.warning(
        "predictions of %s for jobs with %s past runs: %s now, not %s: %s",
        *(unit.value, switch.bucket, switch.after.words, switch.before.words, reason),
    )
