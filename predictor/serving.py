"""The live predictor: one batch in, one estimate each out; learns from every job that ends; swaps models while it runs.

It satisfies the engine's ``Predictor`` port by shape. Safe to call from several threads. Loading this module imports neither
scikit-learn nor xgboost: a service without a model yet, and a simulation without one, pay nothing for them.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor import features
from predictor.answering import (
    Plan,
    baseline_points,
    calibrate,
    choose,
    insisted_kind,
    log_switch,
    run_head,
    run_models,
)
from predictor.asked import UNDECLARED, Asked, Baselines, baselines_of, mark_current, restored, shadows
from predictor.dataset import UNITS, Knowledge, replay
from predictor.intervals import Array
from predictor.ladder import climb, finish, point_in_units, unit_of, weigh_declaration
from predictor.mix import Mix
from predictor.prequential import ROWS_MAX, BaselineScores
from predictor.recurrence import errs_alike
from predictor.revising import claimed, revise
from predictor.rows import EndedRow, Submission, ended_row, newest_by_submission, request_submission
from predictor.served import BucketStatus, HeadState, ServedModel
from predictor.throughput_table import Throughput, ThroughputRow, ThroughputTable
from predictor.training import TrainedHead, TrainedModel
from predictor.trust import Switch
from predictor.walltimes import Walltimes

PENDING_MAX: Final = 100_000
"""Predictions remembered until their job ends (about 4 kB each); beyond that the oldest are not scored any more."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictorStatus:
    """What serves now. Per unit: ``champions`` in a line, every bucket's champions and trust, ``drifting`` and for how many
    ended jobs' labels there is history. ``switches`` counts how often a bucket has changed its rung of trust, ``drift_alarms``
    how often drift was seen; both with the jobs that were read back at the start.
    """

    model_version: str
    champions: Mapping[Unit, str]
    buckets: Mapping[Unit, tuple[BucketStatus, ...]]
    switches: int
    drifting: Mapping[Unit, bool]
    recent_log_error: Mapping[Unit, float]
    known_jobs: Mapping[Unit, int]
    pending: int
    drift_alarms: Mapping[Unit, int] = field(default_factory=dict)


class _Serving(NamedTuple):
    """What a batch is answered by, whatever is swapped meanwhile."""

    champion: ServedModel | None
    models: tuple[ServedModel, ...]
    mixes: Mapping[Unit, Mix]

    @property
    def version(self) -> str:
        return self.champion.model.version if self.champion is not None else ""


class _Answer(NamedTuple):
    """What ranks a job, and the log points of everybody who spoke of it, by name."""

    plan: Plan
    estimate: Estimate
    said: Mapping[str, Array]


