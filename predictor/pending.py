"""Predictions that are pending until their job ends and they are scored. Restored after a restart, they are equal."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, overload

import numpy as np

from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.baselines import baseline_points
from predictor.dataset import Knowledge
from predictor.fallback import DECLARED_WORDS, in_units
from predictor.intervals import LEVELS, POINTS, Array, quantile_of
from predictor.mix import SIMPLEST
from predictor.recurrence import Level, bucket_of, keys_of
from predictor.rows import Submission
from predictor.tracking import Tracked

SHADOW_POINTS: Final = 8
"""Shadows keep 8 equal-mass points: enough to score them, a quarter of the space."""
_STRIDE: Final = POINTS // SHADOW_POINTS
FALLBACK: Final = "ladder"
"""The shadow of the fallback chain: what history alone predicts."""
MIX: Final = "mix"
"""The shadow of the champions, whether or not they are trusted. Its name begins with their model."""
TRACKED: Final = "tracked"
"""The shadow of the champions' distribution with tracked ends, only where it did not serve; :data:`UNTRACKED`: without, where the
tracked one did. Neither where both are equal.
"""
UNTRACKED: Final = "untracked"
UNDECLARED: Final = "undeclared"
"""The shadow of the estimate before a declaration was mixed in; only where one was."""
_BASELINE: Final = "baseline"

Baselines = dict[Unit, tuple[int, tuple[float, ...]]]
"""History bucket and the baselines' log points, per unit."""


def baseline_name(name: str) -> str:
    """The name of a baseline's shadow."""
    return f"{_BASELINE}/{name}"


def mix_name(version: str) -> str:
    """The name of the champions' shadow; ``version`` "" where no model serves."""
    return f"{version or _BASELINE}/{MIX}"


def tracked_shadows(version: str, tracked: Tracked) -> dict[str, Array]:
    """The champions' shadows, from which :attr:`PendingPrediction.tracked` is restored. ``version`` "" where no model serves."""
    found = {mix_name(version): tracked.served}
    if not np.array_equal(tracked.plain, tracked.moved):
        found |= {UNTRACKED: tracked.plain} if tracked.moved_serves else {TRACKED: tracked.moved}
    return found


