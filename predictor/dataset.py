"""From a stream of jobs to examples, prequentially: an example contains only what was known at its job's submission.

:class:`Knowledge` is the state learnt from ended jobs. The live predictor and the trainer drive the same object, one with events
as they happen, the other by replaying rows, so a feature means the same in both.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from policies.model.estimate import Unit
from policies.model.value import value
from predictor import features
from predictor.baselines import BASE, base_point, baseline_points, learnt_from
from predictor.declarations import Declarations
from predictor.experts import empirical
from predictor.history import HistoryStore, OpenJobs, Quantiles
from predictor.recurrence import Level, bucket_of, keys_of
from predictor.rows import EndedRow, Submission

UNITS: Final = (Unit.ITERATIONS, Unit.SERVICE_S)
"""The two heads: iterations, and service seconds for programs that report none."""
TELLING_RUNS: Final = frozenset({1, 2, 3, 5, 8, 12, 20})
"""Ended runs of a program with which its open jobs are predicted again: an estimate rests on the newest 20 runs. So a job is
predicted at most seven times more.
"""
FIRST_ENDS: Final = frozenset({1, 2, 3, 5, 8, 12})
"""Ended jobs in all with which every open job is predicted again. No later: with 20 the cluster's past may rank jobs, but the
jobs that end first are the short ones, and would speak for those that are still open.
"""
_SUCCEEDED: Final = frozenset({"", "succeeded"})


@value
class Example:
    """One job as the experts see it. ``baselines`` are log points in the order of ``baselines.NAMES`` (NaN: unknown),
    ``empirical`` the distributions of the past in the order of ``experts.EMPIRICAL``.

    ``label`` is the natural log of the total in ``unit``, known from ``ended_at_s`` on; None while serving. ``service_s`` is the
    productive seconds in all, whatever the unit.
    """

    submission: Submission
    unit: Unit
    features: Sequence[float]
    runs: int
    baselines: tuple[float, ...]
    empirical: tuple[Quantiles | None, ...]
    label: float | None = None
    ended_at_s: float = math.inf
    service_s: float = math.nan

    @property
    def base(self) -> float:
        """The point from which the models learn the residual (:func:`predictor.baselines.learnt_from`)."""
        return learnt_from(self.baselines)

    @property
    def bucket(self) -> int:
        """History bucket (position in ``recurrence.BUCKETS``)."""
        return bucket_of(self.runs)


class Knowledge:
    """History per head, declarations and open jobs. Changes only by :meth:`submit` and :meth:`end`."""

    def __init__(self) -> None:
        self.history: dict[Unit, HistoryStore] = {unit: HistoryStore() for unit in UNITS}
        self.declarations = Declarations()
        self.open_jobs = OpenJobs()

    def submit(self, submission: Submission) -> None:
        """The job is open from now on. Idempotent."""
        self.open_jobs.add(submission.job, submission.submitted_at_s, features.open_keys(submission))

    def end(self, row: EndedRow) -> list[int]:
        """The job has ended: the only way in which history changes. Returns the open jobs to predict again: runs of the same
        program while it has few, and all jobs while few have ended.
        """
        self.open_jobs.remove(row.submission.job)
        self.declarations.ended(row)
        labels = {unit: row.label(unit) for unit in self.history}
        for unit, label in labels.items():
            if label is not None:
                self.history[unit].add(
                    row.submission, math.log(label), row.ended_at_s, row.final_state not in _SUCCEEDED
                )
        recurrence = keys_of(row.submission)[Level.RECURRENCE]
        history = self.history[Unit.SERVICE_S]
        if labels[Unit.SERVICE_S] is None:
            return []
        if len(history.cluster) in FIRST_ENDS:
            return self.open_jobs.all()
        group = history.group(Level.RECURRENCE, recurrence)
        if group is None or group.count not in TELLING_RUNS:
            return []
        return self.open_jobs.members((Level.RECURRENCE, recurrence))

    def example(self, submission: Submission, unit: Unit) -> Example:
        """What is known of a job in one unit, now. Reads only."""
        history = self.history[unit]
        keys = keys_of(submission)
        points = baseline_points(history, submission)
        declarations = self.declarations.weight_of(submission)
        service_s = self.history[Unit.SERVICE_S]
        base_s = points[BASE] if unit is Unit.SERVICE_S else base_point(service_s, keys)
        base = learnt_from(points)
        vector = features.build(submission, history, service_s, self.open_jobs, declarations, base, base_s)
        return Example(submission, unit, vector.values, vector.runs, points, empirical(history, keys))


def replay(
    rows: Iterable[EndedRow], knowledge: Knowledge, before_end: Callable[[EndedRow], None] = lambda row: None
) -> Iterator[tuple[EndedRow, dict[Unit, Example]]]:
    """Stream ended jobs (sorted by submission) through ``knowledge`` and yield each one's labelled examples.

    At every submission exactly the jobs with end <= submission are known. Memory: the jobs open at one time, not the rows.
    The last ends are applied too, so afterwards ``knowledge`` is that of a service that saw these jobs. One that ends at infinity
    stays open. ``before_end`` is called with each job just before its end is known. Raises ValueError for rows out of order:
    their features would depend on the future.
    """
    ends: list[tuple[float, int, EndedRow]] = []
    newest_s = -math.inf
    for row in rows:
        submission = row.submission
        if submission.submitted_at_s < newest_s:
            raise ValueError(f"job {submission.job}: rows must be sorted by submission")
        newest_s = submission.submitted_at_s
        while ends and ends[0][0] <= submission.submitted_at_s:
            _end(heappop(ends)[2], knowledge, before_end)
        examples: dict[Unit, Example] = {}
        for unit in UNITS:
            label = row.label(unit)
            if label is not None:
                examples[unit] = replace(
                    knowledge.example(submission, unit),
                    label=math.log(label),
                    ended_at_s=row.ended_at_s,
                    service_s=row.service_s,
                )
        knowledge.submit(submission)
        heappush(ends, (row.ended_at_s, submission.job, row))
        yield row, examples
    while ends and ends[0][0] < math.inf:
        _end(heappop(ends)[2], knowledge, before_end)


def _end(row: EndedRow, knowledge: Knowledge, before_end: Callable[[EndedRow], None]) -> None:
    before_end(row)
    knowledge.end(row)
