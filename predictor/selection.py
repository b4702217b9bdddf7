"""Selects a job's estimate from those of all candidates: the champions' distribution and point, as far as they are trusted."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from policies.model.estimate import Estimate, Unit
from policies.model.placement import Slowdown
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import Example
from predictor.evaluation import middle
from predictor.fallback import LogEstimate
from predictor.head_state import ServedModel
from predictor.intervals import Array
from predictor.mix import SIMPLEST, Mix, blended
from predictor.pending import FALLBACK, baseline_name, tracked_shadows
from predictor.prequential import BaselineScores
from predictor.rows import Submission
from predictor.tracking import IntervalTracker
from predictor.training import TrainedHead, TrainedModel
from predictor.trust import Standing, Switch, TrustRung

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Query:
    """One request while it is being answered.

    ``history`` is the estimate of the fallback chain. ``raw`` are the models' log points before calibration, by version and
    kind; ``points`` the calibrated ones of every candidate, by the names of their shadows. ``estimate`` is the answer.
    """

    submission: Submission
    unit: Unit
    example: Example
    history: LogEstimate | None
    seconds_per_unit: float | None
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)
    points: dict[str, Array] = field(default_factory=dict)
    estimate: Estimate | None = None
    slowdown: Slowdown | None = None


class Choice(NamedTuple):
    """The selected estimate, its log point where that is not the middle, and the model's name ("": none)."""

    estimate: LogEstimate
    log_point: float | None
    model_version: str


def pinned_kind(model: TrainedModel, unit: Unit, kind: str | None) -> str | None:
    """The kind that serves all of a head because an operator promoted it. Raises ValueError where the model has no such kind."""
    head = model.heads.get(unit)
    if head is None:
        return None
    # A model without a champion serves only because an operator promoted it: then with its best kind.
    chosen = kind or (None if model.promotable else head.best)
    if chosen is not None and chosen not in head.kinds:
        raise ValueError(f"model {model.version} has no {chosen!r} for {unit}; it has {sorted(head.kinds)}")
    return chosen


def run_models(served: Sequence[ServedModel], queries: Sequence[Query]) -> None:
    """Run every model on the queries of its unit, in one call each."""
    for unit in Unit:
        ready = [query for query in queries if query.unit is unit and not math.isnan(query.example.base)]
        if not ready:
            continue
        matrix = np.array([query.example.features for query in ready])
        bases = np.array([query.example.base for query in ready])
        for each in served:
            head = each.model.heads.get(unit)
            if head is not None:
                run_head(each.model.version, head, matrix, bases, [query.raw for query in ready])


def run_head(
    version: str, head: TrainedHead, matrix: Array, bases: Array, raw: Sequence[dict[tuple[str, str], Array]]
) -> None:
    """Run every model of a head on rows of features, into ``raw``. A model that fails is left out."""
    for kind, estimator in head.estimators.items():
        try:
            residuals = estimator.predict_points(matrix)
        except Exception:
            _log.exception("model %s/%s failed; the fallback chain replaces it", version, kind)
            continue
        finite = np.asarray(np.isfinite(residuals).all(axis=1))
        for target, base, row, usable in zip(raw, bases, residuals, finite, strict=True):
            if usable:
                target[version, kind] = base + row


def calibrate(served: Sequence[ServedModel], queries: Sequence[Query]) -> None:
    """Add the models' calibrated points to each query: one array operation for all queries with the same models."""
    alike: dict[tuple[Unit, int, tuple[tuple[str, str], ...]], list[Query]] = {}
    for query in queries:
        alike.setdefault((query.unit, query.example.bucket, tuple(query.raw)), []).append(query)
    for (unit, bucket, available), group in alike.items():
        bases = np.array([query.example.base for query in group])
        for each in served:
            points = {
                kind: calibrator.calibrate(bucket, np.array([query.raw[each.model.version, kind] for query in group]))
                for kind, calibrator in each.calibrators.get(unit, {}).items()
                if (each.model.version, kind) in available
            }
            for kind, rows in blended(points, bases).items():
                for query, row in zip(group, rows, strict=True):
                    query.points[f"{each.model.version}/{kind}"] = row


def baseline_points(scores: BaselineScores, query: Query) -> dict[str, Array]:
    """The baselines' distributions, by the names of their shadows; empty while no job has ended."""
    if math.isnan(query.example.base):
        return {}
    bucket = query.example.bucket
    return {
        baseline_name(name): scores.points(index, bucket, query.example.baselines[index])
        for index, name in enumerate(BASELINE_NAMES)
    }


def choose(query: Query, version: str, mix: Mix, standing: Standing, tracker: IntervalTracker) -> Choice | None:
    """The selected estimate; None where nothing is known. Adds the points of the fallback chain and the champions to the query.

    ``version`` is the serving model's ("": none). The fallback chain replaces a champion without points. The ends of the
    champion's distribution are tracked.
    """
    history, bucket = query.history, query.example.bucket
    if history is None:
        return None
    shape, points, name = _champion(mix.distribution[bucket], query, version, history)
    point, point_points, _ = _champion(mix.point[bucket], query, version, history)
    query.points[FALLBACK] = history.points
    tracked = tracker.track(bucket, points)
    query.points |= tracked_shadows(version, tracked)
    if standing.rung is TrustRung.ATTAINED_SERVICE:
        source = f"{history.source}; ranked by attained service: {standing.reason}"
        return Choice(LogEstimate(history.points, source, False), None, "")
    if standing.rung is TrustRung.GROUP:
        aside = f"; {_words(shape)} is set aside: {standing.reason}" if shape != SIMPLEST else ""
        return Choice(history._replace(source=history.source + aside), None, "")
    # A champion model may rank jobs even where history alone is too thin to.
    chosen = LogEstimate(tracked.served, history.source + _served_by(shape, point), history.trusted or bool(name))
    return Choice(chosen, None if point == shape else float(middle(point_points)), name)


def _champion(champion: str, query: Query, version: str, history: LogEstimate) -> tuple[str, Array, str]:
    """The champion, its log points, and its full name where it is a model; those of the fallback chain where it has none."""
    is_model = champion not in BASELINE_NAMES
    name = f"{version}/{champion}" if is_model else baseline_name(champion)
    if champion == SIMPLEST or name not in query.points:
        return SIMPLEST, history.points, ""
    return champion, query.points[name], name if is_model else ""


def _served_by(shape: str, point: str) -> str:
    parts = [f"distribution by {_words(shape)}"] if shape != SIMPLEST else []
    parts += [f"point by {_words(point)}"] if point != shape else []
    return f"; {', '.join(parts)}" if parts else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def log_switch(unit: Unit, switch: Switch) -> None:
    """Log a change of trust with its numbers."""
    reason = switch.reason or "its record has recovered"
    _log.warning(
        "predictions of %s for jobs with %s past runs: %s now, not %s: %s",
        *(unit.value, switch.bucket, switch.after.words, switch.before.words, reason),
    )
