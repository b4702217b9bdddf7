"""What was said of a job, kept until it ends: what there is to score. The same whether it was said just now or is read again."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, overload

import numpy as np

from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.baselines import baseline_points
from predictor.dataset import Knowledge
from predictor.intervals import LEVELS, POINTS, Array, quantile_of
from predictor.ladder import DECLARED_WORDS, in_units
from predictor.mix import SIMPLEST
from predictor.recurrence import Level, bucket_of, keys_of
from predictor.rows import Submission
from predictor.tracking import Tracked

SHADOW_POINTS: Final = 8
"""Shadows keep 8 equal-mass points: enough to score them, a quarter of the space."""
_STRIDE: Final = POINTS // SHADOW_POINTS
LADDER: Final = "ladder"
"""The shadow of what history alone says: the group distribution, or the cold start's."""
MIX: Final = "mix"
"""The shadow of what the champions say, whether or not they are trusted just then. Its name begins with their model."""
TRACKED: Final = "tracked"
"""The shadow of the champions' distribution with tracked ends, only where it did not serve; :data:`UNTRACKED`: without, where it
did. Neither where both are the same.
"""
UNTRACKED: Final = "untracked"
UNDECLARED: Final = "undeclared"
"""The shadow of what was said before a declaration was mixed in; only where one was."""
_BASELINE: Final = "baseline"

Baselines = dict[Unit, tuple[int, tuple[float, ...]]]


def baseline_name(name: str) -> str:
    """The shadow of a baseline."""
    return f"{_BASELINE}/{name}"


def mix_name(version: str) -> str:
    """The shadow of the champions; ``version`` "" where no model serves."""
    return f"{version or _BASELINE}/{MIX}"


def tracked_shadows(version: str, tracked: Tracked) -> dict[str, Array]:
    """What the champions say, as :attr:`Asked.tracked` reads it again. ``version`` "" where no model serves."""
    found = {mix_name(version): tracked.served}
    if not np.array_equal(tracked.plain, tracked.moved):
        found |= {UNTRACKED: tracked.plain} if tracked.moved_serves else {TRACKED: tracked.moved}
    return found


