"""A policy's own indexes: who waits in which order, who runs, which GPUs are free, claimed or about to be vacated.

Nothing here decides. The book follows the changes it is told; what a decision only *means* to do is written in pencil and
rubbed out at the decision's end (:meth:`SchedulerState.erase`), because what was really done comes back as changes.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.model.view import ClusterView, JobView
from policies.placement.pool import FreePool
from policies.rank import Rank
from policies.state.gang_class import GangClass, gang_class
from policies.state.project_shares import DISPLACING_LEVELS, Shares


class Key(NamedTuple):
    """Order of jobs: guarded ones first, then larger priorities, then the project's level (0 unless use is shared fairly), rank,
    submission time, serial. Smaller is better.

    In the index of running jobs ``rank`` is the value at time 0 of the line that the rank follows (see ``Line``).
    """

    tier: int
    minus_priority: int
    share: int
    rank: float
    submitted_at_s: float
    job: JobId


class Line(NamedTuple):
    """Running jobs of one line keep their order over time: equal gang size, equal slope."""

    gpus: int
    slope: float


@dataclass(slots=True)
class SchedulerState:
    """See the module. Every update is O(log n); ``guard_gpus_max`` bounds the guarded share of the cluster.

    ``heads``: the best job of each gang class. ``settled``: for which job of a class the last decision could do nothing;
    ``delaying``: in which classes jobs wait for a better placement, the first until ``look_again_s``; ``restless``: whether
    anything has happened since then, running jobs apart, that could change that; ``swayed``: whether a running job is
    easier to displace than it was. ``sheltered``: running jobs that may not be stopped yet, whoever comes.
    ``moved``: running jobs that the decision in hand must index, with the rank by which they waited if they have just started.
    """

    pool: FreePool
    gpus: int
    guard_gpus_max: float
    unusable: set[ServerIndex] = field(default_factory=set)
    shares: Shares | None = None
    windows: Sequence[ServerReservation] = ()
    waiting: dict[GangClass, SortedList] = field(default_factory=dict)
    heads: dict[GangClass, Key] = field(default_factory=dict)
    waiting_keys: dict[JobId, tuple[GangClass, Key]] = field(default_factory=dict)
    running: dict[Line, SortedList] = field(default_factory=dict)
    running_keys: dict[JobId, tuple[Line, Key]] = field(default_factory=dict)
    on_server: dict[ServerIndex, dict[JobId, bool]] = field(default_factory=dict)
    scattered: SortedList = field(default_factory=SortedList)
    scattered_keys: dict[JobId, tuple[float, float, JobId]] = field(default_factory=dict)
    sheltered: dict[JobId, None] = field(default_factory=dict)
    moved: dict[JobId, float] = field(default_factory=dict)
    refreshes: list[tuple[float, JobId]] = field(default_factory=list)
    refresh_at_s: dict[JobId, float] = field(default_factory=dict)
    claims: dict[JobId, Placement] = field(default_factory=dict)
    claimed_on: dict[ServerIndex, dict[JobId, int]] = field(default_factory=dict)
    leaving: dict[JobId, Placement] = field(default_factory=dict)
    leaving_on: dict[ServerIndex, dict[JobId, int]] = field(default_factory=dict)
    waiting_ages: SortedList = field(default_factory=SortedList)
    entitled: SortedList = field(default_factory=SortedList)
    entitled_since_s: dict[JobId, float] = field(default_factory=dict)
    ages: SortedList = field(default_factory=SortedList)
    guarded: dict[JobId, int] = field(default_factory=dict)
    guarded_gpus: int = 0
    guarded_extra: JobId | None = None
    delayed_since_s: dict[JobId, float] = field(default_factory=dict)
    reasons: dict[JobId, Reason] = field(default_factory=dict)
    dirty: set[ServerIndex] = field(default_factory=set)
    unnoted: list[JobId] = field(default_factory=list)
    restless: bool = True
    swayed: bool = True
    tried_at_s: float = -math.inf
    settled: dict[GangClass, JobId] = field(default_factory=dict)
    delaying: set[GangClass] = field(default_factory=set)
    look_again_s: float = math.inf
    _pencilled_claims: list[JobId] = field(default_factory=list)
    _pencilled_leaving: list[JobId] = field(default_factory=list)
    _taken: dict[ServerIndex, int] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """When delays began and who is guarded: the jobs alone do not tell."""
        shares = {} if self.shares is None else {"shares": self.shares.dump()}
        return {
            "delayed_since_s": {str(job): at for job, at in sorted(self.delayed_since_s.items())},
            "guarded": sorted(self.guarded),
            "guarded_extra": self.guarded_extra,
            **shares,
        }

    # Waiting jobs.

    def enqueue(self, job: JobView, rank: float) -> None:
        """Index a waiting job (again, if its rank or priority changed)."""
        self.dequeue(job.id)
        gang = gang_class(job.spec, self.windows)
        tier = self.tier(job.id)
        # Among guarded jobs age alone decides: else a stream of better-ranked ones would starve the oldest all the same.
        share = 0 if self.shares is None or not tier else self.shares.join(job)
        key = Key(tier, -job.priority, share, rank if tier else 0.0, job.submitted_at_s, job.id)
        entries = self.waiting.get(gang)
        if entries is None:
            entries = self.waiting[gang] = SortedList()
        entries.add(key)
        head = self.heads.get(gang)
        if head is None or key < head:
            self.heads[gang] = key
            self.restless = True
        elif head.job in self.claims or gang in self.delaying:
            # Its turn has come already, or others of the class are tried as well.
            self.restless = True
        self.waiting_keys[job.id] = (gang, key)
        self.waiting_ages.add((job.submitted_at_s, job.id))
        since_s = self.entitled_since_s[job.id] = job.submitted_at_s + self._earned_s(job)
        self.entitled.add((since_s, job.id))

    def dequeue(self, job: JobId) -> None:
        """Forget a waiting job; unknown ones are ignored."""
        found = self.waiting_keys.pop(job, None)
        if found is not None:
            gang, key = found
            entries = self.waiting[gang]
            entries.remove(key)
            if not entries:
                del self.waiting[gang], self.heads[gang]
            elif (head := self.heads[gang]) is key:
                head = self.heads[gang] = entries[0]
                self.restless = self.restless or self.settled.get(gang) != head.job
            elif head.job in self.claims or gang in self.delaying:
                self.restless = True
            self.waiting_ages.remove((key.submitted_at_s, job))
            self.entitled.remove((self.entitled_since_s.pop(job), job))

    def jobs_ahead(self, job: JobId) -> int:
        """Waiting jobs with a better key. O(gang classes x log n)."""
        key = self.waiting_keys[job][1]
        return sum(entries.bisect_left(key) for entries in self.waiting.values())

    # Running jobs.

    def hold(self, job: JobId, placement: Placement) -> None:
        """The job holds these GPUs now. ``on_server`` notes for each server who does, and whether on that server alone."""
        for server in placement.servers:
            self.dirty.add(server)
            self.on_server.setdefault(server, {})[job] = len(placement.shares) == 1

    def scatter(self, job: JobView, stretch: float) -> None:
        """The running job is ``stretch`` times as slow as it could be elsewhere."""
        key = (-stretch, job.submitted_at_s, job.id)
        self.scattered.add(key)
        self.scattered_keys[job.id] = key

    def index_running(self, job: JobView, rank: Rank, moves_from_s: float, refresh_at_s: float | None) -> None:
        """Index (again) a job that could be preempted; its rank follows its slope from ``moves_from_s`` on.

        Guarded jobs stay out: nobody may displace them.
        """
        before = self.running_keys.get(job.id)
        self.unindex_running(job.id)
        if job.id in self.guarded or job.id == self.guarded_extra:
            return
        line = Line(job.spec.gpus, rank.slope)
        origin = rank.value - rank.slope * line.gpus / self.gpus * moves_from_s
        share = 0 if self.shares is None else self.shares.join(job)
        key = Key(1, -job.priority, share, origin, job.submitted_at_s, job.id)
        entries = self.running.get(line)
        if entries is None:
            entries = self.running[line] = SortedList()
        entries.add(key)
        self.running_keys[job.id] = (line, key)
        if before is None or before[0] != line or before[1][:3] != key[:3] or before[1].rank < origin:
            self.swayed = True
        if refresh_at_s is not None:
            self._refresh(job.id, refresh_at_s)

    def shelter(self, job: JobId, until_s: float) -> None:
        """Keep a running job out of the index until it may be stopped: nobody then has to pass it over."""
        self.unindex_running(job)
        if job not in self.guarded and job != self.guarded_extra:
            self.sheltered[job] = None
            self._refresh(job, until_s)

    def _refresh(self, job: JobId, at_s: float) -> None:
        self.refresh_at_s[job] = at_s
        heapq.heappush(self.refreshes, (at_s, job))

    def unindex_running(self, job: JobId) -> None:
        """The job cannot be preempted any more; unknown ones are ignored."""
        found = self.running_keys.pop(job, None)
        if found is not None:
            line, key = found
            entries = self.running[line]
            entries.remove(key)
            if not entries:
                del self.running[line]
        else:
            self.sheltered.pop(job, None)
        self.refresh_at_s.pop(job, None)

    def vacate(self, job: JobId, placement: Placement) -> None:
        """The job holds these GPUs no more."""
        self.unindex_running(job)
        self.unleave(job)
        if (key := self.scattered_keys.pop(job, None)) is not None:
            self.scattered.remove(key)
        for server in placement.servers:
            self.dirty.add(server)
            holders = self.on_server.get(server)
            if holders is not None:
                holders.pop(job, None)

    def due_refreshes(self, now_s: float) -> Iterator[JobId]:
        """Jobs to be ranked anew."""
        while self.refreshes and self.refreshes[0][0] <= now_s:
            at_s, job = heapq.heappop(self.refreshes)
            if self.refresh_at_s.get(job) == at_s:
                del self.refresh_at_s[job]
                yield job

    def next_refresh_s(self) -> float | None:
        """When the next rank must be computed anew."""
        while self.refreshes:
            at_s, job = self.refreshes[0]
            if self.refresh_at_s.get(job) == at_s:
                return at_s
            heapq.heappop(self.refreshes)
        return None

    # GPUs that are spoken for.

    def claim(self, job: JobId, placement: Placement) -> None:
        """Set these GPUs aside for a waiting job."""
        self.unclaim(job)
        self.restless = True
        self.claims[job] = placement
        for share in placement.shares:
            self.claimed_on.setdefault(share.server, {})[job] = share.gpus
            self.dirty.add(share.server)

    def unclaim(self, job: JobId) -> None:
        """Release a claim; unknown ones are ignored."""
        self._drop(job, self.claims, self.claimed_on)

    def leave(self, job: JobId, placement: Placement) -> None:
        """The job is being stopped: these GPUs will be vacated."""
        self.unindex_running(job)
        self._note_leaving(job, placement)

    def _note_leaving(self, job: JobId, placement: Placement) -> None:
        self.leaving[job] = placement
        self.restless = True
        for share in placement.shares:
            self.leaving_on.setdefault(share.server, {})[job] = share.gpus
            self.dirty.add(share.server)

    def unleave(self, job: JobId) -> None:
        """The stop has landed, or was not applied; unknown ones are ignored."""
        self._drop(job, self.leaving, self.leaving_on)

    def _drop(self, job: JobId, by_job: dict[JobId, Placement], by_server: dict[ServerIndex, dict[JobId, int]]) -> None:
        placement = by_job.pop(job, None)
        if placement is not None:
            self.restless = True
            for share in placement.shares:
                del by_server[share.server][job]
                if not by_server[share.server]:
                    del by_server[share.server]
                self.dirty.add(share.server)

    def surplus(self, server: ServerIndex) -> int:
        """GPUs being vacated on the server that nobody has claimed yet."""
        return max(0, _total(self.leaving_on, server) - _total(self.claimed_on, server))

    def balance(self, view: ClusterView, server: ServerIndex) -> int:
        """GPUs for anyone once those who leave have left; below zero where claims wait for jobs that do not leave yet."""
        free = view.free_gpus(server) - self._taken.get(server, 0)
        return free + _total(self.leaving_on, server) - _total(self.claimed_on, server)

    def sync(self, view: ClusterView) -> None:
        """Bring the pool in line with the view on every server that was touched. O(touched x log servers)."""
        for server in self.dirty:
            self.sync_server(view, server)
        self.dirty.clear()

    def sync_server(self, view: ClusterView, server: ServerIndex) -> None:
        """Free for all = free, less what claims need beyond what is being vacated, less what is pencilled in."""
        free = view.free_gpus(server)
        if free and (self._taken or server in self.claimed_on):
            owed = _total(self.claimed_on, server) - _total(self.leaving_on, server)
            free = max(0, free - max(0, owed) - self._taken.get(server, 0))
        before = self.pool.free(server) if server < len(self.pool) else -1
        if free != before:
            self.pool.set_free(server, free, view.cluster)
            self.restless = self.restless or free > before or bool(self.delaying)

    # The pencil.

    def pencil_start(self, view: ClusterView, placement: Placement) -> None:
        """Count these free GPUs as taken until the decision ends."""
        for share in placement.shares:
            self._taken[share.server] = self._taken.get(share.server, 0) + share.gpus
            self.dirty.add(share.server)
            self.sync_server(view, share.server)

    def pencil_claim(self, view: ClusterView, job: JobId, placement: Placement) -> None:
        """Count these GPUs as claimed until the decision ends."""
        self.claim(job, placement)
        self._pencilled_claims.append(job)
        for share in placement.shares:
            self.sync_server(view, share.server)

    def pencil_leave(self, view: ClusterView, job: JobId, placement: Placement) -> None:
        """Count the job as leaving until the decision ends. It stays indexed, so that whoever walks the index may go on."""
        self._note_leaving(job, placement)
        self._pencilled_leaving.append(job)
        for share in placement.shares:
            self.sync_server(view, share.server)

    def erase(self) -> None:
        """Rub out what the decision pencilled in.

        Jobs that it stops stay out of the index of running jobs: the change that tells what came of it, PREEMPTING or
        REFUSED, puts them where they belong.
        """
        for job in self._pencilled_claims:
            self.unclaim(job)
        for job in self._pencilled_leaving:
            self.unleave(job)
        self._pencilled_claims, self._pencilled_leaving, self._taken = [], [], {}

    # Shares of projects.

    def share(self, job: JobView) -> int:
        """The level of the job's project, by which it is indexed from now on; 0 unless use is shared fairly."""
        return 0 if self.shares is None else self.shares.join(job)

    def displaceable(self, share: int, key: Key) -> bool | None:
        """Whether a job with this key displaces one of a project at that level; None: their ranks decide."""
        if share == key.share:
            return None
        if share < key.share:
            return False
        return True if share >= key.share + DISPLACING_LEVELS else None

    # The starvation guard.

    def tier(self, job: JobId) -> int:
        """0 for guarded jobs, else 1."""
        return 0 if job in self.guarded or job == self.guarded_extra else 1

    def _earned_s(self, job: JobView) -> float:
        """How long a job must wait for the seconds that it has run: these are the guarded share of it."""
        if job.attempts == 0 or self.guard_gpus_max <= 0.0:
            return 0.0
        return job.attained_service_s(0.0) / job.spec.gpus * self.gpus / self.guard_gpus_max

    def forget(self, job: JobView) -> None:
        """The job has ended."""
        self.dequeue(job.id)
        self.unclaim(job.id)
        self.delayed_since_s.pop(job.id, None)
        self.reasons.pop(job.id, None)
        self.leave_guard(job.id, job.submitted_at_s, job.spec.gpus)
        if self.shares is not None:
            self.shares.leave(job.id, job.spec.project)

    def may_guard(self, job: JobView) -> None:
        """The job competes for GPUs or holds some: it may be guarded when it is old enough."""
        if job.id not in self.guarded:
            entry = (job.submitted_at_s, job.id, job.spec.gpus)
            self.ages.discard(entry)
            self.ages.add(entry)

    def leave_guard(self, job: JobId, submitted_at_s: float, gpus: int) -> None:
        """The job does not compete for GPUs: nobody is to wait for its sake."""
        if self.guarded.pop(job, None) is None:
            self.ages.discard((submitted_at_s, job, gpus))
        else:
            self.guarded_gpus -= gpus
        if self.guarded_extra == job:
            self.guarded_extra = None

    def guard(self, job: JobView) -> None:
        """Take a job back among the guarded ones, after an earlier dump."""
        self.ages.discard((job.submitted_at_s, job.id, job.spec.gpus))
        self.guarded[job.id] = job.spec.gpus
        self.guarded_gpus += job.spec.gpus

    def fill_guard(self, overdue_since_s: float) -> list[JobId]:
        """Guard the oldest unfinished jobs while they fit the share, and one that waits; returns the new ones.

        The latter is the oldest waiting job if its gang alone would fit the share. Else it is, whatever its size, whoever
        waits most beyond what the time it has run is worth, when it is overdue (since ``overdue_since_s`` or before). On a
        small cluster, where one gang is most of the GPUs, the head of the queue would else displace everyone, one after
        another: first in, first out. Membership lasts until the job ends, or its turn does
        (:func:`policies.promises.end_turn`): O(log n) amortised.
        """
        entered = []
        while self.ages and self.guarded_gpus + self.ages[0][2] <= self.guard_gpus_max:
            _, job, gpus = self.ages.pop(0)
            self.guarded[job] = gpus
            self.guarded_gpus += gpus
            if job == self.guarded_extra:
                self.guarded_extra = None
            entered.append(job)
        if self.guarded_extra is None and self.guard_gpus_max > 0.0:
            _, oldest = self._first_unguarded(self.waiting_ages)
            if oldest is None or self._gang(oldest) > self.guard_gpus_max:
                since_s, oldest = self._first_unguarded(self.entitled)
                oldest = oldest if since_s <= overdue_since_s else None
            if oldest is not None:
                self.guarded_extra = oldest
                entered.append(oldest)
        return entered

    def _first_unguarded(self, ages: SortedList) -> tuple[float, JobId | None]:
        return next((entry for entry in ages if entry[1] not in self.guarded), (math.inf, None))

    def _gang(self, job: JobId) -> int:
        return self.waiting_keys[job][0][0]


def _total(by_server: dict[ServerIndex, dict[JobId, int]], server: ServerIndex) -> int:
    found = by_server.get(server)
    return sum(found.values()) if found else 0
