"""The state of a policy that ranks jobs: its parts, and the updates that touch several of them.

Nothing here decides. The state follows the changes of each cycle; what a decision means to do is entered as tentative and
taken back when the decision ends, because what was really done comes back as changes.
"""

from collections.abc import Sequence
from typing import Any

from policies.choose import UsableFit
from policies.model.cluster import Cluster
from policies.model.decision import Foreseen
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.resources import demand_of
from policies.model.server_reservation import ServerReservation
from policies.model.view import ClusterView, JobView
from policies.options import ContentionView, Options, Queue
from policies.placement.pool import free_now
from policies.rank import Rank
from policies.state.delays import PlacementDelays
from policies.state.guard import StarvationGuard
from policies.state.keys import GangClass, JobKey, Owner, RankLine, gang_class
from policies.state.last_scan import LastScan
from policies.state.ledger import GpuLedger
from policies.state.placements import PlacementIndex
from policies.state.project_shares import ProjectShares
from policies.state.running import RunningIndex
from policies.state.traffic import TrafficIndex
from policies.state.wait_reasons import WaitReasons
from policies.state.waiting import WaitingIndex


class SchedulerState:
    """See the module. Every update is O(log n).

    ``gpus`` is G, all GPUs of the cluster (at least 1), and ``gpus_by_type`` has those of each type. ``pool`` is the ledger's;
    ``unusable``: servers that take no work; ``usable_fit``: which gangs the other servers could hold;
    ``shares`` is None unless use is shared between projects. ``foreseen``: the next preemption, None until it is computed. A
    policy with state of its own derives from this class.
    """

    __slots__ = (
        "_gathered",
        "delays",
        "foreseen",
        "gpus",
        "gpus_by_type",
        "guard",
        "ledger",
        "placements",
        "pool",
        "reasons",
        "running",
        "scan",
        "server_reservations",
        "shares",
        "traffic",
        "unusable",
        "usable_fit",
        "waiting",
    )

    def __init__(self, view: ClusterView, options: Options) -> None:
        """The state for the servers of the view, without jobs. O(servers)."""
        servers = [ServerIndex(index) for index in range(len(view.cluster.servers))]
        self.gpus = max(1, view.cluster.gpus)
        self.gpus_by_type = view.cluster.gpus_by_type
        self.unusable = {server for server in servers if view.usable_gpus(server) == 0}
        self.usable_fit = UsableFit()
        self.server_reservations: Sequence[ServerReservation] = ()
        self.shares: ProjectShares | None = None
        if options.fair_share:
            self.shares = ProjectShares(options.fair_share_half_life_s, options.project_weights.of, view.now_s)
        self.scan = LastScan()
        self.waiting = WaitingIndex()
        self._gathered: dict[JobId, tuple[JobView, float]] | None = None
        self.running = RunningIndex()
        self.placements = PlacementIndex()
        self.pool = free_now(view)
        contention = view.cluster.contention if options.contention is ContentionView.FORESEE else None
        # Behind a head that waits for links to become free, all jobs wait: there the present crowd alone decides.
        self.traffic = TrafficIndex(self.pool, contention, fills_up=options.queue is not Queue.STRICT)
        self.ledger = GpuLedger(self.pool, self.scan)
        self.guard = StarvationGuard(options.guard_share * view.cluster.gpus if options.queue is Queue.SKIP else 0.0)
        self.delays = PlacementDelays()
        self.reasons = WaitReasons()
        self.foreseen: Foreseen | None = None

    def servers_changed(self) -> None:
        """Servers take work or not, or are reserved: what had no servers may have some now."""
        self.scan.valid = False
        self.usable_fit.servers_changed()
        self.guard.take_back()
        self.reasons.unchecked = True

    def dump(self) -> dict[str, Any]:
        """When delays began, which jobs are guarded and what projects have used: none follows from the jobs."""
        shares = {} if self.shares is None else {"shares": self.shares.dump()}
        return {**self.delays.dump(), **self.guard.dump(), **shares}

    def own_change_s(self) -> float | None:
        """When ranks change for a reason of the policy's own, which nobody else foresees; None: not as far as is known."""
        return None

    # Waiting jobs.

    def enqueue(self, job: JobView, rank: float) -> None:
        """Index a waiting job, again if its rank or priority has changed."""
        if self._gathered is not None:
            if job.id in self.waiting:
                self.dequeue(job.id)
            self._gathered[job.id] = (job, rank)
            return
        self.dequeue(job.id)
        gang, key = gang_class(job.spec, self.server_reservations), self._key(job, rank)
        owner = Owner(job.spec.project, job.spec.user)
        if self.waiting.add(gang, key, owner) or self._tried_beyond(gang, self.waiting.heads[gang]):
            self.scan.valid = False
        self.guard.start_waiting(job, self.gpus)

    def gather(self) -> None:
        """Only gather what is enqueued, until :meth:`enqueue_gathered`: many jobs are indexed at once in half of the time."""
        self._gathered = {}

    def enqueue_gathered(self) -> None:
        """Index the gathered jobs. O(n log n)."""
        gathered, self._gathered = self._gathered, None
        if not gathered:
            return
        # Jobs share their specs: those of an array, and of recurring submissions that were read together.
        known: dict[int, tuple[GangClass, Owner]] = {}
        entries = []
        for job, rank in gathered.values():
            spec = job.spec
            found = known.get(id(spec))
            if found is None:
                found = (gang_class(spec, self.server_reservations), Owner(spec.project, spec.user))
                known[id(spec)] = found
            entries.append((found[0], self._key(job, rank), found[1]))
        self.waiting.add_all(entries)
        self.guard.start_waiting_all([job for job, _ in gathered.values()], self.gpus)
        self.scan.valid = False

    def _key(self, job: JobView, rank: float) -> JobKey:
        if self.guard.tier(job.id):
            return JobKey(1, -job.priority, self.project_level(job), rank, job.submitted_at_s, job.id)
        # Guarded jobs are ordered by age: a stream of better ranks would otherwise starve the oldest even so.
        return JobKey(0, -job.priority, 0, 0.0, job.submitted_at_s, job.id)

    def dequeue(self, job: JobId) -> None:
        """Remove a waiting job; unknown jobs are ignored."""
        if self._gathered is not None:
            self._gathered.pop(job, None)
        found = self.waiting.remove(job)
        if found is None:
            return
        gang, key, _ = found
        self.guard.stop_waiting(job)
        head = self.waiting.heads.get(gang)
        if head is None:
            return
        if key < head:
            if self.scan.blocked.get(gang) != head.job:
                self.scan.valid = False
        elif self._tried_beyond(gang, head):
            self.scan.valid = False

    def _tried_beyond(self, gang: GangClass, head: JobKey) -> bool:
        """Whether a scan tries jobs of the class beyond its head."""
        return head.job in self.ledger.reservations or gang in self.scan.delayed

    # Running jobs.

    def hold(self, job: JobView, cluster: Cluster, placement: Placement) -> None:
        """The job holds these GPUs now."""
        self.ledger.touch(placement)
        self.placements.add(job, placement)
        self.traffic.add(job, cluster, placement)

    def index_running(self, job: JobView, rank: Rank, moves_from_s: float, refresh_at_s: float | None) -> bool:
        """Index (again) a job that may be preempted; return whether it is easier to displace than before.

        Its rank follows its slope from ``moves_from_s`` on and is computed again at ``refresh_at_s``. A guarded job stays out
        of the index: no job displaces it.
        """
        before = self.running.keys.get(job.id)
        self.unindex_running(job.id)
        if not self.guard.tier(job.id):
            return False
        line = RankLine(job.spec.gpus, rank.slope)
        origin = rank.value - rank.slope * line.gpus / self.gpus * moves_from_s
        key = JobKey(1, -job.priority, self.project_level(job), origin, job.submitted_at_s, job.id)
        self.running.add(line, key, refresh_at_s)
        return before is None or before[0] != line or before[1][:3] != key[:3] or before[1].rank < origin

    def protect(self, job: JobId, until_s: float) -> None:
        """Keep a running job out of the index until it may be stopped, so that no search has to pass it over."""
        self.unindex_running(job)
        if self.guard.tier(job):
            self.running.protect(job, until_s)

    def unindex_running(self, job: JobId) -> None:
        """The job cannot be preempted any more; unknown jobs are ignored."""
        self.running.remove(job)

    def leave(self, job: JobView, placement: Placement) -> None:
        """The job is being stopped: these GPUs will be vacated."""
        self.unindex_running(job.id)
        self.traffic.remove(job.id)
        self.ledger.leave(job.id, placement, demand_of(job.spec))

    def vacate(self, job: JobId, placement: Placement) -> None:
        """The job does not hold these GPUs any more."""
        self.unindex_running(job)
        self.traffic.remove(job)
        self.ledger.stay(job)
        self.placements.remove(job, placement)
        self.ledger.touch(placement)

    def undo_tentative(self) -> None:
        """The decision in progress is over: what was applied comes back as changes."""
        self.ledger.undo_tentative()
        self.traffic.undo_tentative()

    def end(self, job: JobView) -> None:
        """The job has ended."""
        self.dequeue(job.id)
        self.ledger.release(job.id)
        self.delays.end(job.id)
        self.reasons.drop(job.id)
        self.guard.leave(job)
        if self.shares is not None:
            self.shares.leave(job.id, job.spec.project)

    def project_level(self, job: JobView) -> int:
        """The level of the job's project, by which the job is indexed from now on; 0 unless use is shared."""
        return 0 if self.shares is None else self.shares.join(job)

    def check(self, view: ClusterView) -> None:
        """Raise AssertionError unless each part keeps its invariants and the parts agree. O(n log n); for tests."""
        for part in (self.waiting, self.running, self.placements, self.guard, self.traffic):
            part.check()
        self.ledger.check(view)
        assert {job for _, job in self.guard.waiting_order} == self.waiting.keys.keys() - self.guard.aside
        assert all(self.guard.tier(job) for job in (*self.running.keys, *self.running.protected))
        assert self.running.keys.keys().isdisjoint(self.waiting.keys)
        assert all(key.tier == self.guard.tier(job) for job, (_, key, _) in self.waiting.keys.items())
