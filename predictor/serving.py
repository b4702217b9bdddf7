"""The live predictor: it predicts batches of jobs, learns from every job that ends, and swaps models while it runs.

It satisfies the engine's ``Predictor`` port by shape. Safe to call from several threads. Loading this module imports neither
scikit-learn nor xgboost, so that a service or simulation without a model does not load them.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from policies.model.estimate import Attained, EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId
from predictor.aggregation import AGGREGATION, CENSORED_MAX, EXPECTED_EVERY_S
from predictor.dataset import UNITS, Knowledge, replay
from predictor.experts import BASIC, BaselineScores
from predictor.fallback import (
    TOO_FEW,
    LogEstimate,
    basis_of,
    in_units,
    mix_declaration,
    points_in_units,
    unit_of,
)
from predictor.feature_schema import schema
from predictor.head_state import BucketStatus, HeadState
from predictor.intervals import LEVELS, MIDDLE, Array, as_labels, estimate_points
from predictor.locality import SlowdownLearner
from predictor.loss_curves import LossCurves
from predictor.pending import (
    UNDECLARED,
    Baselines,
    LateView,
    PendingPrediction,
    aggregation_name,
    baselines_of,
    basic_name,
    filled,
    late_views,
    mark_current,
    shadows,
)
from predictor.prequential import ROWS_MAX
from predictor.queries import Query, run_models
from predictor.recurrence import error_group
from predictor.reported import revise, with_reported_total
from predictor.rows import EndedRow, Submission, ended_row, newest_by_submission, request_submission
from predictor.speeds import SpeedLearner
from predictor.throughput_table import ThroughputTable
from predictor.training import TrainedModel
from predictor.walltimes import Walltimes

PENDING_MAX: Final = 100_000
"""Pending predictions kept (about 3 kB each); beyond that the oldest are dropped without being scored."""
LOOKED_AT_MAX: Final = 10_000
"""Pending predictions, the newest, among which those of running jobs are looked for."""
BATCH_MAX: Final = 500
"""Jobs whose predictions are combined at once: a bound on the memory."""
NAMED: Final = 3
"""Experts that a source names, those with the most weight."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictorStatus:
    """What serves now. Per unit: the weights of every history bucket, ``drifting``, and for how many jobs there is history.
    ``drift_alarms`` counts detected drifts, those in the history that was read at the start included.
    """

    model_version: str
    buckets: Mapping[Unit, tuple[BucketStatus, ...]]
    drifting: Mapping[Unit, bool]
    recent_log_error: Mapping[Unit, float]
    known_jobs: Mapping[Unit, int]
    pending: int
    drift_alarms: Mapping[Unit, int] = field(default_factory=dict)


def _version(model: TrainedModel | None) -> str:
    return model.version if model is not None else ""


def _noting_measured(ended: Iterable[EndedJob], measured: list[EndedJob]) -> Iterator[EndedJob]:
    """The same jobs; the list gets those whose speed by span or loss curve is known."""
    for label in ended:
        if label.seconds_by_span is not None or label.loss_curve is not None:
            measured.append(label)
        yield label


