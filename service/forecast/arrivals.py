"""Jobs that may still arrive in a sampled future: those of the recent past, again.

A future repeats the submissions that followed the same instant of an earlier day, drawn from the seed, and when it reaches the
present it goes on from another day (a block bootstrap: hours of the day, bursts, users, gang sizes and predictions stay
together). Nothing arrives as long as the record is shorter than a day. A repeated job has the estimate that it had, and needs
what it needed, also where it failed early: so predictions are as wrong as they were. A job that has not ended needs a total
drawn from its estimate beyond its progress. This is our construction.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import IterationTimes, JobSpec
from service.engine.record import JobRecord
from service.sim.work import JobTruth

DAY_S = 86_400.0

FIRST_ID = 2**33
"""Number of the first job that arrives. It is above those of real and planned jobs, so arrivals lose every tie."""

AHEAD_S_MAX = 366 * DAY_S
"""Nothing arrives later than this. Days without a job are many in a record of few."""


@dataclass(frozen=True, slots=True)
class PastArrival:
    """A job of the record; its spec has no dependencies and no place in an array.

    ``duration_s`` is its productive time at the best placement; None until it has ended, and ``done`` is then its progress in the
    estimate's unit. ``iterations``: the total of an ended job that reported progress.
    """

    submitted_at_s: float
    spec: JobSpec
    times: IterationTimes | None
    estimate: Estimate | None
    duration_s: float | None
    iterations: float | None = None
    done: float = 0.0


class Arrival(NamedTuple):
    """A job that arrives in a future, and its true work."""

    job: JobRecord
    truth: JobTruth


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The submissions since ``since_s``, ascending in time."""

    since_s: float
    jobs: Sequence[PastArrival]

    def repeats(self, now_s: float) -> bool:
        """Whether anything arrives after ``now_s``: not before the record is as long as a day."""
        return bool(self.jobs) and now_s - self.since_s >= DAY_S

    def ahead(self, now_s: float, number: int, futures: int, seed: int, limit: int) -> list[Arrival]:
        """At most ``limit`` arrivals after ``now_s`` in future ``number`` of ``futures``. O(log jobs + limit)."""
        if not self.repeats(now_s):
            return []
        draw = np.random.default_rng((seed, FIRST_ID, number))
        rows = islice(self._rows(now_s, number, futures, seed, draw), limit)
        found = []
        for index, (past, at_s) in enumerate(rows):
            arrival = _arrival(past, at_s, JobId(FIRST_ID + index), draw)
            if arrival is not None:
                found.append(arrival)
        return found

    def _rows(
        self, now_s: float, number: int, futures: int, seed: int, draw: np.random.Generator
    ) -> Iterator[tuple[PastArrival, float]]:
        """The repeated jobs with their new times, for a year ahead."""
        times = [job.submitted_at_s for job in self.jobs]
        # The days of the futures are spread evenly over the record.
        days = int((now_s - self.since_s) // DAY_S)
        order = np.random.default_rng((seed, FIRST_ID)).permutation(futures)
        shift_s = (1 + int((order[number] + draw.uniform()) / futures * days)) * DAY_S
        from_s = now_s
        while from_s - now_s < AHEAD_S_MAX:
            for index in range(bisect_left(times, from_s - shift_s), bisect_left(times, now_s)):
                yield self.jobs[index], times[index] + shift_s
            from_s = now_s + shift_s
            # Continue at the same hour of another day.
            shift_s += (1 + int(draw.integers(days))) * DAY_S


NO_RHYTHM = Rhythm(0.0, ())
"""Nothing arrives."""


def _arrival(past: PastArrival, at_s: float, job_id: JobId, draw: np.random.Generator) -> Arrival | None:
    """The job, submitted again at ``at_s``; None if it has neither ended nor an estimate of known speed."""
    duration_s, iterations, estimate = past.duration_s, past.iterations, past.estimate
    if duration_s is None:
        unit_s = estimate.seconds_per_unit if estimate is not None else None
        if estimate is None or unit_s is None:
            return None
        beyond = [point for point in estimate.points if point > past.done] or [2.0 * past.done]
        total = beyond[int(draw.integers(len(beyond)))]
        duration_s = total * unit_s
        iterations = total if estimate.unit is Unit.ITERATIONS else None
    elif estimate is not None and estimate.unit is Unit.SERVICE_S:
        iterations = None
    job = JobRecord(
        job_id,
        past.spec,
        at_s,
        priority=past.spec.priority,
        anchor_s=at_s,
        estimate=estimate,
        iteration_times=past.times,
    )
    return Arrival(job, JobTruth(max(duration_s, 1e-3), iterations, past.times))