def thin(points: Array) -> Array:
    """:data:`SHADOW_POINTS` equal-mass points of rows of 32. Their levels lie half-way between two of the 32."""
    return np.asarray((points[..., _STRIDE // 2 - 1 :: _STRIDE] + points[..., _STRIDE // 2 :: _STRIDE]) * 0.5)


class Shadows(Sequence[ShadowPrediction]):
    """The shadows of one job as an array, made into values one by one where somebody asks: two hundred numbers a job, of which
    a batch of 10,000 jobs would otherwise make two million objects.
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
        """Equal to any sequence of equal shadows, such as the tuple that is read back."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def shadows(said: Sequence[Mapping[str, Array]]) -> list[Shadows]:
    """What everybody said of each job: log points, thinned to :data:`SHADOW_POINTS`, in units. One array operation for all jobs
    of which the same have spoken.
    """
    found = [Shadows((), np.empty((0, SHADOW_POINTS)))] * len(said)
    alike: dict[tuple[str, ...], list[int]] = {}
    for job, each in enumerate(said):
        alike.setdefault(tuple(each), []).append(job)
    for names, jobs in alike.items():
        if names:
            totals = in_units(thin(np.array([[*said[job].values()] for job in jobs])))
            for job, rows in zip(jobs, totals, strict=True):
                # A copy: one job that runs for long must not hold a whole batch in memory.
                found[job] = Shadows(names, rows.copy())
    return found


def baselines_of(knowledge: Knowledge, submission: Submission, unit: Unit) -> tuple[int, tuple[float, ...]]:
    """History bucket and baselines' log points of a job in a unit: what an example has of them, without its features."""
    history, keys = knowledge.history[unit], keys_of(submission)
    declared = submission.declared_iterations if unit is Unit.ITERATIONS else None
    group = history.group(Level.RECURRENCE_GPUS, keys[Level.RECURRENCE_GPUS])
    return bucket_of(group.count if group is not None else 0), baseline_points(history, keys, declared)


def log_point(estimate: Estimate) -> float:
    """Natural log of the served point."""
    return float(np.log(estimate.point if estimate.point is not None else estimate.median))


class Revision(NamedTuple):
    """What a job's own reports have last changed: the ``total`` that counts now, in the estimate's unit, and the points."""

    total: float
    points: tuple[float, ...]


@dataclass(slots=True)
class Asked:
    """A job that was predicted and has not ended. About 5 kB.

    ``baselines`` holds the history bucket and the baselines' log points of each unit: every head learns, whichever answered.
    ``version`` is the model that served then ("": none) and ``current`` whether that is the one which serves now. ``said``
    are the log points of every shadow, ``raw`` those of the models before calibration, by version and kind. ``base`` are the
    log points before anybody's word was mixed in, with their ``source`` in words and whether they were ``trusted``; with the
    ``features`` and the last ``revision`` they are for what is said of the job while it runs.
    """

    baselines: Baselines
    unit: Unit
    version: str = ""
    current: bool = True
    served_log: float | None = None
    said: dict[str, Array] = field(default_factory=dict)
    raw: dict[tuple[str, str], Array] = field(default_factory=dict)
    base: Array = field(default_factory=lambda: np.empty(0))
    source: str = ""
    trusted: bool = False
    features: Sequence[float] = ()
    revision: Revision | None = None

    def answered(self, prediction: Prediction) -> None:
        """Keep what was said. Reads nothing but what is stored with the prediction."""
        self.served_log = log_point(prediction.estimate)
        kept = prediction.shadows
        if not isinstance(kept, Shadows):
            kept = Shadows(tuple(each.model_version for each in kept), np.array([each.points for each in kept]))
        self.said = dict(zip(kept.names, np.log(kept.totals), strict=True))
        suffix = f"/{MIX}"
        name = next((name for name in self.said if name.endswith(suffix)), "")
        self.version = name.removesuffix(suffix).removeprefix(_BASELINE)
        estimate, undeclared = prediction.estimate, self.said.get(UNDECLARED)
        self.base = np.log(estimate.points) if undeclared is None else quantile_of(undeclared, LEVELS)
        self.source, self.trusted = estimate.source.partition(DECLARED_WORDS)[0], estimate.trusted
        self.features = array("d", prediction.features)

    def candidates(self) -> dict[str, Array]:
        """Log points by the candidates' own names. The simplest is the ladder: of strangers it knows more than a median."""
        found = {name: self.said[key] for name in BASELINE_NAMES if (key := baseline_name(name)) in self.said}
        if LADDER in self.said:
            found[SIMPLEST] = self.said[LADDER]
        prefix = f"{self.version}/"
        if self.version:
            found |= {key.removeprefix(prefix): row for key, row in self.said.items() if key.startswith(prefix)}
        return found

    @property
    def mixed(self) -> Array | None:
        """What the champions said, as it served."""
        return self.said.get(mix_name(self.version))

    @property
    def tracked(self) -> Tracked | None:
        """The same with tracked ends and without."""
        served = self.mixed
        if served is None:
            return None
        if UNTRACKED in self.said:
            return Tracked(self.said[UNTRACKED], served, True)
        return Tracked(served, self.said.get(TRACKED, served), False)


def restored(prediction: Prediction, baselines: Baselines) -> Asked:
    """A job of which this was said before a restart; its raw points are for :func:`predictor.serving.LivePredictor.warm`."""
    asked = Asked(baselines, prediction.estimate.unit)
    asked.answered(prediction)
    return asked


def mark_current(asked: Sequence[Asked], version: str) -> None:
    """Of jobs in the order in which they were asked, those since the serving model came are current."""
    since = 0
    for position, each in enumerate(asked):
        if each.version != version:
            since = position + 1
    for position, each in enumerate(asked):
        each.current = position >= since
