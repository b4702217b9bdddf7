"""Slurm's own order as a policy: priority, then job id, with backfill by time limits. It models what Slurm will do.

After ``sched/backfill``: jobs are taken by priority. Each gets the earliest start at which its nodes are free for its whole time
limit, as far as the limits of running jobs and the reservations of jobs before it show. A job whose earliest start is now
starts; the others keep their reservation against the jobs after them. As Slurm does, a cycle scans the queue until no GPU is
free: this policy is for forecasts, not for a cluster.

Known differences: CPUs, memory, licences and advance reservations are not seen, and backfill happens at once instead of every
``bf_interval``.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.model.decision import Change, ChangeKind, Decision, Start
from policies.model.estimate import Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement, ServerShare, place
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView, JobView

RESERVATIONS_MAX = 32
"""Blocked jobs that get a reservation in a cycle. Further ones may only start now. Slurm's own limit (bf_max_job_test) is 500;
beyond a few dozen the reservations lie so far ahead that they change no start of the near future."""

WINDOW_S = 86_400.0
"""Slurm's default bf_window: a job that cannot start within a day has no reservation."""

OVER_LIMIT_S = 60.0
"""A job that has reached its limit is being ended; it holds its GPUs about this long."""

_OPPORTUNITIES = frozenset({ChangeKind.ARRIVED, ChangeKind.VACATED, ChangeKind.SERVER_CHANGED, ChangeKind.REFUSED})
"""Changes after which a job may start that could not before."""

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job asks of the nodes: ``gpus_a_node`` on each of ``nodes`` nodes; None: any split over at least ``nodes``.

    ``allowed`` are the positions of the servers that it may use (its partition, its required and excluded nodes).
    """

    gpus: int
    nodes: int
    gpus_a_node: int | None
    allowed: frozenset[int]


@dataclass(slots=True)
class OrderState:
    """The masks of ``allowed`` sets. Everything else is read from the view."""

    masks: dict[frozenset[int], Mask] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """Nothing: the jobs say all."""
        return {}


class SlurmOrder:
    """Implements :class:`policies.base.Policy`; see the module. ``shapes`` holds every job of the world.

    ``ahead``: the order of waiting jobs, smaller first; the default is the larger priority. Ties go to the smaller id.
    """

    name = "slurm"

    def __init__(self, shapes: Mapping[JobId, Shape], ahead: Mapping[JobId, int] | None = None) -> None:
        self._shapes = shapes
        self._ahead = ahead

    def initial_state(self, view: ClusterView) -> OrderState:
        """No masks yet."""
        return OrderState()

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> OrderState:
        """As :meth:`initial_state`."""
        return OrderState()

    def decide(self, view: ClusterView, changes: Sequence[Change], state: OrderState) -> Decision:
        """Start what Slurm would start now. O(waiting jobs x (running jobs + reservations) x servers) at worst."""
        if changes and _OPPORTUNITIES.isdisjoint(change.kind for change in changes):
            return Decision()
        free = np.array([view.free_gpus(ServerIndex(server)) for server in range(len(view.cluster.servers))])
        if not free.any():
            return Decision()
        waiting = sorted([job for job in view.jobs.values() if job.waiting], key=self._key)
        scan = _Scan(view, free, [_Wanted(self._shapes[job.id], _length_s(job)) for job in waiting], state.masks)
        return Decision(tuple(Start(waiting[number].id, _placement(counts)) for number, counts in scan.starts()))

    def explain(self, view: ClusterView, state: OrderState, job: JobId) -> Explanation:
        """Waiting by priority, or running."""
        servers = range(len(view.cluster.servers))
        free = [view.free_gpus(ServerIndex(server)) for server in servers]
        found = view.jobs[job]
        reason = Reason.PRIORITY if found.placement is None else Reason.STARTED
        return Explanation(reason, found.spec.gpus, sum(free), sum(gpus > 0 for gpus in free))

    def _key(self, job: JobView) -> tuple[int, int]:
        if self._ahead is not None and job.id in self._ahead:
            return self._ahead[job.id], job.id
        return -job.priority, job.id


class _Wanted(NamedTuple):
    """Jobs that are equal here want the same."""

    shape: Shape
    length_s: float


class _Scan:
    """One pass over the queue."""

    def __init__(
        self, view: ClusterView, free: Counts, wanted: Sequence[_Wanted], masks: dict[frozenset[int], Mask]
    ) -> None:
        self._timeline = _Timeline(view, free)
        self._wanted = wanted
        self._servers = len(free)
        self._masks = masks
        last = {want: number for number, want in enumerate(wanted)}
        self._last = sorted(((number, want) for want, number in last.items()), reverse=True)

    def starts(self) -> Iterator[tuple[int, Counts]]:
        """The jobs that start, by their position in the queue, with their GPUs on each server."""
        timeline, blocked, reservations = self._timeline, set[_Wanted](), 0
        until = self._last_that_fits()
        for number, want in enumerate(self._wanted):
            if number > until:
                return
            if want in blocked and reservations >= RESERVATIONS_MAX:
                continue
            found = timeline.earliest(
                want, self._mask(want.shape), now=want not in blocked, later=reservations < RESERVATIONS_MAX
            )
            if found is not None and found[0] == 0:
                timeline.take(0, want.length_s, found[1])
                yield number, found[1]
                until = self._last_that_fits()
                continue
            blocked.add(want)
            if found is not None:
                timeline.take(found[0], want.length_s, found[1])
                reservations += 1

    def _last_that_fits(self) -> int:
        """The last job whose GPUs are free at this instant: no reservation is needed against later ones. -1: there is none."""
        free = self._timeline.free_now
        for number, want in self._last:
            if _fits(np.where(self._mask(want.shape), free, 0)[np.newaxis], want.shape)[0]:
                return number
        return -1

    def _mask(self, shape: Shape) -> Mask:
        if shape.allowed not in self._masks:
            self._masks[shape.allowed] = np.isin(np.arange(self._servers), sorted(shape.allowed))
        return self._masks[shape.allowed]


class _Timeline:
    """Free GPUs of each server from now on: row ``i`` holds from ``times[i]`` until ``times[i + 1]``."""

    def __init__(self, view: ClusterView, free: Counts) -> None:
        now_s = view.now_s
        ends: dict[float, Counts] = {}
        for job_id in view.holding():
            job = view.jobs[job_id]
            assert job.placement is not None
            left_s = _length_s(job) - job.done(Unit.SERVICE_S, now_s)
            end_s = now_s + (left_s if left_s > 0.0 else OVER_LIMIT_S)
            given = ends.setdefault(end_s, np.zeros_like(free))
            for share in job.placement.shares:
                if view.usable_gpus(share.server):
                    given[share.server] += share.gpus
        self.times = [now_s, *sorted(end_s for end_s in ends if end_s < math.inf)]
        self._rows = np.cumsum([free, *(ends[end_s] for end_s in self.times[1:])], axis=0)

    @property
    def free_now(self) -> Counts:
        """Free GPUs of each server in the first row."""
        found: Counts = self._rows[0]
        return found

    def earliest(self, want: _Wanted, mask: Mask, *, now: bool, later: bool) -> tuple[int, Counts] | None:
        """The first row at which the job fits for its whole length, and its GPUs on each server; None if there is none.

        ``now``, ``later``: whether the first row and the others count.
        """
        rows = np.where(mask, self._rows if later else self._rows[:1], 0)
        for row in np.flatnonzero(_fits(rows, want.shape)).tolist():
            if (row == 0 and not now) or self.times[row] - self.times[0] > WINDOW_S:
                continue
            until = self._row_at(self.times[row] + want.length_s)
            least = np.where(mask, self._rows[row:until].min(axis=0), 0)
            if _fits(least[np.newaxis], want.shape)[0]:
                return row, _chosen(least, want.shape)
        return None

    def take(self, row: int, length_s: float, counts: Counts) -> None:
        """Reserve these GPUs from the row on for the length."""
        end_s = self.times[row] + length_s
        until = self._row_at(end_s)
        if end_s < math.inf and (until == len(self.times) or self.times[until] > end_s):
            self.times.insert(until, end_s)
            self._rows = np.insert(self._rows, until, self._rows[until - 1], axis=0)
        self._rows[row:until] -= counts

    def _row_at(self, at_s: float) -> int:
        """The first row that begins at ``at_s`` or later."""
        return bisect_left(self.times, at_s)


def _fits(rows: Counts, shape: Shape) -> Mask:
    """Whether each row holds the job."""
    if shape.gpus_a_node is not None:
        found: Mask = (rows >= shape.gpus_a_node).sum(axis=1) >= shape.nodes
        return found
    enough: Mask = (rows.sum(axis=1) >= shape.gpus) & ((rows > 0).sum(axis=1) >= shape.nodes)
    return enough


def _chosen(free: Counts, shape: Shape) -> Counts:
    """The GPUs of each server that the job gets: the first nodes that hold its share, or the fewest nodes."""
    counts = np.zeros_like(free)
    if shape.gpus_a_node is not None:
        counts[np.flatnonzero(free >= shape.gpus_a_node)[: shape.nodes]] = shape.gpus_a_node
        return counts
    left = shape.gpus
    for number, server in enumerate(np.argsort(-free, kind="stable").tolist()):
        others = max(0, shape.nodes - number - 1)
        counts[server] = min(int(free[server]), left - others)
        left -= int(counts[server])
        if left == 0:
            break
    return counts


def _placement(counts: Counts) -> Placement:
    return place([ServerShare(ServerIndex(server), int(counts[server])) for server in np.flatnonzero(counts).tolist()])


def _length_s(job: JobView) -> float:
    return math.inf if job.spec.walltime_s is None else job.spec.walltime_s
