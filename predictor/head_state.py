"""The state behind served predictions, per unit: the weights of the experts, the calibration, and the drift of their errors."""

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from policies.model.estimate import Attained, Unit
from predictor.aggregation import LEARNT, Aggregation, Bursts, Censored
from predictor.conformal import SpreadCalibration
from predictor.drift import DriftMonitor
from predictor.experts import BASIC
from predictor.intervals import LEVELS, Array, RollingSum, at_levels
from predictor.pending import PendingPrediction
from predictor.recurrence import BUCKETS, error_group
from predictor.training import TrainedHead

COVERED_MAX = 500
"""Scored jobs per history bucket behind the displayed coverage, the newest."""
COVERED_JOBS_MIN = 50
"""Scored jobs that a coverage needs."""
COVERAGE_MIN = 0.65
"""Where fewer of the 80% intervals hold, an operator should look: the workload has changed faster than the calibration
follows."""
_LEARNT_MIDDLE = LEARNT.tolist().index(0.5)


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One history bucket of a head: the weight of each expert in the median, the number of jobs that the weights were learnt from
    (those of the training's test included), and the share of the newest truths inside the 80% interval (None: under 50 jobs).
    """

    bucket: str
    weights: Mapping[str, float]
    jobs: int
    coverage: float | None


@dataclass(slots=True)
class HeadState:
    """The rolling state of one unit. ``alarms``: how often drift was detected, whichever model served."""

    aggregation: Aggregation = field(default_factory=lambda: Aggregation(BASIC))
    calibration: SpreadCalibration = field(default_factory=SpreadCalibration)
    bursts: Bursts = field(default_factory=Bursts)
    drift: DriftMonitor = field(default_factory=DriftMonitor)
    inside: list[RollingSum] = field(default_factory=lambda: [RollingSum(COVERED_MAX) for _ in BUCKETS])
    alarms: int = 0

    def use(self, head: TrainedHead | None) -> None:
        """Another model serves: the weights start from those that its own test gave."""
        self.aggregation = Aggregation(BASIC) if head is None else deepcopy(head.aggregation)
        self.calibration = SpreadCalibration() if head is None else deepcopy(head.calibration)
        self.bursts, self.drift = Bursts(), DriftMonitor()
        self.inside = [RollingSum(COVERED_MAX) for _ in BUCKETS]

    def score(
        self, bucket: int, label: float, pending: PendingPrediction, at_s: float, group: Hashable, submitted_at_s: float
    ) -> float | None:
        """Learn from the prediction of a job that ended at ``at_s``. ``group`` is shared by jobs with correlated errors. Returns
        how much it counted.

        A prediction under another model teaches nothing: it had other experts. Then the answer is None.
        """
        combined = pending.combined
        if not pending.current or combined is None:
            return None
        if pending.served_log is not None:
            stood = self.drift.alarm
            self.drift.observe(label - pending.served_log, at_s, group)
            self.alarms += self.drift.alarm and not stood
        share, delay = self.bursts.ended(group, submitted_at_s, at_s)
        self.aggregation.delayed(delay)
        self.aggregation.observe(bucket, label, pending.learnt(self.aggregation.experts), combined, share)
        self.inside[bucket].push(self.calibration.observe(bucket, label, combined))
        return share

    def score_late(self, bucket: int, label: float, basic: Array, share: float) -> None:
        """Learn from what the experts without a model (experts, 25) say of a job when it ends. Models are not asked again: they
        sleep, and keep their weight relative to what is served.
        """
        asleep = np.full((len(self.aggregation.experts) - len(BASIC), len(LEVELS)), np.nan)
        experts = np.concatenate([basic, asleep])
        # A restart makes the same again, and the jobs that were unfinished then are not known any more.
        [combined] = self.aggregation.combine(bucket, experts[None], by_labels=True)
        at = at_levels(np.array([*experts, combined]), LEARNT)
        self.aggregation.observe(bucket, label, at[:-1], at[-1], share)
        self.calibration.observe(bucket, label, at[-1])

    def expect(self, unit: Unit, unfinished: Sequence[tuple[PendingPrediction, Attained]]) -> None:
        """Count how far these jobs have come, in the order of their submission."""
        found = [
            (pending, amount, come.request)
            for pending, come in unfinished
            if (amount := come.service_s if unit is Unit.SERVICE_S else come.iterations)
        ]
        counts = self.bursts.censored(
            (error_group(*request.spec.recurrence), request.submitted_at_s) for _, _, request in found
        )
        experts = self.aggregation.experts
        censored = [
            Censored(pending.baselines[unit][0], math.log(amount), combined, pending.learnt(experts), *count)
            for (pending, amount, _), count in zip(found, counts, strict=True)
            if (combined := pending.combined) is not None
        ]
        self.aggregation.expect(censored)
        self.calibration.expect(censored)

    def leading(self, bucket: int, awake: Array, count: int) -> list[tuple[str, float]]:
        """The experts with the most weight in the median of a job, of those ``awake`` (experts), with their shares."""
        weights = self.aggregation.weights(bucket)[:, _LEARNT_MIDDLE] * awake
        order = np.argsort(-weights, kind="stable")[:count]
        total = float(weights.sum())
        return [
            (self.aggregation.experts[index], float(weights[index]) / total) for index in order if weights[index] > 0.0
        ]

    def status(self) -> tuple[BucketStatus, ...]:
        """Every bucket, in order."""
        found = []
        for bucket, name in enumerate(BUCKETS):
            weights = self.aggregation.weights(bucket)[:, _LEARNT_MIDDLE].tolist()
            inside, jobs = self.inside[bucket], len(self.inside[bucket])
            found.append(
                BucketStatus(
                    bucket=name,
                    weights=dict(zip(self.aggregation.experts, weights, strict=True)),
                    jobs=self.aggregation.labels[bucket],
                    coverage=inside.total / jobs if jobs >= COVERED_JOBS_MIN else None,
                )
            )
        return tuple(found)
