"""Predictions that are pending until their job ends and they are scored. Restored after a restart, they are equal."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from policies.model.ids import JobId
from predictor.aggregation import AGGREGATION, FROM_LEARNT, LEARNT
from predictor.baselines import baseline_points
from predictor.dataset import Knowledge
from predictor.experts import BASIC, empirical
from predictor.fallback import DECLARED_WORDS, in_units
from predictor.history import Quantiles
from predictor.intervals import Array, at_levels, estimate_points
from predictor.recurrence import Level, bucket_of, keys_of
from predictor.rows import Submission

_BASIC: Final = "baseline"
"""The prefix of the shadows of experts without a model."""
UNDECLARED: Final = "undeclared"
"""The shadow of the estimate before a declaration was mixed in; only where one was."""

_NO_SHADOWS: Final[NDArray[np.float32]] = np.empty((0, len(LEARNT)), np.float32)
_NO_BASE: Final[Array] = np.empty(0)

Baselines = dict[Unit, tuple[int, tuple[float, ...]]]
"""History bucket and the baselines' log points, per unit."""


def basic_name(name: str) -> str:
    """The name of the shadow of an expert that needs no training."""
    return f"{_BASIC}/{name}"


def aggregation_name(version: str) -> str:
    """The name of the aggregation's shadow, before calibration; ``version`` "" where no model serves."""
    return f"{version or _BASIC}/{AGGREGATION}"


class Shadows(Sequence[ShadowPrediction]):
    """The shadows of one job as an array; a value is made only when it is read. A job has two hundred numbers, so that a batch
    of 10,000 jobs would otherwise make two million objects.
    """

    __slots__ = ("names", "totals")

    def __init__(self, names: tuple[str, ...], totals: Array) -> None:
        """``totals`` (names, 9) at the levels ``aggregation.LEARNT``, in units."""
        self.names = names
        self.totals = totals

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> ShadowPrediction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShadowPrediction]: ...
    def __getitem__(self, index: int | slice) -> ShadowPrediction | Sequence[ShadowPrediction]:
        if isinstance(index, slice):
            return Shadows(self.names[index], self.totals[index])
        return ShadowPrediction(self.names[index], tuple(self.totals[index].tolist()))

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of equal shadows, such as the tuple that the database returns."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def shadows(jobs: Sequence[Mapping[str, Array]]) -> list[Shadows]:
    """The shadows of each job from its log quantiles (25) by name: at the learnt levels, in units. One array operation for
    all jobs with the same names.
    """
    found = [Shadows((), np.empty((0, len(LEARNT))))] * len(jobs)
    alike: dict[tuple[str, ...], list[int]] = {}
    for job, quantiles in enumerate(jobs):
        alike.setdefault(tuple(quantiles), []).append(job)
    for names, members in alike.items():
        if names:
            totals = in_units(at_levels(np.array([[*jobs[job].values()] for job in members]), LEARNT))
            for job, rows in zip(members, totals, strict=True):
                # A copy: one long-running job must not keep a whole batch in memory.
                found[job] = Shadows(names, rows.copy())
    return found


def baselines_of(knowledge: Knowledge, submission: Submission, unit: Unit) -> tuple[int, tuple[float, ...]]:
    """History bucket and baselines' log points of a job in a unit: as in its example, without its features."""
    return _bucket(knowledge, submission, unit), baseline_points(knowledge.history[unit], submission)


def _bucket(knowledge: Knowledge, submission: Submission, unit: Unit) -> int:
    group = knowledge.history[unit].group(Level.RECURRENCE_GPUS, keys_of(submission)[Level.RECURRENCE_GPUS])
    return bucket_of(group.count if group is not None else 0)


class LateView(NamedTuple):
    """A job as the experts without a model see it when it ends: history bucket, the baselines' log points, distributions of the
    past.
    """

    bucket: int
    baselines: tuple[float, ...]
    empirical: tuple[Quantiles | None, ...]


def late_views(knowledge: Knowledge, submission: Submission, first: Baselines) -> dict[Unit, LateView]:
    """How a job that ends is seen now, in each unit in which so many runs of its program have ended since its submission that it
    is in another history bucket.
    """
    found: dict[Unit, LateView] = {}
    for unit, (bucket, _) in first.items():
        if _bucket(knowledge, submission, unit) != bucket:
            late, points = baselines_of(knowledge, submission, unit)
            found[unit] = LateView(late, points, empirical(knowledge.history[unit], keys_of(submission)))
    return found


def log_point(estimate: Estimate) -> float:
    """Natural log of the served point."""
    return float(np.log(estimate.point if estimate.point is not None else estimate.median))


