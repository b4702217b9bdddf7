"""The live predictor: one batch in, one estimate each out; learns from every job that ends; swaps models while it runs.

It satisfies the engine's ``Predictor`` port by shape. Safe to call from several threads. Loading this module imports neither
scikit-learn nor xgboost: a service without a model yet, and a simulation without one, pay nothing for them.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, ShadowPrediction, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor import features
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import UNITS, Example, Knowledge, replay
from predictor.drift import DriftMonitor
from predictor.intervals import Array, ConformalCalibrator, quantile_of
from predictor.ladder import Rung, climb, finish, in_units, unit_of, weigh_declaration
from predictor.mix import blended
from predictor.prequential import ROWS_MAX, BaselineScores
from predictor.rows import Submission, ended_row, newest_by_submission, request_submission
from predictor.throughput_table import Throughput, ThroughputRow, ThroughputTable
from predictor.training import TrainedHead, TrainedModel

PENDING_MAX: Final = 100_000
"""Predictions remembered until their job ends (about 2 kB each); beyond that the oldest are not scored any more."""
SHADOW_LEVELS: Final[Array] = (np.arange(8) + 0.5) / 8
"""Shadows keep 8 equal-mass points: enough to score them, a quarter of the space."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictorStatus:
    """What serves now. ``champions`` and ``drifting`` per unit; ``known_jobs`` are labels in history."""

    model_version: str
    champions: Mapping[Unit, str]
    drifting: Mapping[Unit, bool]
    recent_log_error: Mapping[Unit, float]
    known_jobs: Mapping[Unit, int]
    pending: int


class _Served:
    """A model in service: its own copy of the calibrators, which roll on, and who is champion of each head."""

    def __init__(self, model: TrainedModel, kind: str | None, champion: bool) -> None:
        self.model = model
        self.calibrators: dict[Unit, dict[str, ConformalCalibrator]] = {
            unit: {name: deepcopy(c) for name, c in head.calibrators.items()} for unit, head in model.heads.items()
        }
        self.champions: dict[Unit, str] = {}
        self.insisted = kind is not None or not model.promotable
        for unit, head in model.heads.items():
            # A model of which no head passed the gate serves only because a person promoted it: then with the best it has.
            chosen = kind or head.champion or (head.best if self.insisted else None)
            if champion and chosen is not None:
                if chosen not in head.kinds:
                    raise ValueError(f"model {model.version} has no {chosen!r} for {unit}; it has {sorted(head.kinds)}")
                self.champions[unit] = chosen

    def version(self, kind: str) -> str:
        return f"{self.model.version}/{kind}"

    def champion(self, unit: Unit, bucket: int) -> str | None:
        """The kind that answers for jobs of this unit and history bucket; None where the ladder does."""
        kind = self.champions.get(unit)
        if kind is None or self.insisted or self.model.heads[unit].beats_baselines(kind, bucket):
            return kind
        return None


@dataclass(slots=True)
class _Asked:
    """A job that was predicted and has not ended: what to score when it does. ``raw`` are uncalibrated log points.

    ``baselines`` holds the history bucket and the baselines' log points of each unit: every head learns, whichever answered.
    """

    baselines: dict[Unit, tuple[int, tuple[float, ...]]]
    unit: Unit
    served_log: float | None = None
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)


@dataclass(slots=True)
class _Plan:
    """One request on its way to an answer."""

    submission: Submission
    unit: Unit
    example: Example
    rung: Rung | None
    seconds_per_unit: float | None
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)


def _shadows(said: Sequence[tuple[str, Array]]) -> tuple[ShadowPrediction, ...]:
    """What every baseline and model says, thinned to :data:`SHADOW_LEVELS`, in units. One array operation for all."""
    if not said:
        return ()
    totals = in_units(quantile_of(np.stack([points for _, points in said]), SHADOW_LEVELS)).tolist()
    return tuple(ShadowPrediction(name, tuple(row)) for (name, _), row in zip(said, totals, strict=True))


