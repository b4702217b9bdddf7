"""Analyses of past predictions: calibration before and after its correction, drift, changes of trust, and answers by source."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.model.estimate import Unit
from predictor import prequential
from predictor.dataset import Knowledge, replay
from predictor.drift import DriftMonitor
from predictor.intervals import Array, ConformalCalibrator
from predictor.recurrence import error_group
from predictor.training import ESTIMATORS, TEST_RATIO
from service.notebooks.judging import SET_ASIDE, answered_by, over_time
from service.notebooks.source import HISTORY, RANKED_BY_SERVICE, Scored
from service.sim.evaluate import rows_of
from service.sim.workloads.model import Workload


@dataclass(frozen=True, slots=True)
class Corrected:
    """Log points of one model for the same jobs, before (``raw``) and after the correction. ``buckets`` are positions in
    ``predictor.recurrence.BUCKETS``.
    """

    labels: Array
    buckets: NDArray[np.intp]
    raw: Array
    corrected: Array

    def of_bucket(self, bucket: int) -> "Corrected":
        """The jobs of one history bucket."""
        rows = self.buckets == bucket
        return Corrected(self.labels[rows], self.buckets[rows], self.raw[rows], self.corrected[rows])

    def named_buckets(self, jobs_min: int) -> dict[str, "Corrected"]:
        """The jobs of each bucket with at least ``jobs_min``, by its name."""
        parts = {name: self.of_bucket(bucket) for bucket, name in enumerate(HISTORY)}
        return {name: part for name, part in parts.items() if len(part.labels) >= jobs_min}


def corrected_run(workload: Workload, kind: str, *, jobs_min: int = 100) -> Corrected | None:
    """Fit a model on the first 60% of the jobs, predict the others in seconds of service, and correct as jobs end.

    The correction is that of the service: rolling, split-conformal, by history bucket; it learns from a job once it has ended.
    The fifth before the test is predicted too, so that the correction has data from the start. None where there are fewer than
    ``jobs_min`` jobs.
    """
    found = (examples.get(Unit.SERVICE_S) for _, examples in replay(rows_of(workload.jobs), Knowledge()))
    usable = [example for example in found if example is not None and example.base == example.base]
    if len(usable) < jobs_min:
        return None
    test = len(usable) - int(len(usable) * TEST_RATIO)
    start = test - test // 5
    opened_s = usable[start].submission.submitted_at_s
    known = [example for example in usable[:start] if example.ended_at_s <= opened_s]
    if len(known) < prequential.FIT_ROWS_MIN:
        return None
    model = prequential.fit({kind: ESTIMATORS[kind]}, known, seed=0)[kind]
    predicted = usable[start:]
    bases = np.array([example.base for example in predicted])[:, None]
    raw = bases + model.predict_points(np.array([example.features for example in predicted]))
    labels = np.array([example.label for example in predicted], dtype=np.float64)
    corrected = prequential.calibrate_in_order(predicted, {kind: raw}, {kind: ConformalCalibrator()})[kind]
    tested = slice(test - start, None)
    buckets = np.array([example.bucket for example in predicted], dtype=np.intp)
    return Corrected(labels[tested], buckets[tested], raw[tested], corrected[tested])


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift monitor after each scored job, in the order in which the jobs ended: ``alarm`` while it stood."""

    at_s: Sequence[float]
    recent: Sequence[float]
    alarm: Sequence[bool]

    @property
    def raised_at_s(self) -> list[float]:
        """When the alarm was raised."""
        before = (False, *self.alarm)
        return [at for at, now, was in zip(self.at_s, self.alarm, before, strict=False) if now and not was]


def drift_curve(rows: Sequence[Scored]) -> Drift:
    """A new drift monitor run over the scored predictions, as in the service. ``recent`` is the mean abs(ln(predicted / actual)).

    Pass rows of one unit: the service has a monitor for each.
    """
    monitor = DriftMonitor()
    ended = sorted(rows, key=lambda row: (row.scored_at_s, row.job_id))
    recent, alarm = [], []
    for row in ended:
        monitor.observe(row.log_error, row.scored_at_s, error_group(row.user, row.project, row.name))
        recent.append(monitor.recent_mean)
        alarm.append(monitor.alarm)
    return Drift([row.scored_at_s for row in ended], recent, alarm)


class TrustChange(NamedTuple):
    """From this job on, jobs of this unit and history were ranked by another source. ``reason`` is in the words of the source."""

    at_s: float
    unit: str
    history: str
    before: str
    after: str
    reason: str


def trust_changes(rows: Sequence[Scored]) -> list[TrustChange]:
    """Every change of trust that the jobs show, in the order in which they were submitted.

    The first job of a unit and history is compared with full trust.
    """
    current: dict[tuple[str, str], str] = {}
    found = []
    for row in rows:
        after, reason = _ranked_by(row)
        before = current.setdefault((row.unit, row.history), "the champion")
        if after != before:
            found.append(TrustChange(row.submitted_at_s, row.unit, row.history, before, after, reason))
            current[row.unit, row.history] = after
    return found


def _ranked_by(row: Scored) -> tuple[str, str]:
    """The source that ranks such jobs, and why not a better one. Too little history does not count as distrust."""
    for words, after in ((RANKED_BY_SERVICE, "attained service"), (SET_ASIDE, "history")):
        _, found, reason = row.source.partition(words)
        if found:
            # The text after the next semicolon is about the weight of a declaration.
            return after, reason.removeprefix(":").partition(";")[0].strip()
    return "the champion", ""


def who_answered(rows: Sequence[Scored], parts: int) -> list[tuple[float, Counter[str]]]:
    """The number of answers per source, in ``parts`` equal parts of the jobs."""
    return [(at_s, Counter(map(answered_by, piece))) for at_s, piece in over_time(rows, parts)]
