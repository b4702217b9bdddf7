"""A part of the queue in the order in which the next cycle considers its jobs, for those who look at it."""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import isfinite
from typing import NamedTuple, Protocol

from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView
from policies.rank import Rank
from policies.state.keys import JobKey
from policies.state.scheduler_state import SchedulerState
from policies.state.waiting import WaitingIndex

WALKED_RATIO = 10
"""How many times as far as expected a walk along the queue looks for the jobs that are wanted; and how many times as far as there
are such jobs, since a look at each of them costs no more."""


class QueueWanted(NamedTuple):
    """At most ``limit`` jobs that come after ``past`` (None: from the first), of these jobs or of the owners (project, user) for
    which ``sees`` is true. Both None: of all.
    """

    past: JobKey | None
    limit: int
    among: Sequence[JobId] | None = None
    sees: Callable[[str, str], bool] | None = None


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

    O(running + (gang classes + limit) log n) for all jobs; with ``among`` O(running + those jobs + limit x gang classes x log n).
    While those are spread over the queue, each costs no more than a look into a set. With ``sees`` O(running + owners + limit x
    gang classes x log n) while the jobs of those owners are spread over the queue, else the jobs of those owners in addition.
    """
    index = state.waiting
    # A job that the last decision has started leaves the index with the next one.
    started = sorted(found[1] for job in view.holding() if (found := index.keys.get(job)) is not None)
    gone = {key.job for key in started}
    others: tuple[JobId, ...] = ()
    if wanted.sees is not None:
        owners = {owner for owner in index.owned if wanted.sees(owner.project, owner.user)}
        ordered = sum(len(index.owned[owner][1]) for owner in owners) - sum(
            index.keys[job][2] in owners for job in gone
        )
        each = (job for owner in owners for job in index.owned[owner][1] if job not in gone)
        keys = _first(index, lambda job: index.keys[job][2] in owners and job not in gone, ordered, each, wanted)
    elif wanted.among is None:
        found_keys = index.following(wanted.past, wanted.limit + len(started))
        keys = [key for key in found_keys if key.job not in gone][: wanted.limit]
        ordered = len(index) - len(started)
    else:
        among = frozenset(wanted.among)
        outside = among.difference(index.keys)
        others = tuple(job for job in wanted.among if job in outside) if outside else ()
        if gone & among:
            among -= gone
        ordered = len(among) - len(outside)
        keys = _first(index, among.__contains__, len(among), among, wanted)
    positions: Iterable[int]
    if wanted.among is None and wanted.sees is None and keys:
        positions = count(_position(index, started, keys[0]))
    else:
        positions = (_position(index, started, key) for key in keys)
    ranks = [policy.rank(view, view.jobs[key.job], state).value for key in keys]
    places = [
        QueuePlace(key, position, rank if isfinite(rank) else None)
        for key, position, rank in zip(keys, positions, ranks, strict=False)
    ]
    return QueueSlice(tuple(places), ordered, others, policy.queue_note(state))


def _first(
    index: WaitingIndex, is_one: Callable[[JobId], bool], number: int, jobs: Iterable[JobId], wanted: QueueWanted
) -> list[JobKey]:
    """The first after ``past`` of so many jobs: by a walk along the queue; of all of them if they are rare there."""
    found: list[JobKey] = []
    steps = WALKED_RATIO * min(number, wanted.limit * (1 + len(index) // max(1, number)))
    for step, key in enumerate(index.after(wanted.past)):
        if is_one(key.job):
            found.append(key)
            if len(found) == wanted.limit:
                return found
        if step == steps:
            break
    else:
        return found
    known = [index.keys[job][1] for job in jobs if job in index]
    past = wanted.past
    return heapq.nsmallest(wanted.limit, known if past is None else [key for key in known if key > past])


def _position(index: WaitingIndex, started: Sequence[JobKey], key: JobKey) -> int:
    return 1 + index.jobs_ahead(key.job) - bisect_left(started, key)