class LivePredictor:
    """Predicts from history and, once one is promoted, from a model. Call :meth:`warm` before the first prediction."""

    def __init__(
        self,
        model: TrainedModel | None = None,
        *,
        walltimes_enforced: bool | None = True,
        slowdowns: SlowdownLearner | None = None,
        speeds: SpeedLearner | None = None,
    ) -> None:
        """``walltimes_enforced``: whether jobs are ended at their walltime, which limits a prediction; None: inferred from the
        ended jobs. ``slowdowns`` gives those by span to jobs without a stage graph, ``speeds`` corrects the iteration times of
        jobs with one; None: estimates are without.
        """
        self._lock = threading.RLock()
        self._knowledge = Knowledge()
        self._scores = {unit: BaselineScores() for unit in UNITS}
        self._heads = {unit: HeadState() for unit in UNITS}
        self._throughput = ThroughputTable()
        self._slowdowns = slowdowns
        self._speeds = speeds
        self._curves = LossCurves()
        self._walltimes_enforced = walltimes_enforced
        self._walltimes = Walltimes(walltimes_enforced)
        self._attained: Callable[[JobId, float], Attained | None] = lambda job, now_s: None
        self._expected_s = -math.inf
        self._ended_meanwhile: list[EndedRow] | None = None
        self._known_before: set[int] = set()
        self._pending: OrderedDict[JobId, PendingPrediction] = OrderedDict()
        self._champion: TrainedModel | None = None
        if model is not None:
            self.use(model)

    # Learning

    def warm(
        self,
        ended: Iterable[EndedJob],
        open_jobs: Iterable[PredictionRequest] = (),
        predictions: Iterable[tuple[JobId, Prediction]] = (),
    ) -> None:
        """Load history at start: ended jobs in any order (the newest 40,000 count) and the jobs that are unfinished now.

        ``predictions`` are the first ones of any of those jobs, oldest first. They are scored as if this predictor had made them,
        so that weights and calibration are restored. The model that served must be in use already. All three are read before
        anything changes, and only what is kept of a prediction is in memory.
        """
        measured: list[EndedJob] = []
        rows = newest_by_submission(map(ended_row, _noting_measured(ended, measured)), ROWS_MAX)
        waiting = [request_submission(request) for request in open_jobs]
        pending = filled(predictions)
        with self._lock:
            baselines, late = self._replay(rows, waiting)
            self._restore(pending, baselines)
            for row in sorted(rows, key=lambda row: (row.ended_at_s, row.submission.job)):
                job = JobId(row.submission.job)
                scored = pending.get(job) or PendingPrediction(baselines.get(job, {}), Unit.SERVICE_S)
                self._score(row, scored, late.get(job, {}))
                self._throughput.observe_row(row)
                self._walltimes.observe(row)
            for label in sorted(measured, key=lambda label: (label.ended_at_s, label.job)):
                self._learn_speed(label)
                self._learn_curve(label, pending.get(label.job))
            for submission in waiting:
                if JobId(submission.job) in pending:
                    self._pending[JobId(submission.job)] = pending[JobId(submission.job)]

    def _replay(
        self, rows: Sequence[EndedRow], waiting: Sequence[Submission]
    ) -> tuple[dict[JobId, Baselines], dict[JobId, dict[Unit, LateView]]]:
        """Learn the rows; returns the baselines of each job and of those that wait, as they were at its submission, and how each
        job was seen at its end.
        """
        # An unfinished job is replayed as one that never ends: it stays open, and nothing is learnt from it.
        unfinished = [EndedRow(submission, math.inf, None, 0.0) for submission in waiting]
        stream = sorted((*rows, *unfinished), key=lambda row: (row.submission.submitted_at_s, row.submission.job))
        found: dict[JobId, Baselines] = {}
        late: dict[JobId, dict[Unit, LateView]] = {}

        def before_end(row: EndedRow) -> None:
            job = JobId(row.submission.job)
            if views := late_views(self._knowledge, row.submission, found[job]):
                late[job] = views

        for row, examples in replay(stream, self._knowledge, before_end):
            job = JobId(row.submission.job)
            if math.isinf(row.ended_at_s):
                found[job] = {unit: baselines_of(self._knowledge, row.submission, unit) for unit in UNITS}
            else:
                found[job] = {unit: (example.bucket, example.baselines) for unit, example in examples.items()}
        return found, late

    def _restore(self, pending: dict[JobId, PendingPrediction], baselines: Mapping[JobId, Baselines]) -> None:
        """Complete the pending predictions. Jobs that share one and have the same baselines still share it."""
        for job, each in pending.items():
            known = baselines.get(job, {})
            if not each.baselines:
                each.baselines = known
            elif each.baselines != known:
                pending[job] = replace(each, baselines=known)
        mark_current(list(pending.values()), _version(self._champion))

    def relearn(self, read: Callable[[], Iterable[EndedJob]]) -> None:
        """Replace the history by the jobs that ``read`` returns (the newest 40,000 count) and those that end meanwhile.

        Scores, calibration and pending predictions stay. Predicting goes on while ``read`` runs. Jobs that it returns before
        :meth:`ended` tells of them count once.
        """
        with self._lock:
            self._ended_meanwhile = []
        try:
            rows = newest_by_submission(map(ended_row, read()), ROWS_MAX)
        except BaseException:
            # The history stays as it is: it has learnt from those that ended meanwhile already.
            with self._lock:
                self._ended_meanwhile = None
            raise
        knowledge, throughput, walltimes = Knowledge(), ThroughputTable(), Walltimes(self._walltimes_enforced)
        for row in sorted(rows, key=lambda row: (row.ended_at_s, row.submission.job)):
            knowledge.end(row)
            throughput.observe_row(row)
            walltimes.observe(row)
        known = {row.submission.job for row in rows}
        with self._lock:
            meanwhile, self._ended_meanwhile = self._ended_meanwhile or [], None
            knowledge.open_jobs = self._knowledge.open_jobs
            self._known_before = known.intersection(knowledge.open_jobs.all())
            self._knowledge, self._throughput, self._walltimes = knowledge, throughput, walltimes
            for row in meanwhile:
                if row.submission.job not in known:
                    self._learn(row)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """A job ended: score its prediction, then learn from it. Nothing is learnt from a job that never ran. Returns the open
        jobs that :meth:`predict` would now answer with more experience (:data:`predictor.dataset.TELLING_RUNS`).
        """
        row = ended_row(label)
        with self._lock:
            if self._ended_meanwhile is not None:
                self._ended_meanwhile.append(row)
            pending = self._pending.pop(label.job, None)
            if pending is not None:
                self._score(row, pending, late_views(self._knowledge, row.submission, pending.baselines))
            outdated = [JobId(job) for job in self._learn(row)]
            self._learn_speed(label)
            self._learn_curve(label, pending)
            for job in outdated:
                if job in self._pending and math.isfinite(row.ended_at_s):
                    self._pending[job].as_of_s = row.ended_at_s
            return outdated

    def _learn(self, row: EndedRow) -> list[int]:
        if row.submission.job in self._known_before:
            self._known_before.remove(row.submission.job)
            self._knowledge.open_jobs.remove(row.submission.job)
            return []
        self._throughput.observe_row(row)
        self._walltimes.observe(row)
        return self._knowledge.end(row)

    def _learn_speed(self, label: EndedJob) -> None:
        if self._slowdowns is not None:
            self._slowdowns.observe(label)
        if self._speeds is not None:
            self._speeds.observe(label)

    def _learn_curve(self, label: EndedJob, pending: PendingPrediction | None) -> None:
        if label.loss_curve is not None:
            first = PendingPrediction({}, Unit.ITERATIONS) if pending is None else pending
            self._curves.ended(label, first.base, first.unit)

    def _score(self, row: EndedRow, pending: PendingPrediction, late: Mapping[Unit, LateView]) -> None:
        """Learn from a prediction whose job has ended, and, for those that are made again while jobs wait or run, from how the
        job is seen now (``late``). Used live and at the start, so that a restart changes nothing.
        """
        submission = row.submission
        for unit in UNITS:
            total = row.label(unit)
            if total is None or unit not in pending.baselines:
                continue
            label, (bucket, baselines) = math.log(total), pending.baselines[unit]
            self._scores[unit].observe(bucket, baselines, label)
            if unit is pending.unit:
                group = error_group(*submission.recurrence)
                share = self._heads[unit].score(
                    bucket, label, pending, row.ended_at_s, group, submission.submitted_at_s
                )
                if unit in late and share is not None:
                    experts = self._scores[unit].basic(*late[unit])
                    self._heads[unit].score_late(late[unit].bucket, label, experts, share)
            if unit in late:
                self._scores[unit].observe(late[unit].bucket, late[unit].baselines, label)

    # Models

    def use(self, model: TrainedModel | None) -> None:
        """Serve with this model from now on (None: with the past alone).

        Its kinds are experts beside the baselines (:mod:`predictor.aggregation`), and the weights start from its own test.
        A batch in progress ends with the old model.
        """
        with self._lock:
            self._champion = model
            self._expected_s = -math.inf
            for pending in self._pending.values():
                pending.current = False
            for unit, head in self._heads.items():
                head.use(model.heads.get(unit) if model is not None else None)

    # Predicting

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """From now on ``attained(job, now_s)`` says how far an unfinished job has come, None if it has not run. Without it the
        weights of experts follow ended jobs alone. :meth:`predict` calls it in its own thread.
        """
        with self._lock:
            self._attained, self._expected_s = attained, -math.inf

    def _expect(self, now_s: float) -> None:
        """Count what the newest unfinished jobs have attained: they take longer than that. At most once in five minutes,
        O(pending predictions, at most 10,000).
        """
        if now_s < self._expected_s + EXPECTED_EVERY_S:
            return
        self._expected_s = now_s
        of_unit: dict[Unit, list[tuple[PendingPrediction, Attained]]] = {unit: [] for unit in UNITS}
        for job in islice(reversed(self._pending), LOOKED_AT_MAX):
            pending = self._pending[job]
            if pending.current and (come := self._attained(job, now_s)) is not None:
                of_unit[pending.unit].append((pending, come))
        for unit, newest_first in of_unit.items():
            self._heads[unit].expect(unit, newest_first[:CENSORED_MAX][::-1])

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """One prediction per request, in order; None where nothing is known. Never raises: if a model fails on a job, the
        other experts answer.

        A repeated request gets the same answer for five minutes as long as no job has ended in between. Features depend on the
        submission and not on ``now_s``, so that a late prediction equals the one that training would have seen. The elements of
        an array that are new in one batch share one prediction, that of the first of them.
        """
        return self._predict(now_s, requests, kept=True)

    def preview(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """As :meth:`predict`, for jobs that may never be submitted: nothing is kept.

        The job ids must be unused: the state of a job with the same id would be dropped.
        """
        return self._predict(now_s, requests, kept=False)

    def _predict(self, now_s: float, requests: Sequence[PredictionRequest], *, kept: bool) -> list[Prediction | None]:
        with self._lock:
            if kept:
                self._expect(now_s)
            model = self._champion  # this one answers the batch, even if another is swapped in meanwhile
            first = self._first_alike(requests)
            queries = self._prepare(requests, first, kept)
            if not kept:
                for request in requests:
                    self._knowledge.open_jobs.remove(request.job)
        prepared = [query for query in queries if query is not None]
        if model is not None:
            run_models(model, prepared)
        with self._lock:
            for unit, bucket in sorted({(query.unit, query.example.bucket) for query in prepared}):
                alike = [query for query in prepared if query.unit is unit and query.example.bucket == bucket]
                for start in range(0, len(alike), BATCH_MAX):
                    try:
                        self._answer(model, unit, bucket, alike[start : start + BATCH_MAX])
                    except Exception:
                        _log.exception("jobs could not be predicted; they are ranked by attained service")
            answers = dict(zip(sorted(set(first)), self._keep(model, queries), strict=True))
            for request, position in zip(requests, first, strict=True):
                self._share_pending(request.job, requests[position].job)
            return [answers[position] for position in first]

    def revise(self, now_s: float, reported: Sequence[Reported]) -> list[Prediction | None]:
        """The predictions as revised by the jobs' reported totals and losses, in order; None where nothing changes. Runs no
        model, never raises. A job that was never asked about here is not revised. ``now_s`` is not used.
        """
        with self._lock:
            answers = [self._revise(each) for each in reported]
            if self._slowdowns is None:
                return answers
            return [self._slowdowns.revise(each, answer) for each, answer in zip(reported, answers, strict=True)]

    def _revise(self, reported: Reported) -> Prediction | None:
        pending = self._pending.get(reported.request.job)
        if pending is None or (reported.total_iterations is None and not reported.curve_counts):
            return None
        # A copy of its own: other elements of an array may have the same one, and report something else.
        pending = self._pending[reported.request.job] = replace(pending)
        try:
            submission = with_reported_total(reported)
            unit = pending.unit if reported.estimate is None else reported.estimate.unit
            ceiling = self._walltimes.ceiling(submission.walltime_s, unit)
            weight = self._knowledge.declarations.weight_of(submission)
            revised = revise(reported, pending, weight, self._curves, ceiling)
        except Exception:
            _log.exception("the report of job %s could not be taken into account", reported.request.job)
            return None
        if revised is None:
            return None
        if pending.served_log is None:
            # Nothing was known of the job before, and nothing is learnt from what it said itself.
            pending.fill(Prediction(revised))
            return Prediction(revised)
        return Prediction(revised, schema(), tuple(pending.features))

    @staticmethod
    def _first_alike(requests: Sequence[PredictionRequest]) -> list[int]:
        """For each request the position of the one whose answer it gets: its own, or that of the first element of its array."""
        firsts: dict[JobId, int] = {}
        found: list[int] = []
        for position, request in enumerate(requests):
            array = request.spec.array
            # An array without an id is not submitted: several of them may be in one batch.
            found.append(position if array is None or not array.id else firsts.setdefault(array.id, position))
        return found

    def _share_pending(self, job: JobId, first: JobId) -> None:
        """Keep the pending prediction of ``first`` for another element of its array as well."""
        pending = self._pending.get(first)
        if pending is not None and job not in self._pending:
            self._pending[job] = pending.before_reports()
            if len(self._pending) > PENDING_MAX:
                self._pending.popitem(last=False)

    def _prepare(self, requests: Sequence[PredictionRequest], first: Sequence[int], kept: bool) -> list[Query | None]:
        """The queries of the requests at the positions in ``first``, in their order. ``kept``: as pending predictions."""
        queries: list[Query | None] = []
        submissions = [request_submission(request) for request in requests]
        # All are open before the first is looked at, so the order of a batch does not matter.
        for submission in submissions:
            self._knowledge.submit(submission)
        for position in sorted(set(first)):
            request, submission = requests[position], submissions[position]
            try:
                queries.append(self._query(request, self._as_of(submission), kept))
            except Exception:
                _log.exception("job %s could not be predicted; it is ranked by attained service", request.job)
                queries.append(None)
        return queries

    def _as_of(self, submission: Submission) -> Submission:
        """A job that is predicted again counts as submitted when the end came that tells about it. Otherwise it would not see
        that others of its program, which came with it, are still running, and the short ones that have ended would stand for all.
        """
        pending = self._pending.get(JobId(submission.job))
        if pending is None or pending.served_log is None or pending.as_of_s is None:
            return submission
        return replace(submission, submitted_at_s=max(submission.submitted_at_s, pending.as_of_s))

    def _query(self, request: PredictionRequest, submission: Submission, kept: bool) -> Query:
        measured_s = self._throughput.lookup(submission.recurrence, submission.gpus, submission.gpu_type)
        speed_known = measured_s is not None or request.spec.stage_graph is not None
        # A profile run is stopped early, so the program's iterations do not apply. Its walltime limits the seconds.
        profile = request.spec.profile is not None
        unit = Unit.SERVICE_S if profile else unit_of(self._knowledge, submission, speed_known=speed_known)
        example = self._knowledge.example(submission, unit)
        if kept and request.job not in self._pending:
            # The first prediction is the one that is scored. The other unit needs no features, because its models do not run.
            baselines = {
                each: (example.bucket, example.baselines)
                if each is unit
                else baselines_of(self._knowledge, submission, each)
                for each in UNITS
            }
            self._pending[request.job] = PendingPrediction(baselines, unit)
            if len(self._pending) > PENDING_MAX:
                self._pending.popitem(last=False)
        basis = basis_of(self._knowledge, submission, unit)
        seconds = 1.0 if unit is Unit.SERVICE_S else measured_s
        spec, slowdown = request.spec, None
        if spec.stage_graph is not None:
            slowdown = None if self._speeds is None else self._speeds.slowdown(spec)
        elif self._slowdowns is not None and spec.gpus > 1:
            slowdown = self._slowdowns.slowdown(spec)
        return Query(submission, unit, example, basis, seconds, slowdown=slowdown)

    def _keep(self, model: TrainedModel | None, queries: Sequence[Query | None]) -> list[Prediction | None]:
        """The answers with their shadows; the first prediction of a job is kept until it ends."""
        answered = [query for query in queries if query is not None and query.estimate is not None]
        kept = iter(shadows([query.quantiles for query in answered]))
        predictions: list[Prediction | None] = []
        for query in queries:
            if query is None or query.estimate is None:
                predictions.append(None)
                continue
            vector = tuple(query.example.features)
            prediction = Prediction(query.estimate, schema(), vector, next(kept))
            predictions.append(prediction)
            pending = self._pending.get(JobId(query.submission.job))
            if pending is not None and pending.served_log is None:
                pending.fill(prediction)
                pending.current = model is self._champion
        return predictions

    def _answer(self, model: TrainedModel | None, unit: Unit, bucket: int, queries: Sequence[Query]) -> None:
        """Combine the experts' predictions for jobs of one unit and history bucket: one array operation for all."""
        known = [query for query in queries if query.basis is not None]
        if known:
            head, scores = self._heads[unit], self._scores[unit]
            kinds, version = head.aggregation.experts[len(BASIC) :], _version(model)
            asleep = np.full(len(LEVELS), np.nan)
            matrix = np.empty((len(known), len(BASIC) + len(kinds), len(LEVELS)))
            for row, query in enumerate(known):
                matrix[row, : len(BASIC)] = scores.basic(bucket, query.example.baselines, query.example.empirical)
                for position, kind in enumerate(kinds, len(BASIC)):
                    matrix[row, position] = query.raw.get(kind, asleep)
            combined = as_labels(head.aggregation.combine(bucket, matrix))
            served = head.calibration.calibrate(bucket, combined)
            points = estimate_points(as_labels(served))
            for row, query in enumerate(known):
                query.quantiles = {
                    basic_name(name): own for name, own in zip(BASIC, matrix[row], strict=False) if own[0] == own[0]
                } | {f"{version}/{kind}": own for kind, own in query.raw.items()}
                query.quantiles[aggregation_name(version)] = combined[row]
                awake = ~np.isnan(matrix[row, :, 0])
                chosen = self._chosen(
                    query, head.leading(bucket, awake, NAMED), points[row], bool(awake[len(BASIC) :].any())
                )
                self._complete(query, chosen, served[row], version if awake[len(BASIC) :].any() else "")
        for query in queries:
            if query.basis is None:
                self._complete(query, None, None, "")

    @staticmethod
    def _chosen(query: Query, leading: Sequence[tuple[str, float]], points: Array, modelled: bool) -> LogEstimate:
        assert query.basis is not None, "only jobs with a past have experts"
        if not modelled:
            source = query.basis.source + ("" if query.basis.trusted else TOO_FEW)
            return LogEstimate(points, source, query.basis.trusted)
        words = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in leading)
        # A model may rank jobs even where the past alone is too thin to.
        return LogEstimate(points, f"{query.basis.source}; weights: {words}", True)

    def _complete(self, query: Query, chosen: LogEstimate | None, served: Array | None, version: str) -> None:
        """Add a declaration and the limit of the walltime. Never raises."""
        try:
            query.estimate = self._estimate(query, chosen, served, version)
        except Exception:
            _log.exception("the estimate of job %s failed; it is ranked by attained service", query.submission.job)

    def _estimate(
        self, query: Query, chosen: LogEstimate | None, served: Array | None, version: str
    ) -> Estimate | None:
        unit, submission = query.unit, query.submission
        log_point = None if served is None else float(served[MIDDLE])
        if unit is Unit.ITERATIONS and submission.declared_iterations is not None:
            mixed = mix_declaration(chosen, submission, self._knowledge.declarations.weight_of(submission))
            if chosen is None or mixed is None or mixed.points is not chosen.points:
                log_point = None
                if served is not None and mixed is not None:
                    query.quantiles[UNDECLARED] = served
            chosen = mixed
        if chosen is None:
            return None
        ceiling = self._walltimes.ceiling(submission.walltime_s, unit)
        return Estimate(
            points=points_in_units(chosen.points, ceiling),
            unit=unit,
            source=chosen.source,
            model_version="" if not version else f"{version}/{AGGREGATION}",
            seconds_per_unit=query.seconds_per_unit,
            trusted=chosen.trusted,
            point=None if log_point is None else float(in_units(np.array(log_point), ceiling)),
            slowdown=query.slowdown,
        )

    # State

    def status(self) -> PredictorStatus:
        """What serves now and how well."""
        with self._lock:
            return PredictorStatus(
                model_version=_version(self._champion),
                buckets={unit: head.status() for unit, head in self._heads.items()},
                drifting={unit: head.drift.alarm for unit, head in self._heads.items()},
                recent_log_error={unit: head.drift.recent_mean for unit, head in self._heads.items()},
                known_jobs={unit: len(history.cluster) for unit, history in self._knowledge.history.items()},
                pending=len(self._pending),
                drift_alarms={unit: head.alarms for unit, head in self._heads.items()},
            )

    def model(self, version: str) -> TrainedModel | None:
        """The model of this version, as long as it serves."""
        with self._lock:
            return self._champion if _version(self._champion) == version else None