class LivePredictor:
    """Predicts from history and, once one is promoted, from a model. Call :meth:`warm` before the first prediction."""

    def __init__(self, model: TrainedModel | None = None, *, walltimes_enforced: bool | None = True) -> None:
        """``walltimes_enforced``: whether a walltime ends a job, so that it cuts a prediction; None: the ended jobs show it."""
        self._lock = threading.RLock()
        self._knowledge = Knowledge()
        self._scores = {unit: BaselineScores() for unit in UNITS}
        self._heads = {unit: HeadState() for unit in UNITS}
        self._throughput = ThroughputTable()
        self._walltimes = Walltimes(walltimes_enforced)
        self._asked: OrderedDict[JobId, Asked] = OrderedDict()
        self._champion: ServedModel | None = None
        self._candidates: tuple[ServedModel, ...] = ()
        if model is not None:
            self.use(model)

    # Learning

    def warm(
        self,
        ended: Iterable[EndedJob],
        open_jobs: Iterable[PredictionRequest] = (),
        said: Iterable[tuple[JobId, Prediction]] = (),
    ) -> None:
        """Load history at start: ended jobs in any order (the newest 40,000 count) and the jobs that are unfinished now.

        ``said`` is what was first said of any of those jobs, in the order in which it was said: it is scored as if it had been
        said by this predictor, so that calibration, the choice of champions and trust go on where they were. For this the
        model that served must be in use already.
        """
        rows = newest_by_submission(map(ended_row, ended), ROWS_MAX)
        waiting = [request_submission(request) for request in open_jobs]
        spoken = dict(said)
        with self._lock:
            baselines = self._replay(rows, waiting)
            asked = self._restore(spoken, baselines)
            for row in sorted(rows, key=lambda row: (row.ended_at_s, row.submission.job)):
                job = JobId(row.submission.job)
                self._label(row, asked.get(job) or Asked(baselines.get(job, {}), Unit.SERVICE_S))
                self._throughput.observe_row(row)
                self._walltimes.observe(row)
            for submission in waiting:
                self._knowledge.submit(submission)
                if JobId(submission.job) in asked:
                    self._asked[JobId(submission.job)] = asked[JobId(submission.job)]

    def _replay(self, rows: Sequence[EndedRow], waiting: Sequence[Submission]) -> dict[JobId, Baselines]:
        """Learn the rows; what the baselines would have said of each job, and of those that wait, when it was submitted."""
        # An unfinished job passes by as one that never ran: it teaches nothing.
        unfinished = [EndedRow(submission, math.inf, None, 0.0) for submission in waiting]
        stream = sorted((*rows, *unfinished), key=lambda row: (row.submission.submitted_at_s, row.submission.job))
        found: dict[JobId, Baselines] = {}
        for row, examples in replay(stream, self._knowledge):
            job = JobId(row.submission.job)
            if math.isinf(row.ended_at_s):
                found[job] = {unit: baselines_of(self._knowledge, row.submission, unit) for unit in UNITS}
            else:
                found[job] = {unit: (example.bucket, example.baselines) for unit, example in examples.items()}
        return found

    def _restore(self, spoken: Mapping[JobId, Prediction], baselines: Mapping[JobId, Baselines]) -> dict[JobId, Asked]:
        """What was said of each job, with the models' raw points, which follow from the features that are stored."""
        asked = {job: restored(prediction, baselines.get(job, {})) for job, prediction in spoken.items()}
        version = self._champion.model.version if self._champion is not None else ""
        mark_current(list(asked.values()), version)
        if self._champion is not None:
            for unit, head in self._champion.model.heads.items():
                jobs = [job for job, each in asked.items() if each.current and each.unit is unit]
                self._run_again(head, [(asked[job], spoken[job]) for job in jobs])
        return asked

    def _run_again(self, head: TrainedHead, said: Sequence[tuple[Asked, Prediction]]) -> None:
        ready = [
            (asked, prediction.features)
            for asked, prediction in said
            if prediction.feature_schema == features.SCHEMA and np.isfinite(prediction.features).all()
        ]
        if ready and self._champion is not None:
            matrix = np.array([vector for _, vector in ready])
            bases = matrix[:, features.NAMES.index("base")]
            known = bases != features.MISSING
            targets = [asked.raw for (asked, _), has in zip(ready, known, strict=True) if has]
            if targets:
                run_head(self._champion.model.version, head, matrix[known], bases[known], targets)

    def ended(self, label: EndedJob) -> None:
        """A job ended: score what was said of it, then learn from it. A job that never ran teaches nothing."""
        row = ended_row(label)
        with self._lock:
            asked = self._asked.pop(label.job, None)
            if asked is not None:
                for unit, switch in self._label(row, asked):
                    log_switch(unit, switch)
            self._knowledge.end(row)
            self._throughput.observe_row(row)
            self._walltimes.observe(row)

    def _label(self, row: EndedRow, asked: Asked) -> list[tuple[Unit, Switch]]:
        """Score what was said of a job; what has switched. Live and at start the same, so a restart changes nothing."""
        switches: list[tuple[Unit, Switch]] = []
        for unit in UNITS:
            total = row.label(unit)
            if total is None or unit not in asked.baselines:
                continue
            label, (bucket, baselines) = math.log(total), asked.baselines[unit]
            self._scores[unit].observe(bucket, baselines, label)
            if unit is not asked.unit or not asked.said:
                continue
            switched = self._heads[unit].score(
                bucket, label, asked, row.ended_at_s, errs_alike(*row.submission.recurrence)
            )
            switches += [(unit, switch) for switch in switched]
            for served in self._all_served():
                served.observe(unit, bucket, label, asked.raw)
        return switches

    # Models

    def use(
        self, model: TrainedModel | None, *, kind: str | None = None, candidates: Sequence[TrainedModel] = ()
    ) -> None:
        """Serve with this model from now on (None: with history alone); ``candidates`` score every job as shadows.

        Each history bucket of a head is served by whoever did best: see :mod:`predictor.mix`. A head of which no model passed
        the gate is served by the baselines. By ``kind`` alone where a person insists; or, in a model without any champion
        (which only a person would promote), by its least bad. A batch under way ends with the old model.
        Raises ValueError where the model has no such kind.
        """
        insisted = {unit: None if model is None else insisted_kind(model, unit, kind) for unit in UNITS}
        with self._lock:
            self._champion = None if model is None else ServedModel(model)
            self._candidates = tuple(map(ServedModel, candidates))
            for asked in self._asked.values():
                asked.current = False
            for unit, head in self._heads.items():
                for switch in head.use(model.heads.get(unit) if model is not None else None, insisted[unit]):
                    log_switch(unit, switch)

    def _all_served(self) -> tuple[ServedModel, ...]:
        return self._candidates if self._champion is None else (self._champion, *self._candidates)

    # Predicting

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """One answer a request, in order; None where nothing is known. Never raises: a job that breaks a model gets the ladder.

        Asking twice answers the same as long as no job has ended in between. ``now_s`` is not used: a feature depends on the
        submission, so that a prediction that comes late is still the one that training would have seen.
        """
        with self._lock:
            serving = _Serving(self._champion, self._all_served(), {unit: self._heads[unit].mix() for unit in UNITS})
            plans = self._plan_all(requests)
        run_models(serving.models, [plan for plan in plans if plan is not None])
        with self._lock:
            calibrate(serving.models, [plan for plan in plans if plan is not None])
            return self._remember(serving, [self._answer_safely(serving, plan) for plan in plans])

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

    def revise(self, now_s: float, reported: Sequence[Reported]) -> list[Prediction | None]:
        """What the jobs' own reports change of what was said of them, in order; None where nothing. Asks no model, never raises.

        A job that was never predicted here has nothing that could be revised. ``now_s`` is not used.
        """
        with self._lock:
            return [self._revise_safely(each) for each in reported]

    def _revise_safely(self, reported: Reported) -> Prediction | None:
        try:
            asked = self._asked.get(reported.request.job)
            if asked is None:
                return None
            claim = claimed(reported)
            ceiling = self._walltimes.ceiling(claim.walltime_s, reported.estimate.unit)
            revised = revise(reported, asked, self._knowledge.declarations.evidence(claim), ceiling)
        except Exception:
            _log.exception("the report of job %s could not be taken into account", reported.request.job)
            return None
        return None if revised is None else Prediction(revised, features.SCHEMA, tuple(asked.features))

    def _plan_all(self, requests: Sequence[PredictionRequest]) -> list[Plan | None]:
        plans: list[Plan | None] = []
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

    def _plan(self, request: PredictionRequest, submission: Submission) -> Plan:
        speed = self._throughput.lookup(submission.recurrence, submission.gpus, submission.gpu_type)
        unit = unit_of(
            self._knowledge, submission, speed_known=speed is not None or request.spec.stage_graph is not None
        )
        example = self._knowledge.example(submission, unit)
        if request.job not in self._asked:
            # The first answer is the one that is scored. The other head needs no features: nobody asks its models.
            said = {
                each: (example.bucket, example.baselines)
                if each is unit
                else baselines_of(self._knowledge, submission, each)
                for each in UNITS
            }
            self._asked[request.job] = Asked(said, unit)
            if len(self._asked) > PENDING_MAX:
                self._asked.popitem(last=False)
        rung = climb(self._knowledge, self._scores[unit], example, unit)
        seconds = 1.0 if unit is Unit.SERVICE_S else speed.seconds_per_iteration if speed is not None else None
        return Plan(submission, unit, example, rung, seconds)

    def _remember(self, serving: _Serving, answers: Sequence[_Answer | None]) -> list[Prediction | None]:
        """The answers with what everybody else has said; what was said first of a job is kept until it ends."""
        others = iter(shadows([answer.said for answer in answers if answer is not None]))
        predictions: list[Prediction | None] = []
        for answer in answers:
            if answer is None:
                predictions.append(None)
                continue
            prediction = Prediction(answer.estimate, features.SCHEMA, tuple(answer.plan.example.features), next(others))
            predictions.append(prediction)
            asked = self._asked.get(JobId(answer.plan.submission.job))
            if asked is not None and asked.served_log is None:
                asked.answered(prediction)
                asked.raw = answer.plan.raw
                asked.current = serving.champion is self._champion
        return predictions

    def _answer_safely(self, serving: _Serving, plan: Plan | None) -> _Answer | None:
        try:
            return None if plan is None else self._answer(serving, plan)
        except Exception:
            _log.exception("the answer for a job failed; it is ranked by attained service")
            return None

    def _answer(self, serving: _Serving, plan: Plan) -> _Answer | None:
        unit, submission = plan.unit, plan.submission
        said = baseline_points(self._scores[unit], plan) | plan.said
        head = self._heads[unit]
        standing = head.trust.standing(plan.example.bucket)
        choice = choose(plan, said, serving.version, serving.mixes[unit], standing, head.tracker)
        rung = choice.rung if choice is not None else None
        log_point = choice.log_point if choice is not None else None
        if unit is Unit.ITERATIONS and submission.declared_iterations is not None:
            weighed = weigh_declaration(rung, submission, self._knowledge.declarations.evidence(submission))
            if rung is None or weighed is None or weighed.points is not rung.points:
                log_point = None
                if rung is not None and weighed is not None:
                    said[UNDECLARED] = rung.points
            rung = weighed
        if rung is None:
            return None
        ceiling = self._walltimes.ceiling(submission.walltime_s, unit)
        estimate = Estimate(
            points=finish(rung, ceiling),
            unit=unit,
            source=rung.source,
            model_version=choice.model_version if choice is not None else "",
            seconds_per_unit=plan.seconds_per_unit,
            trusted=rung.trusted,
            point=None if log_point is None else point_in_units(log_point, ceiling),
        )
        return _Answer(plan, estimate, said)

    # Looking inside

    def status(self) -> PredictorStatus:
        """What serves now and how well."""
        with self._lock:
            return PredictorStatus(
                model_version=self._champion.model.version if self._champion is not None else "",
                champions={unit: head.mix().name for unit, head in self._heads.items()},
                buckets={unit: head.status() for unit, head in self._heads.items()},
                switches=sum(head.trust.switches for head in self._heads.values()),
                drifting={unit: head.drift.alarm for unit, head in self._heads.items()},
                recent_log_error={unit: head.drift.recent_mean for unit, head in self._heads.items()},
                known_jobs={unit: len(history.cluster) for unit, history in self._knowledge.history.items()},
                pending=len(self._asked),
                drift_alarms={unit: head.alarms for unit, head in self._heads.items()},
            )

    def model(self, version: str) -> TrainedModel | None:
        """The model of this version, as long as it serves or is a candidate."""
        with self._lock:
            return next((each.model for each in self._all_served() if each.model.version == version), None)

    def throughput_rows(self) -> list[ThroughputRow]:
        """The throughput table as it is now, in a stable order."""
        with self._lock:
            return self._throughput.dump()

    def throughput_of(self, spec: JobSpec, gpu_type: str = "", servers: int | None = None) -> Throughput | None:
        """Measured seconds per iteration of a program on a placement, or on the best that was seen; None: never measured."""
        with self._lock:
            return self._throughput.lookup(spec.recurrence, spec.gpus, gpu_type or spec.gpu_type or "", servers)
