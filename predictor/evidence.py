"""What each candidate said of the jobs that have ended, scored: what the choice that :mod:`predictor.mix` makes rests on.

The evaluation and the live predictor both collect it here, job by job as they end. A new model brings the scores of its own test,
bucket by bucket; each job that ends in service takes the place of one of those.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from predictor.evaluation import PINBALL_LEVELS
from predictor.intervals import Array, quantile_of
from predictor.mix import SIMPLEST, Mix, Scores, champions
from predictor.recurrence import BUCKETS

EVIDENCE_ROWS_MAX: Final = 2_000
"""Scored jobs per bucket that count, the newest: what the workload is like now."""
EVIDENCE_ROWS_MIN: Final = 20
"""Scored jobs before anybody but the simplest serves. Fewer say little; on small clusters more take weeks to come."""
RECOUNT_RATIO: Final = 0.02
"""How many of a bucket's jobs must be new before it is measured again how independent they are."""

_LOW, _MIDDLE, _HIGH = (int(np.flatnonzero(level == PINBALL_LEVELS)[0]) for level in (0.1, 0.5, 0.9))
_LOG_2: Final = float(np.log(2.0))


class _Weighed(NamedTuple):
    """Sums of scores, one row a candidate, over so many jobs, and how many independent ones tell as much."""

    jobs: int
    sums: Array
    independent: float


def independent_share(losses: Array) -> float:
    """Share of independent observations that would tell as much of the mean as these, oldest first; at most 1.

    Arrays of jobs err alike and end together. By the method of batch means: of root n batches of root n jobs each, the means vary
    by as much as chance alone would make them, or by more.
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
    error = label[..., None] - quantiles
    loss = np.maximum(PINBALL_LEVELS * error, (PINBALL_LEVELS - 1.0) * error).mean(axis=1)
    inside = (quantiles[:, _LOW] <= label) & (label <= quantiles[:, _HIGH])
    middle = quantiles[:, _MIDDLE]
    close = np.abs(label - middle) <= _LOG_2
    return np.stack([loss, inside, np.abs(np.exp(label) - np.exp(middle)), close], axis=1)


class Evidence:
    """The scores of one head's candidates, the newest 2,000 jobs of each history bucket."""

    def __init__(
        self,
        names: Sequence[str],
        tested: Mapping[str, Mapping[str, Any]] | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        """``names`` of the candidates, the simplest among them; ``tested`` = a model's metrics of its own test, by candidate;
        ``models`` = those that may serve a distribution, None = all.
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

    def _of_test(self, bucket: str, tested: Mapping[str, Mapping[str, Any]] | None) -> _Weighed:
        nothing = np.zeros((len(self.names), len(Scores._fields)))
        if tested is None or any(name not in tested for name in self.names):
            return _Weighed(0, nothing, 0.0)
        parts = [tested[name]["buckets"][bucket] for name in self.names]
        jobs = int(parts[0]["jobs"])
        if not jobs:
            return _Weighed(0, nothing, 0.0)
        means = [[part["pinball_log"], part["coverage_80"], part["mae"], part["within_2x"]] for part in parts]
        return _Weighed(jobs, np.array(means, dtype=np.float64), float(jobs))

    def observe(self, bucket: int, label: float, said: Mapping[str, Array]) -> None:
        """A job ended with this log label; ``said`` holds log points by candidate.

        A candidate that could not speak is scored as the simplest, which would have served instead; without that the job
        shows nothing.
        """
        simplest = said.get(SIMPLEST)
        if simplest is None:
            return
        self.add(bucket, scores_of(label, np.stack([said.get(name, simplest) for name in self.names])))

    def add(self, bucket: int, scored: Array) -> None:
        """A job ended with these scores, one row a candidate."""
        self._rows[bucket].append(scored)
        self._sums[bucket] += scored
        if len(self._rows[bucket]) > EVIDENCE_ROWS_MAX:
            self._sums[bucket] -= self._rows[bucket].popleft()
        self._fresh[bucket] += 1
        # When it is measured depends on what was added alone, never on who asked.
        if self._fresh[bucket] >= max(EVIDENCE_ROWS_MIN, RECOUNT_RATIO * len(self._rows[bucket])):
            self._share[bucket] = independent_share(np.array([row[self._simplest, 0] for row in self._rows[bucket]]))
            self._fresh[bucket] = 0
        self._chosen.clear()

    def _weighed(self, bucket: int) -> _Weighed:
        """The jobs seen in service, and of the test's as many as there is room for."""
        live, (jobs, means, _) = len(self._rows[bucket]), self._tested[bucket]
        room = min(jobs, EVIDENCE_ROWS_MAX - live)
        count = live + room
        return _Weighed(count, self._sums[bucket] + room * means, count * self._share[bucket])

    def jobs(self, bucket: int) -> int:
        """Jobs behind the choice of a bucket."""
        return self._weighed(bucket).jobs

    def champions(self, bucket: int) -> tuple[str, str]:
        """Who serves the distribution and the point of a bucket now. One with under 20 jobs follows all that were seen before;
        jobs never seen do not, as they are another population.
        """
        if bucket not in self._chosen:
            self._chosen[bucket] = champions(self._scores(bucket), self._counted(bucket).independent, self._models)
        return self._chosen[bucket]

    def mix(self) -> Mix:
        """Who serves each bucket now."""
        chosen = [self.champions(bucket) for bucket in range(len(BUCKETS))]
        return Mix(tuple(shape for shape, _ in chosen), tuple(point for _, point in chosen))

    def _counted(self, bucket: int) -> _Weighed:
        """The jobs that count for a bucket: its own, or where those are few, all that were seen before."""
        own = self._weighed(bucket)
        if own.jobs >= EVIDENCE_ROWS_MIN or bucket == 0:
            return own
        parts = [self._weighed(each) for each in range(1, len(BUCKETS))]
        return _Weighed(
            sum(part.jobs for part in parts),
            np.sum([part.sums for part in parts], axis=0),
            sum(part.independent for part in parts),
        )

    def _scores(self, bucket: int) -> dict[str, Scores]:
        jobs, sums, _ = self._counted(bucket)
        if jobs < EVIDENCE_ROWS_MIN:
            return {}
        return {name: Scores(*row) for name, row in zip(self.names, (sums / jobs).tolist(), strict=True)}
