"""Analyses of past predictions: intervals before and after their calibration, drift, and answers by source."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.model.estimate import Unit
from predictor import prequential
from predictor.dataset import Knowledge, replay
from predictor.drift import DriftMonitor
from predictor.intervals import Array
from predictor.recurrence import error_group
from predictor.training import TEST_RATIO
from service.notebooks.judging import answered_by, over_time
from service.notebooks.source import HISTORY, Scored
from service.sim.evaluate import rows_of
from service.sim.workloads.model import Workload


@dataclass(frozen=True, slots=True)
class Corrected:
    """Log quantiles of the aggregation for the same jobs, before (``raw``) and after the calibration. ``buckets`` are
    positions in ``predictor.recurrence.BUCKETS``.
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


def corrected_run(workload: Workload, *, jobs_min: int = 100) -> Corrected | None:
    """Aggregate the experts that need no training on the jobs, in seconds of service, before and after the calibration of
    the spread.

    As in the service, both learn from a job once it has ended. None where there are fewer than ``jobs_min`` jobs.
    """
    found = (examples.get(Unit.SERVICE_S) for _, examples in replay(rows_of(workload.jobs), Knowledge()))
    examples = [example for example in found if example is not None]
    if len(examples) < jobs_min:
        return None
    run = prequential.run(examples, {}, test_start=len(examples) - int(len(examples) * TEST_RATIO), chunks=1, seed=0)
    if not len(run.labels):
        return None
    served = prequential.serve(run)
    raw = served.combined[run.test_start :]
    return Corrected(run.labels, np.array(run.buckets, dtype=np.intp), raw, served.tested(run))


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


def who_answered(rows: Sequence[Scored], parts: int) -> list[tuple[float, Counter[str]]]:
    """The number of answers per source, in ``parts`` equal parts of the jobs."""
    return [(at_s, Counter(map(answered_by, piece))) for at_s, piece in over_time(rows, parts)]