class LivePredictor:
    """Predicts from history and, once one is promoted, from a model. Call :meth:`warm` before the first prediction."""

    def __init__(self, model: TrainedModel | None = None) -> None:
        self._lock = threading.RLock()
        self._knowledge = Knowledge()
        self._scores = {unit: BaselineScores() for unit in UNITS}
        self._drift = {unit: DriftMonitor() for unit in UNITS}
        self._throughput = ThroughputTable()
        self._asked: OrderedDict[JobId, _Asked] = OrderedDict()
        self._served: tuple[_Served, ...] = ()
        if model is not None:
            self.use(model)

    # Learning

    def warm(self, ended: Iterable[EndedJob], open_jobs: Iterable[PredictionRequest] = ()) -> None:
        """Load history at start: ended jobs in any order (the newest 40,000 count) and the jobs that are unfinished now."""
        rows = newest_by_submission(map(ended_row, ended), ROWS_MAX)
        with self._lock:
            seen = [(unit, example) for _, found in replay(rows, self._knowledge) for unit, example in found.items()]
            for unit, example in sorted(seen, key=lambda pair: (pair[1].ended_at_s, pair[1].submission.job)):
                if example.label is not None:
                    self._scores[unit].observe(example.bucket, example.baselines, example.label)
            for row in sorted(rows, key=lambda row: (row.ended_at_s, row.submission.job)):
                self._throughput.observe_row(row)
            for request in open_jobs:
                self._knowledge.submit(request_submission(request))

    def ended(self, label: EndedJob) -> None:
        """A job ended: score what was said of it, then learn from it. A job that never ran teaches nothing."""
        row = ended_row(label)
        with self._lock:
            asked = self._asked.pop(label.job, None)
            if asked is not None:
                for unit in UNITS:
                    total = row.label(unit)
                    if total is not None:
                        self._score(asked, unit, math.log(total))
            self._knowledge.end(row)
            self._throughput.observe_row(row)

    def _score(self, asked: _Asked, unit: Unit, label: float) -> None:
        bucket, baselines = asked.baselines[unit]
        self._scores[unit].observe(bucket, baselines, label)
        if unit is not asked.unit:
            return
        if asked.served_log is not None:
            self._drift[unit].observe(label - asked.served_log)
        for served in self._served:
            for kind, calibrator in served.calibrators.get(unit, {}).items():
                raw = asked.raw.get((served.model.version, kind))
                if raw is not None:
                    calibrator.observe(bucket, label, raw)

    # Models

    def use(
        self, model: TrainedModel | None, *, kind: str | None = None, candidates: Sequence[TrainedModel] = ()
    ) -> None:
        """Serve with this model from now on (None: with history alone); ``candidates`` score every job as shadows.

        Each head is served by its champion, in the history buckets where no baseline beats it; or by ``kind`` where a person
        insists; or, in a model without any champion (which only a person would promote), by its least bad. A batch under way
        ends with the old model.
        Raises ValueError where the model has no such kind.
        """
        served = [] if model is None else [_Served(model, kind, champion=True)]
        served += [_Served(candidate, None, champion=False) for candidate in candidates]
        with self._lock:
            self._served = tuple(served)
            # Errors of the model that served before say nothing about this one.
            self._drift = {unit: DriftMonitor() for unit in UNITS}

    # Predicting

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """One answer a request, in order; None where nothing is known. Never raises: a job that breaks a model gets the ladder.

        Asking twice answers the same as long as no job has ended in between. ``now_s`` is not used: a feature depends on the
        submission, so that a prediction that comes late is still the one that training would have seen.
        """
        with self._lock:
            served = self._served
            drifting = {unit for unit, monitor in self._drift.items() if monitor.alarm}
            plans = self._plan_all(requests)
        self._run_models(served, [plan for plan in plans if plan is not None])
        with self._lock:
            return [self._answer_safely(served, drifting, plan) for plan in plans]

    def preview(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """As :meth:`predict`, for jobs that may never be submitted: nothing of the question is remembered.

        The jobs' numbers must be nobody's: what is known of a job of that number would be forgotten.
        """
        with self._lock:
            try:
                return self.predict(now_s, requests)
            finally:
                for request in requests:
                    self._asked.pop(request.job, None)
                    self._knowledge.open_jobs.remove(request.job)

    def _plan_all(self, requests: Sequence[PredictionRequest]) -> list[_Plan | None]:
        plans: list[_Plan | None] = []
        submissions = [request_submission(request) for request in requests]
        # All are open before the first is looked at, so the order of a batch does not matter.
        for submission in submissions:
            self._knowledge.submit(submission)
        for request, submission in zip(requests, submissions, strict=True):
            try:
                plans.append(self._plan(request, submission))
            except Exception:
                _log.exception("job %s could not be predicted; it is ranked by attained service", request.job)
                plans.append(None)
        return plans

    def _plan(self, request: PredictionRequest, submission: Submission) -> _Plan:
        speed = self._throughput.lookup(submission.recurrence, submission.gpus, submission.gpu_type)
        unit = unit_of(
            self._knowledge, submission, speed_known=speed is not None or request.spec.stage_graph is not None
        )
        examples = {each: self._knowledge.example(submission, each) for each in UNITS}
        if request.job not in self._asked:
            # The first answer is the one that is scored.
            said = {each: (example.bucket, example.baselines) for each, example in examples.items()}
            self._asked[request.job] = _Asked(said, unit)
            if len(self._asked) > PENDING_MAX:
                self._asked.popitem(last=False)
        rung = climb(self._knowledge, self._scores[unit], examples[unit], unit)
        seconds = 1.0 if unit is Unit.SERVICE_S else speed.seconds_per_iteration if speed is not None else None
        return _Plan(submission, unit, examples[unit], rung, seconds)

    def _run_models(self, served: Sequence[_Served], plans: Sequence[_Plan]) -> None:
        """Every model on every job of its unit, in one call each, outside the lock."""
        for unit in UNITS:
            ready = [plan for plan in plans if plan.unit is unit and not math.isnan(plan.example.base)]
            if not ready:
                continue
            matrix = np.array([plan.example.features for plan in ready])
            for each in served:
                head = each.model.heads.get(unit)
                if head is not None:
                    self._run_head(each.model.version, head, matrix, ready)

    @staticmethod
    def _run_head(version: str, head: TrainedHead, matrix: Array, plans: Sequence[_Plan]) -> None:
        for kind, estimator in head.estimators.items():
            try:
                residuals = estimator.predict_points(matrix)
            except Exception:
                _log.exception("model %s/%s failed; the ladder answers for it", version, kind)
                continue
            for plan, row in zip(plans, residuals, strict=True):
                if np.isfinite(row).all():
                    plan.raw[version, kind] = plan.example.base + row

    def _answer_safely(self, served: Sequence[_Served], drifting: set[Unit], plan: _Plan | None) -> Prediction | None:
        try:
            return None if plan is None else self._answer(served, drifting, plan)
        except Exception:
            _log.exception("the answer for a job failed; it is ranked by attained service")
            return None

    def _answer(self, served: Sequence[_Served], drifting: set[Unit], plan: _Plan) -> Prediction | None:
        unit, example = plan.unit, plan.example
        said: dict[str, Array] = {}
        for each in served:
            calibrated = {
                kind: calibrator.calibrate(example.bucket, plan.raw[each.model.version, kind])
                for kind, calibrator in each.calibrators.get(unit, {}).items()
                if (each.model.version, kind) in plan.raw
            }
            said |= {each.version(kind): points for kind, points in blended(calibrated).items()}
        rung, version = self._refine(served, drifting, plan, said)
        if unit is Unit.ITERATIONS:
            evidence = self._knowledge.declarations.evidence(plan.submission)
            rung = weigh_declaration(rung, plan.submission, evidence)
        if rung is None:
            return None
        estimate = Estimate(
            points=finish(rung, unit, plan.submission.walltime_s),
            unit=unit,
            source=rung.source,
            model_version=version,
            seconds_per_unit=plan.seconds_per_unit,
            trusted=rung.trusted,
        )
        asked = self._asked.get(JobId(plan.submission.job))
        if asked is not None and asked.served_log is None:
            asked.served_log = math.log(estimate.median)
            asked.raw = plan.raw
        return Prediction(
            estimate=estimate,
            feature_schema=features.SCHEMA,
            features=tuple(example.features),
            shadows=_shadows([*self._baseline_points(plan), *said.items()]),
        )

    @staticmethod
    def _refine(
        served: Sequence[_Served], drifting: set[Unit], plan: _Plan, said: Mapping[str, Array]
    ) -> tuple[Rung | None, str]:
        """The champion's distribution and version; the ladder's where no champion may or can serve."""
        for each in served:
            kind = each.champion(plan.unit, plan.example.bucket)
            points = said.get(each.version(kind)) if kind is not None else None
            if kind is None or points is None or plan.rung is None:
                continue
            if plan.unit in drifting:
                reason = "the model is set aside: its errors have grown"
                return plan.rung._replace(source=f"{plan.rung.source}; {reason}"), ""
            source = f"{plan.rung.source}; distribution by {kind.replace('_', ' ')}"
            return Rung(points, source, True), each.version(kind)
        return plan.rung, ""

    def _baseline_points(self, plan: _Plan) -> list[tuple[str, Array]]:
        if math.isnan(plan.example.base):
            return []
        scores, bucket = self._scores[plan.unit], plan.example.bucket
        return [
            (f"baseline/{name}", scores.points(index, bucket, plan.example.baselines[index]))
            for index, name in enumerate(BASELINE_NAMES)
        ]

    # Looking inside

    def status(self) -> PredictorStatus:
        """What serves now and how well."""
        with self._lock:
            champion = self._served[0] if self._served and self._served[0].champions else None
            return PredictorStatus(
                model_version=champion.model.version if champion is not None else "",
                champions=dict(champion.champions) if champion is not None else {},
                drifting={unit: monitor.alarm for unit, monitor in self._drift.items()},
                recent_log_error={unit: monitor.recent_mean for unit, monitor in self._drift.items()},
                known_jobs={unit: len(history.cluster) for unit, history in self._knowledge.history.items()},
                pending=len(self._asked),
            )

    def throughput_rows(self) -> list[ThroughputRow]:
        """The throughput table as it is now, in a stable order."""
        with self._lock:
            return self._throughput.dump()

    def throughput_of(self, spec: JobSpec, gpu_type: str = "", servers: int | None = None) -> Throughput | None:
        """Measured seconds per iteration of a program on a placement, or on the best that was seen; None: never measured."""
        with self._lock:
            return self._throughput.lookup(spec.recurrence, spec.gpus, gpu_type or spec.gpu_type or "", servers)