@lru_cache(maxsize=1024)
def _rows_of(experts: tuple[str, ...], version: str, names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """The positions of the experts that have a shadow, and those of their shadows: a thousand jobs share a few."""
    shadowed = [basic_name(name) if name in BASIC else f"{version}/{name}" for name in experts]
    awake = [position for position, name in enumerate(shadowed) if name in names]
    return awake, [names.index(shadowed[position]) for position in awake]


class Revision(NamedTuple):
    """The last revision by a reported total: the ``total`` in the estimate's unit, and the points."""

    total: float
    points: tuple[float, ...]


@lru_cache(maxsize=1024)
def _interned(names: tuple[str, ...]) -> tuple[str, ...]:
    """One object for all equal ``names``: most jobs have the same."""
    return names


@dataclass(slots=True)
class PendingPrediction:
    """The first prediction of a job that has not ended. About 3 kB.

    ``baselines`` is for both units: the baselines of both learn, whichever was predicted. ``version`` is the model that
    served then ("": none) and ``current`` whether it is the one that serves now. ``shadow_logs`` (shadows, 9) are the log
    quantiles of the shadows ``names`` at the learnt levels. ``base`` are the log points before a declaration was mixed in, with
    their ``source`` in words and whether they were ``trusted``; with the ``features`` and the last ``revision`` they serve to
    revise the estimate while the job runs. ``as_of_s`` is when the run of the same program ended for which the job is predicted
    again; None before.
    """

    baselines: Baselines
    unit: Unit
    version: str = ""
    current: bool = True
    served_log: float | None = None
    names: tuple[str, ...] = ()
    shadow_logs: NDArray[np.float32] = field(default_factory=lambda: _NO_SHADOWS)
    base: Array = field(default_factory=lambda: _NO_BASE)
    source: str = ""
    trusted: bool = False
    features: Sequence[float] = ()
    revision: Revision | None = None
    as_of_s: float | None = None

    def fill(self, prediction: Prediction) -> None:
        """Take over a prediction. Reads only what is stored with it, so that a restored one is equal."""
        self.served_log = log_point(prediction.estimate)
        kept = prediction.shadows
        if not isinstance(kept, Shadows):
            kept = Shadows(tuple(each.model_version for each in kept), np.array([each.points for each in kept]))
        # Releases before the aggregation stored other points; they teach nothing.
        if kept.totals.shape[1:] == LEARNT.shape:
            # Half the memory, and 0.0001% of a total is nothing to learn from.
            self.names, self.shadow_logs = _interned(kept.names), np.log(kept.totals).astype(np.float32)
        suffix = f"/{AGGREGATION}"
        name = next((name for name in self.names if name.endswith(suffix)), "")
        self.version = name.removesuffix(suffix).removeprefix(_BASIC)
        estimate, undeclared = prediction.estimate, self.shadow(UNDECLARED)
        self.base = np.log(estimate.points) if undeclared is None else estimate_points(undeclared @ FROM_LEARNT)
        self.source, self.trusted = estimate.source.partition(DECLARED_WORDS)[0], estimate.trusted
        self.features = array("d", prediction.features)

    def before_reports(self) -> "PendingPrediction":
        """The same for a job that has not reported anything."""
        return self if self.revision is None else replace(self, revision=None)

    def shadow(self, name: str) -> Array | None:
        """The log quantiles (9) of a shadow; None where there is none of that name."""
        return self.shadow_logs[self.names.index(name)].astype(np.float64) if name in self.names else None

    def learnt(self, experts: tuple[str, ...]) -> Array:
        """The log quantiles (experts, 9) of the experts; NaN where one had no answer."""
        found = np.full((len(experts), len(LEARNT)), np.nan)
        awake, rows = _rows_of(experts, self.version, self.names)
        found[awake] = self.shadow_logs[rows]
        return found

    @property
    def combined(self) -> Array | None:
        """The log quantiles (9) of the aggregation before calibration; None where nothing was served."""
        return self.shadow(aggregation_name(self.version))


def filled(predictions: Iterable[tuple[JobId, Prediction]]) -> dict[JobId, PendingPrediction]:
    """What is kept of each prediction, without its baselines. Neighbours with the very same one, the elements of an array, share
    it.
    """
    found: dict[JobId, PendingPrediction] = {}
    last: Prediction | None = None
    for job, prediction in predictions:
        if prediction is not last:
            pending, last = PendingPrediction({}, prediction.estimate.unit), prediction
            pending.fill(prediction)
        found[job] = pending
    return found


def mark_current(pending: Sequence[PendingPrediction], version: str) -> None:
    """Mark as current the predictions since the model of ``version`` serves. ``pending`` is in the order of the predictions."""
    since = 0
    for position, each in enumerate(pending):
        if each.version != version:
            since = position + 1
    for position, each in enumerate(pending):
        each.current = position >= since
