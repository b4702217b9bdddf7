"""The trust in each history bucket: model -> group distribution -> attained service, switched automatically.

Both the model's and the group's distributions are scored for every job that ends, whichever of them served. A rung is left, and
taken again, by its own record; the limits of taking it again are stricter than those of leaving it.
"""

import math
from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from predictor.intervals import Array, RollingSum, quantile_of
from predictor.recurrence import BUCKETS
from predictor.tracking import ROUNDING

WINDOW: Final = 200
"""Scored jobs of a bucket that count, the newest."""
JOBS_MIN: Final = 50
"""Scored jobs that a coverage needs."""
COVERAGE_MIN: Final = 0.65
COVERAGE_BACK: Final = 0.70
CONCORDANCE_MIN: Final = 0.52
CONCORDANCE_BACK: Final = 0.54
PAIR_SPAN: Final = 50
"""A job is compared with this many that were scored before it: those that it competed with."""
PAIRS_MIN: Final = 500
ORDER_LOG_MIN: Final = math.log(1.1)
"""Predictions closer than 10% imply no order: which of two runs of one program is longer cannot be known."""
RETRAIN_GRACE_S: Final = 86_400.0
"""A drift alarm sets the model aside when no better one was trained within a day."""
_ENDS: Final[Array] = np.array([0.1, 0.5, 0.9])


class TrustRung(IntEnum):
    """What may rank the jobs of a bucket, most trusted first. The champions are baselines where no model won the bucket."""

    MODEL = 0
    GROUP = 1
    ATTAINED_SERVICE = 2

    @property
    def words(self) -> str:
        """For people."""
        return ("the champions", "the group distribution", "attained service")[self]


class _Scored(NamedTuple):
    label: float
    predicted: float


class Watch:
    """Coverage of the 80% interval and concordance of one predictor in one bucket, over its newest jobs."""

    def __init__(self) -> None:
        self._jobs: deque[_Scored] = deque(maxlen=WINDOW)
        self._inside = RollingSum(WINDOW)
        self._right = RollingSum(WINDOW)
        self._pairs = RollingSum(WINDOW)
        self._uncovered = self._disordered = False

    def observe(self, label: float, points: Array) -> None:
        """A job ended with this log label; ``points`` are its predicted log points, ascending. O(50)."""
        low, predicted, high = quantile_of(points, _ENDS).tolist()
        right = pairs = 0
        for job in list(self._jobs)[-PAIR_SPAN:]:
            order, truth = predicted - job.predicted, label - job.label
            if abs(order) >= ORDER_LOG_MIN and truth != 0.0:
                pairs += 1
                right += order * truth > 0.0
        self._jobs.append(_Scored(label, predicted))
        self._inside.push(low - ROUNDING <= label <= high + ROUNDING)
        self._right.push(right)
        self._pairs.push(pairs)
        covered, ordered = self.coverage, self.concordance
        if covered is not None:
            self._uncovered = covered < (COVERAGE_BACK if self._uncovered else COVERAGE_MIN)
        if ordered is not None:
            self._disordered = ordered < (CONCORDANCE_BACK if self._disordered else CONCORDANCE_MIN)

    @property
    def jobs(self) -> int:
        """Jobs in the window."""
        return len(self._jobs)

    @property
    def coverage(self) -> float | None:
        """Share of the truths inside the 80% interval; None under 50 jobs."""
        return self._inside.total / len(self._jobs) if len(self._jobs) >= JOBS_MIN else None

    @property
    def concordance(self) -> float | None:
        """Share of the pairs in the right order, of those for which the predictions imply one; None under 500."""
        return self._right.total / self._pairs.total if self._pairs.total >= PAIRS_MIN else None

    @property
    def fault(self) -> str:
        """What is wrong, in words; "" where nothing is."""
        faults = []
        if self._uncovered and self.coverage is not None:
            faults.append(f"{self.coverage:.0%} of the newest {self.jobs} such jobs were inside their 80% interval")
        if self._disordered and self.concordance is not None:
            faults.append(f"{self.concordance:.0%} of the newest pairs of such jobs were in the right order")
        return " and ".join(faults)


class Standing(NamedTuple):
    """The rung of a bucket, and why it is not a better one ("" on the first rung)."""

    rung: TrustRung
    reason: str


class Switch(NamedTuple):
    """A bucket has changed its rung."""

    bucket: str
    before: TrustRung
    after: TrustRung
    reason: str


class Trust:
    """The trust of one head: the records of the model and of the group distribution in every bucket, and the drift alarm."""

    def __init__(self) -> None:
        self.models = [Watch() for _ in BUCKETS]
        self.groups = [Watch() for _ in BUCKETS]
        self.switches = 0
        """How often a bucket has changed its rung."""
        self._drifted = False

    def standing(self, bucket: int) -> Standing:
        """The rung of a bucket, with the reason where it is not the first."""
        fault = self.models[bucket].fault
        if self._drifted:
            drift = "errors have grown for a day and no better model was trained"
            fault = f"{fault}; {drift}" if fault else drift
        if not fault:
            return Standing(TrustRung.MODEL, "")
        group = self.groups[bucket].fault
        return Standing(TrustRung.ATTAINED_SERVICE, group) if group else Standing(TrustRung.GROUP, fault)

    def observe(
        self, bucket: int, label: float, *, model: Array | None, group: Array | None, alarm_age_s: float | None
    ) -> list[Switch]:
        """A job ended. ``model`` and ``group`` are the log points of each (None: not scored). Returns the changes of rung.

        ``alarm_age_s`` is the age of the drift alarm; None without one, or while no model serves.
        """
        before = [self.standing(each).rung for each in range(len(BUCKETS))]
        if model is not None:
            self.models[bucket].observe(label, model)
        if group is not None:
            self.groups[bucket].observe(label, group)
        self._drifted = alarm_age_s is not None and alarm_age_s >= RETRAIN_GRACE_S
        return self._switched(before)

    def new_model(self) -> list[Switch]:
        """Another model serves from now on: the record of the previous one is dropped. Returns the changes of rung."""
        before = [self.standing(each).rung for each in range(len(BUCKETS))]
        self.models = [Watch() for _ in BUCKETS]
        self._drifted = False
        return self._switched(before)

    def _switched(self, before: list[TrustRung]) -> list[Switch]:
        found = []
        for bucket, old in enumerate(before):
            rung, reason = self.standing(bucket)
            if rung is not old:
                found.append(Switch(BUCKETS[bucket], old, rung, reason))
        self.switches += len(found)
        return found