def thin(points: Array) -> Array:
    """:data:`SHADOW_POINTS` equal-mass points of rows of 32. Their levels lie half-way between two of the 32."""
    return np.asarray((points[..., _STRIDE // 2 - 1 :: _STRIDE] + points[..., _STRIDE // 2 :: _STRIDE]) * 0.5)


class Shadows(Sequence[ShadowPrediction]):
    """The shadows of one job as an array; a value is made only when it is read. A job has two hundred numbers, so that a batch
    of 10,000 jobs would otherwise make two million objects.
    """

    __slots__ = ("names", "totals")

    def __init__(self, names: tuple[str, ...], totals: Array) -> None:
        """``totals`` (names, :data:`SHADOW_POINTS`), in units."""
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
    """The shadows of each job from its log points by name: thinned to :data:`SHADOW_POINTS`, in units. One array operation for
    all jobs with the same names.
    """
    found = [Shadows((), np.empty((0, SHADOW_POINTS)))] * len(jobs)
    alike: dict[tuple[str, ...], list[int]] = {}
    for job, points in enumerate(jobs):
        alike.setdefault(tuple(points), []).append(job)
    for names, members in alike.items():
        if names:
            totals = in_units(thin(np.array([[*jobs[job].values()] for job in members])))
            for job, rows in zip(members, totals, strict=True):
                # A copy: one long-running job must not keep a whole batch in memory.
                found[job] = Shadows(names, rows.copy())
    return found


def baselines_of(knowledge: Knowledge, submission: Submission, unit: Unit) -> tuple[int, tuple[float, ...]]:
    """History bucket and baselines' log points of a job in a unit: as in its example, without its features."""
    history, keys = knowledge.history[unit], keys_of(submission)
    declared = submission.declared_iterations if unit is Unit.ITERATIONS else None
    group = history.group(Level.RECURRENCE_GPUS, keys[Level.RECURRENCE_GPUS])
    return bucket_of(group.count if group is not None else 0), baseline_points(history, keys, declared)


def log_point(estimate: Estimate) -> float:
    """Natural log of the served point."""
    return float(np.log(estimate.point if estimate.point is not None else estimate.median))


class Revision(NamedTuple):
    """The last revision by a reported total: the ``total`` in the estimate's unit, and the points."""

    total: float
    points: tuple[float, ...]


@dataclass(slots=True)
class PendingPrediction:
    """The first prediction of a job that has not ended. About 5 kB.

    ``baselines`` is for both units: the baselines of both learn, whichever was predicted. ``version`` is the model that served
    then ("": none) and ``current`` whether it is the one that serves now. ``shadow_points`` are the log points of every shadow,
    ``raw`` those of the models before calibration, by version and kind. ``base`` are the log points before a declaration was
    mixed in, with their ``source`` in words and whether they were ``trusted``; with the ``features`` and the last ``revision``
    they serve to revise the estimate while the job runs.
    """

    baselines: Baselines
    unit: Unit
    version: str = ""
    current: bool = True
    served_log: float | None = None
    shadow_points: dict[str, Array] = field(default_factory=dict)
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)
    base: Array = field(default_factory=lambda: np.empty(0))
    source: str = ""
    trusted: bool = False
    features: Sequence[float] = ()
    revision: Revision | None = None

    def fill(self, prediction: Prediction) -> None:
        """Take over a prediction. Reads only what is stored with it, so that a restored one is equal."""
        self.served_log = log_point(prediction.estimate)
        kept = prediction.shadows
        if not isinstance(kept, Shadows):
            kept = Shadows(tuple(each.model_version for each in kept), np.array([each.points for each in kept]))
        self.shadow_points = dict(zip(kept.names, np.log(kept.totals), strict=True))
        suffix = f"/{MIX}"
        name = next((name for name in self.shadow_points if name.endswith(suffix)), "")
        self.version = name.removesuffix(suffix).removeprefix(_BASELINE)
        estimate, undeclared = prediction.estimate, self.shadow_points.get(UNDECLARED)
        self.base = np.log(estimate.points) if undeclared is None else quantile_of(undeclared, LEVELS)
        self.source, self.trusted = estimate.source.partition(DECLARED_WORDS)[0], estimate.trusted
        self.features = array("d", prediction.features)

    def before_reports(self) -> "PendingPrediction":
        """The same for a job that has not reported anything."""
        return self if self.revision is None else replace(self, revision=None)

    def candidates(self) -> dict[str, Array]:
        """Log points by candidate. The fallback chain stands for the simplest: it predicts new programs better than a median."""
        points = self.shadow_points
        found = {name: points[key] for name in BASELINE_NAMES if (key := baseline_name(name)) in points}
        if FALLBACK in points:
            found[SIMPLEST] = points[FALLBACK]
        prefix = f"{self.version}/"
        if self.version:
            found |= {key.removeprefix(prefix): row for key, row in points.items() if key.startswith(prefix)}
        return found

    @property
    def mixed(self) -> Array | None:
        """The champions' log points, as they served."""
        return self.shadow_points.get(mix_name(self.version))

    @property
    def tracked(self) -> Tracked | None:
        """The champions' log points with tracked ends and without."""
        served = self.mixed
        if served is None:
            return None
        if UNTRACKED in self.shadow_points:
            return Tracked(self.shadow_points[UNTRACKED], served, True)
        return Tracked(served, self.shadow_points.get(TRACKED, served), False)


def mark_current(pending: Sequence[PendingPrediction], version: str) -> None:
    """Mark as current the predictions since the model of ``version`` serves. ``pending`` is in the order of the predictions."""
    since = 0
    for position, each in enumerate(pending):
        if each.version != version:
            since = position + 1
    for position, each in enumerate(pending):
        each.current = position >= since
