"""A part of the queue in the order in which the next cycle considers its jobs, for those who look at it."""

import heapq
from collections.abc import Iterable, Sequence
from itertools import count
from math import isfinite
from typing import NamedTuple, Protocol

from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView
from policies.rank import Rank
from policies.state.keys import JobKey
from policies.state.scheduler_state import SchedulerState


class QueueWanted(NamedTuple):
    """At most ``limit`` jobs that come after ``past`` (None: from the first), of these jobs (None: of all)."""

    past: JobKey | None
    limit: int
    among: Sequence[JobId] | None = None


class QueuePlace(NamedTuple):
    """A job's place in the order. ``position``: 1 is the first of all jobs. ``rank``: None where it is infinite."""

    key: JobKey
    position: int
    rank: float | None


class QueueSlice(NamedTuple):
    """Jobs in their order.

    ``ordered``: how many of the jobs in question are in the order. ``others``: those of ``among`` that are not, in the same
    order as there: they may not start now. ``note``: a sentence about what the order alone does not show, or empty.
    """

    jobs: tuple[QueuePlace, ...]
    ordered: int
    others: tuple[JobId, ...]
    note: str


class Ranking(Protocol):
    """A policy that gives ranks."""

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The job's rank now; smaller comes first."""

    def queue_note(self, state: SchedulerState) -> str:
        """What the order of ranks does not show of how jobs start; empty where it shows everything."""


def queue_slice(policy: Ranking, view: ClusterView, state: SchedulerState, wanted: QueueWanted) -> QueueSlice:
    """The part of the queue that is wanted, from the index of waiting jobs.

    O((gang classes + limit) log n) for all jobs; with ``among`` O(those jobs + limit x gang classes x log n).
    """
    index = state.waiting
    others: tuple[JobId, ...] = ()
    positions: Iterable[int]
    if wanted.among is None:
        keys, ordered = index.following(wanted.past, wanted.limit), len(index)
        positions = count(1 + (index.jobs_ahead(keys[0].job) if keys else 0))
    else:
        known = [found[1] for job in wanted.among if (found := index.keys.get(job)) is not None]
        others = tuple(job for job in wanted.among if job not in index)
        past, ordered = wanted.past, len(known)
        keys = heapq.nsmallest(wanted.limit, known if past is None else [key for key in known if key > past])
        positions = (1 + index.jobs_ahead(key.job) for key in keys)
    ranks = [policy.rank(view, view.jobs[key.job], state).value for key in keys]
    places = [
        QueuePlace(key, position, rank if isfinite(rank) else None)
        for key, position, rank in zip(keys, positions, ranks, strict=False)
    ]
    return QueueSlice(tuple(places), ordered, others, policy.queue_note(state))
