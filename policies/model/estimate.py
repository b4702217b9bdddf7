"""Estimates: a predictor's distribution of a job's *total* work, as equal-mass sample points."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite

from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.placement import Slowdown, SpanSeconds
from policies.model.value import value


class Unit(StrEnum):
    """What an estimate counts."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    ITERATIONS = "iterations"
    SERVICE_S = "service_s"


@value
class Estimate:
    """Equal-mass points of the total, ascending and positive (a point prediction is one point).

    ``seconds_per_unit`` is the predictor's view at the best placement: seconds per iteration, or 1.0 for
    ``Unit.SERVICE_S``; None = not known yet (the policy falls back on the job's own model, then on 1.0).
    ``source`` describes the origin of the points ("recurrence: 14 past runs"), ``model_version`` is the model that made
    them ("" for a baseline). ``trusted`` is False if the policy should rank by attained service instead. ``point`` is the
    single number to show (None: the median of the distribution); ranks do not use it.
    """

    points: tuple[float, ...]
    unit: Unit
    source: str
    model_version: str = ""
    seconds_per_unit: float | None = None
    trusted: bool = True
    point: float | None = None
    slowdown: Slowdown | None = None

    def quantile(self, level: float) -> float:
        """The point at ``level`` in [0, 1] (nearest rank on the equal-mass points)."""
        count = len(self.points)
        return self.points[min(count - 1, max(0, int(level * count)))]

    @property
    def median(self) -> float:
        """The middle point."""
        return self.quantile(0.5)


@value
class PredictionRequest:
    """A job to predict: only what is known at its submission."""

    job: JobId
    spec: JobSpec
    submitted_at_s: float


@value
class Attained:
    """How far an unfinished job has come, over all attempts: it takes more than that. ``iterations`` None: it reports none."""

    request: PredictionRequest
    service_s: float
    iterations: float | None


@value
class LossCurve:
    """Reported training losses: ``losses[i]`` after ``iterations[i]``, ascending, each at least :data:`LOSS_GROWTH` times the one
    before. At least one point.
    """

    iterations: tuple[float, ...]
    losses: tuple[float, ...]


LOSS_GROWTH = 1.25
"""So a curve of a million iterations has at most 62 points."""


def with_loss(curve: LossCurve | None, iteration: float, loss: float) -> LossCurve | None:
    """The curve with one more point; None where the iteration is too near its last one, or the point is not a finite number."""
    if not (1.0 <= iteration < inf and isfinite(loss)):
        return None
    if curve is None:
        return LossCurve((iteration,), (loss,))
    if iteration < curve.iterations[-1] * LOSS_GROWTH:
        return None
    return LossCurve((*curve.iterations, iteration), (*curve.losses, loss))


@value
class Reported:
    """What a running job has reported: a total, its loss, or a first speed at a span. The weight of a total depends on the
    accuracy of the user's earlier reports.

    ``estimate`` ranks it now; None where nothing was known of it. ``iterations`` are done and ``service_s`` spent by then.
    ``total_iterations`` is the newest reported (or declared) total, ``least_iterations`` the least of all; None without a new
    one, or without any.
    ``seconds_per_iteration`` is measured; None before the first measurement. ``seconds_by_span`` is given if a span is new there.
    ``curve_counts``: the ``loss_curve`` is to be counted now: it has a new point, or the estimate was made again without it.
    """

    request: PredictionRequest
    estimate: Estimate | None
    iterations: float
    service_s: float
    total_iterations: float | None
    least_iterations: float | None
    seconds_per_iteration: float | None = None
    seconds_by_span: SpanSeconds | None = None
    loss_curve: LossCurve | None = None
    curve_counts: bool = False


@dataclass(frozen=True, slots=True)
class ShadowPrediction:
    """The prediction of another model: stored and scored, never used."""

    model_version: str
    points: tuple[float, ...]


@value
class Prediction:
    """An estimate with what is needed to audit it later."""

    estimate: Estimate
    feature_schema: str = ""
    features: tuple[float, ...] = ()
    shadows: Sequence[ShadowPrediction] = ()


@value
class EndedJob:
    """The label of an ended job, for any exit reason.

    ``iterations`` is None for a job that reported no progress. ``service_s`` is running time whose work counted, and after a
    failure or a stop also that since the last checkpoint: what a job needs until it ends so. ``reported_iterations`` is the
    least total in its progress reports; None without any. ``loss_curve``: None without losses.
    """

    job: JobId
    spec: JobSpec
    submitted_at_s: float
    ended_at_s: float
    iterations: float | None
    service_s: float
    final_state: str
    seconds_per_iteration: float | None = None
    gpu_type: str | None = None
    servers_spanned: int | None = None
    reported_iterations: float | None = None
    seconds_by_span: SpanSeconds | None = None
    loss_curve: LossCurve | None = None
