"""The scores of every candidate on the jobs that have ended, by which :mod:`predictor.mix` chooses the champions.

The evaluation and the live predictor both collect them job by job. A new model starts with the scores of its own test, per
history bucket; each job that ends in service replaces one of those.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from predictor.evaluation import PINBALL_LEVELS, pinball_of
from predictor.intervals import Array, quantile_of
from predictor.mix import SIMPLEST, Mix, Scores, champions
from predictor.recurrence import BUCKETS

ROWS_MAX: Final = 2_000
"""Scored jobs per bucket that count, the newest: the workload as it is now."""
ROWS_MIN: Final = 20
"""Scored jobs before any candidate but the simplest serves. On small clusters more would take weeks to come."""
RECOUNT_RATIO: Final = 0.02
"""Share of a bucket's jobs that must be new before the independence of its jobs is measured again."""

_LOW, _MIDDLE, _HIGH = (int(np.flatnonzero(level == PINBALL_LEVELS)[0]) for level in (0.1, 0.5, 0.9))
_LOG_2: Final = float(np.log(2.0))


class _Total(NamedTuple):
    """Sums of scores over ``jobs`` jobs, one row per candidate, and the number of independent jobs with as much information."""

    jobs: int
    sums: Array
    independent: float


def independent_share(losses: Array) -> float:
    """Share of independent observations that would estimate the mean as precisely as these (oldest first); at most 1.

    The errors of a job array are correlated. By the method of batch means: the means of root n batches of root n jobs each vary
    as much as independence predicts, or more.
    """
    size = math.isqrt(len(losses))
    batches = losses[len(losses) - size * (len(losses) // size) :].reshape(-1, size).mean(axis=1) if size else losses
    if len(batches) < 2:
        return 1.0
    by_chance, found = float(losses.var()), size * float(batches.var(ddof=1))
    return by_chance / found if found > by_chance else 1.0


def scores_of(labels: Array | float, points: Array) -> Array:
    """The scores of each row in the order of :class:`Scores`: of many jobs, or of one job's candidates (then one label).

    ``points`` (rows, m) log, ascending.
    """
    quantiles = quantile_of(points, PINBALL_LEVELS)
    label = np.asarray(labels)
    loss = pinball_of(label, quantiles)
    inside = (quantiles[:, _LOW] <= label) & (label <= quantiles[:, _HIGH])
    middle = quantiles[:, _MIDDLE]
    close = np.abs(label - middle) <= _LOG_2
    return np.stack([loss, inside, np.abs(np.exp(label) - np.exp(middle)), close], axis=1)


class CandidateScores:
    """The scores of one head's candidates on the newest 2,000 jobs of each history bucket."""

    def __init__(
        self,
        names: Sequence[str],
        tested: Mapping[str, Mapping[str, Any]] | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        """``names`` of the candidates, the simplest among them; ``tested`` = a model's metrics of its own test, by candidate;
        ``models`` = the models that may serve a distribution, None = all.
        """
        self.names = tuple(names)
        self._models = models
        self._rows: list[deque[Array]] = [deque() for _ in BUCKETS]
        self._sums = [np.zeros((len(self.names), len(Scores._fields))) for _ in BUCKETS]
        self._tested = [self._of_test(bucket, tested) for bucket in BUCKETS]
        self._chosen: dict[int, tuple[str, str]] = {}
        self._simplest = self.names.index(SIMPLEST)
        self._share = [1.0] * len(BUCKETS)
        self._fresh = [0] * len(BUCKETS)

    def _of_test(self, bucket: str, tested: Mapping[str, Mapping[str, Any]] | None) -> _Total:
        nothing = np.zeros((len(self.names), len(Scores._fields)))
        if tested is None or any(name not in tested for name in self.names):
            return _Total(0, nothing, 0.0)
        parts = [tested[name]["buckets"][bucket] for name in self.names]
        jobs = int(parts[0]["jobs"])
        if not jobs:
            return _Total(0, nothing, 0.0)
        means = [[part["pinball_log"], part["coverage_80"], part["mae"], part["within_2x"]] for part in parts]
        return _Total(jobs, np.array(means, dtype=np.float64), float(jobs))

    def observe(self, bucket: int, label: float, points: Mapping[str, Array]) -> None:
        """A job ended with this log label; ``points`` holds log points by candidate.

        A candidate without points is scored as the simplest, which would have served instead; without points of the simplest
        the job is not scored.
        """
        simplest = points.get(SIMPLEST)
        if simplest is not None:
            self.add(bucket, scores_of(label, np.stack([points.get(name, simplest) for name in self.names])))

    def add(self, bucket: int, scored: Array) -> None:
        """A job ended with these scores, one row per candidate."""
        self._rows[bucket].append(scored)
        self._sums[bucket] += scored
        if len(self._rows[bucket]) > ROWS_MAX:
            self._sums[bucket] -= self._rows[bucket].popleft()
        self._fresh[bucket] += 1
        # The moment depends only on the jobs added, never on calls in between: a restart changes nothing.
        if self._fresh[bucket] >= max(ROWS_MIN, RECOUNT_RATIO * len(self._rows[bucket])):
            self._share[bucket] = independent_share(np.array([row[self._simplest, 0] for row in self._rows[bucket]]))
            self._fresh[bucket] = 0
        self._chosen.clear()

    def _total(self, bucket: int) -> _Total:
        """The jobs seen in service, filled up with those of the test."""
        live, (jobs, means, _) = len(self._rows[bucket]), self._tested[bucket]
        room = min(jobs, ROWS_MAX - live)
        count = live + room
        return _Total(count, self._sums[bucket] + room * means, count * self._share[bucket])

    def jobs(self, bucket: int) -> int:
        """Number of jobs that the champions of a bucket were chosen by."""
        return self._total(bucket).jobs

    def champions(self, bucket: int) -> tuple[str, str]:
        """The candidates that serve the distribution and the point of a bucket now. A bucket with under 20 jobs uses the scores
        of all programs that have run before; new programs do not, because they are another population.
        """
        if bucket not in self._chosen:
            self._chosen[bucket] = champions(self._scores(bucket), self._counted(bucket).independent, self._models)
        return self._chosen[bucket]

    def mix(self) -> Mix:
        """The champions of each bucket now."""
        chosen = [self.champions(bucket) for bucket in range(len(BUCKETS))]
        return Mix(tuple(shape for shape, _ in chosen), tuple(point for _, point in chosen))

    def _counted(self, bucket: int) -> _Total:
        """The jobs that count for a bucket: its own, or where those are few, those of all programs that have run before."""
        own = self._total(bucket)
        if own.jobs >= ROWS_MIN or bucket == 0:
            return own
        parts = [self._total(each) for each in range(1, len(BUCKETS))]
        return _Total(
            sum(part.jobs for part in parts),
            np.sum([part.sums for part in parts], axis=0),
            sum(part.independent for part in parts),
        )

    def _scores(self, bucket: int) -> dict[str, Scores]:
        jobs, sums, _ = self._counted(bucket)
        if jobs < ROWS_MIN:
            return {}
        return {name: Scores(*row) for name, row in zip(self.names, (sums / jobs).tolist(), strict=True)}
