"""Whom to stop for a better job: the worst-ranked running jobs that free the shape it needs, if that pays.

The rule is our construction: start j by stopping the set V iff
rank_j < eta x min over V of rank_v - sum over V of (g_v / G) (checkpoint_s + restart_s + lost_s(v)).
"""

import math
from collections.abc import Iterator, Sequence

from policies.choose import Candidate, consolidated, free_for
from policies.decision.protocols import Ranking
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.view import ClusterView, JobView
from policies.options import Preemption
from policies.rules.minimum_run_time import ripe_at_s
from policies.state.scheduler_state import Key, SchedulerState
from policies.state.victim_order import Standing, worst_first

MOVE_INTERVAL_S_MIN = 60.0
"""A job that started over runs for so long at least before it is moved for the sake of traffic."""

_ROUNDING = 1e-9
"""A rank that follows a line in the book may be off by as much, relatively and in virtual seconds."""

CANDIDATES_MAX = 256
"""Running jobs looked at, worst first, when one server's worth of GPUs is sought."""


class PreemptionContext:
    """The preemption side of one decision: policy, view and book, and what was found out about running jobs so far."""

    def __init__(self, policy: Ranking, view: ClusterView, book: SchedulerState) -> None:
        self.policy = policy
        self.view = view
        self.book = book
        self.allowed = policy.options.preemption is not Preemption.NEVER
        """Whether anyone may still be displaced in this decision."""
        self.eta = policy.options.eta if policy.options.preemption is Preemption.GUIDED else 1.0
        self._ranks: dict[JobId, float] = {}
        self._worst = worst_first(book, view.now_s)
        self._looked_at: list[Standing] = []
        self._glances = policy.ranks_keep_to_lines
        self.ripe_at_s = math.inf
        """When the first of those that were looked at, and may not be stopped yet, may be."""

    def rank(self, job: JobView) -> float:
        """A running job's rank now."""
        found = self._ranks.get(job.id)
        if found is None:
            found = self._ranks[job.id] = self.policy.rank(self.view, job, self.book).value
        return found

    def price(self, job: JobView) -> float:
        """What stopping the job costs, in the unit of ranks (virtual seconds)."""
        if self.policy.options.preemption is Preemption.ALWAYS:
            return 0.0
        return self.policy.rank_per_s(job, self.book) * self.seconds_lost(job)

    def seconds_lost(self, job: JobView) -> float:
        """Seconds of the job's own time that stopping it costs."""
        costs = self.view.costs
        return costs.checkpoint_s + costs.restart_s + job.lost_s(self.view.now_s)

    def ripe(self, job: JobView) -> bool:
        """Whether the job's attempt has run for long enough to be stopped; notes when the next one will have."""
        at_s = ripe_at_s(self.policy.options, self.view.costs, job)
        if at_s > self.view.now_s:
            self.ripe_at_s = min(self.ripe_at_s, at_s)
            return False
        return True

    def may_move(self, job: JobView) -> bool:
        """Whether the job may be stopped for the sake of traffic: if it started over, it must have earned that first.

        Whoever displaces by rank is better, which ends; but moves for traffic could undo each other, at one instant, for ever.
        """
        if not self.ripe(job) or job.attempt_started_at_s is None:
            return False
        earned_s = max(MOVE_INTERVAL_S_MIN, self.seconds_lost(job))
        return job.attempts == 1 or job.attempt_started_at_s + earned_s <= self.view.now_s

    def displaces(self, key: Key, victim: JobView) -> bool:
        """Whether a job with this key may displace this one, the price apart."""
        if not self.ripe(victim):
            return False
        if key.tier == 0:
            return True
        if -key.minus_priority != victim.priority:
            return -key.minus_priority > victim.priority
        if self.settled(victim):
            return False
        if self.book.shares is not None:
            by_share = self.book.displaceable(self.book.share(victim), key)
            if by_share is not None:
                return by_share
        return key.rank < self.eta * self.rank(victim)

    def settled(self, victim: JobView) -> bool:
        """Whether the job has started over once and would do so again, which only jobs of larger priority may demand.

        Two jobs that cannot checkpoint would else undo each other's work for ever.
        """
        return victim.attempts > 1 and victim.lost_s(self.view.now_s) > 0.0

    def pays(self, key: Key, victims: Sequence[JobView]) -> bool:
        """Whether displacing all of them pays, the price included; jobs of smaller priority, or of a project that has had
        much more, cost nothing."""
        if key.tier == 0:
            return True
        equals = [victim for victim in victims if victim.priority >= -key.minus_priority]
        if self.book.shares is not None:
            equals = [victim for victim in equals if not self.book.displaceable(self.book.share(victim), key)]
        worst_of_best = min((self.rank(victim) for victim in equals), default=math.inf)
        return key.rank < self.eta * worst_of_best - sum(self.price(victim) for victim in equals)

    def candidates(self, key: Key) -> Iterator[JobView]:
        """Running jobs that the key may displace, worst first."""
        if not self.allowed:
            return
        position = 0
        while (standing := self._standing(position)) is not None:
            position += 1
            if standing.job in self.book.leaving:
                continue
            if self._glances and self._safe_from(key, standing):
                return
            victim = self.view.jobs[standing.job]
            if self.displaces(key, victim):
                yield victim
            elif key.tier and -key.minus_priority <= victim.priority and self._none_after(key, standing, victim):
                return

    def _none_after(self, key: Key, standing: Standing, victim: JobView) -> bool:
        """Whether the key, which does not displace this job, displaces none of equal priority that comes after it."""
        if standing.share != key.share:
            return standing.share < key.share
        return self.rank(victim) * self.eta <= key.rank

    def hopeless(self, key: Key, missing: int) -> bool:
        """Whether it is certain without a closer look that displacing jobs cannot bring so many GPUs. O(candidates)."""
        if self._surplus():
            return False
        if not self.allowed:
            return True
        if not self._glances or key.tier == 0:
            return False
        position = 0
        while missing > 0 and (standing := self._standing(position)) is not None:
            if self._safe_from(key, standing):
                return True
            position += 1
            if standing.job not in self.book.leaving:
                missing -= standing.gpus
        return missing > 0

    def _safe_from(self, key: Key, standing: Standing) -> bool:
        """Whether the key certainly displaces neither this job nor any that comes after it."""
        if key.tier == 0 or -key.minus_priority > standing.priority:
            return False
        if -key.minus_priority == standing.priority and standing.share != key.share:
            return standing.share < key.share
        limit = self.eta * standing.rank
        return -key.minus_priority < standing.priority or limit + abs(limit) * _ROUNDING + _ROUNDING <= key.rank

    def _standing(self, position: int) -> Standing | None:
        """The running job there, worst first, of those that may be stopped at all.

        Each is fetched from the book once, however many jobs bid, and so are those that are left alone.
        """
        while position == len(self._looked_at):
            standing = next(self._worst, None)
            if standing is None:
                return None
            if self.ripe(self.view.jobs[standing.job]):
                self._looked_at.append(standing)
        return self._looked_at[position]

    def _surplus(self) -> bool:
        """Whether GPUs are being vacated that nobody has claimed."""
        return bool(self.book.leaving_on) and any(self.book.surplus(server) for server in self.book.leaving_on)

    def worth_trying(self, key: Key) -> bool:
        """Whether there is anyone at all to displace, or GPUs being vacated that nobody has claimed."""
        return self._surplus() or next(self.candidates(key), None) is not None


def find_victims(
    bid: PreemptionContext, job: JobView, key: Key, *, consolidated_only: bool
) -> tuple[Candidate, tuple[JobId, ...]] | None:
    """A placement on GPUs that are free, being vacated, or held by jobs worth displacing; and those jobs.

    ``consolidated_only``: the job could start elsewhere already, so only a placement that keeps its traffic local counts.
    GPUs that are being vacated anyway are used before anyone else is stopped. O(victims log n).
    """
    soon = FuturePool(bid)
    try:
        if soon.added and (candidate := soon.fit(job, consolidated_only)) is not None:
            return candidate, ()
        picked = _enough(bid, soon, job, key)
        scattered = None
        if picked is not None and (candidate := soon.fit(job, consolidated_only)) is not None:
            victims = indispensable(bid, candidate.placement, picked, soon)
            if bid.pays(key, victims):
                scattered = candidate, tuple(victim.id for victim in victims)
                if job.iteration_times is None or consolidated(candidate, job.iteration_times):
                    return scattered
        if picked is None or job.iteration_times is None:
            return scattered
        soon.restore()
        return _one_server(bid, soon, job, key) or scattered
    finally:
        soon.restore()


class FuturePool:
    """The pool as it will be when those who leave have left, lent for a moment: :meth:`restore` gives it back."""

    def __init__(self, bid: PreemptionContext, *, also_leaving: bool = True) -> None:
        self._bid = bid
        self._before: dict[ServerIndex, int] = {}
        self._balance: dict[ServerIndex, int] = {}
        self.added = 0
        self.added_jobs = 0
        for server in bid.book.leaving_on if also_leaving else ():
            self.add(server, 0)

    def add(self, server: ServerIndex, gpus: int) -> None:
        """Pretend that these GPUs are free, and those that are leaving; claims on the server are served first."""
        book, view = self._bid.book, self._bid.view
        if view.usable_gpus(server) == 0:
            return
        if server not in self._before:
            self._before[server] = book.pool.free(server)
            self._balance[server] = book.balance(view, server)
        self._balance[server] += gpus
        free = max(0, self._balance[server])
        self.added += free - book.pool.free(server)
        book.pool.set_free(server, free)

    def add_job(self, victim: JobView) -> None:
        """Pretend that this job has left."""
        assert victim.placement is not None
        self.added_jobs += 1
        for share in victim.placement.shares:
            self.add(share.server, share.gpus)

    def free(self, server: ServerIndex) -> int:
        """GPUs free before anyone was pretended away, or leaving anyway."""
        return self._bid.book.pool.free(server)

    def fit(self, job: JobView, consolidated_only: bool) -> Candidate | None:
        """A placement in the pool as it stands."""
        if free_for(self._bid.book.pool, job.spec) < job.spec.gpus:
            return None
        candidate = self._bid.policy.find(self._bid.book.pool, self._bid.view, job)
        if candidate is None or not consolidated_only or job.iteration_times is None:
            return candidate
        return candidate if consolidated(candidate, job.iteration_times) else None

    def restore(self) -> None:
        """Give the pool back as it was."""
        for server, gpus in self._before.items():
            self._bid.book.pool.set_free(server, gpus)
        self._before = {}
        self._balance = {}
        self.added = 0
        self.added_jobs = 0


def _enough(bid: PreemptionContext, soon: FuturePool, job: JobView, key: Key) -> list[JobView] | None:
    """Take the worst running jobs away until the count of GPUs is enough; None if the eligible ones are too few."""
    picked: list[JobView] = []
    missing = job.spec.gpus - free_for(bid.book.pool, job.spec)
    for victim in bid.candidates(key):
        if not _same_type(bid, job, victim):
            continue
        picked.append(victim)
        missing -= victim.spec.gpus
        if missing > 0:
            # Counting is cheap, and most of the time it says that there is no point in trying.
            continue
        for one in picked if soon.added_jobs == 0 else picked[-1:]:
            soon.add_job(one)
        if soon.fit(job, False) is not None:
            return picked
    return None


def indispensable(
    bid: PreemptionContext, placement: Placement, picked: Sequence[JobView], soon: FuturePool
) -> list[JobView]:
    """Those of the picked jobs without whom the placement would lack GPUs; the best-ranked are spared first."""
    spare: dict[ServerIndex, int] = {}
    for share in placement.shares:
        spare[share.server] = soon.free(share.server) - share.gpus
    needed = []
    for victim in reversed(picked):
        assert victim.placement is not None
        shares = [share for share in victim.placement.shares if share.server in spare]
        if all(spare[share.server] >= share.gpus for share in shares):
            for share in shares:
                spare[share.server] -= share.gpus
        else:
            needed.append(victim)
    needed.reverse()
    return needed


def _one_server(
    bid: PreemptionContext, soon: FuturePool, job: JobView, key: Key
) -> tuple[Candidate, tuple[JobId, ...]] | None:
    """Free one whole server's worth of GPUs for a job that communicates: the first server that the worst jobs open."""
    by_server: dict[ServerIndex, list[JobView]] = {}
    freed: dict[ServerIndex, int] = {}
    for looked_at, victim in enumerate(bid.candidates(key)):
        if looked_at >= CANDIDATES_MAX:
            return None
        assert victim.placement is not None
        for share in victim.placement.shares:
            by_server.setdefault(share.server, []).append(victim)
            freed[share.server] = freed.get(share.server, 0) + share.gpus
            server_free = bid.book.balance(bid.view, share.server) + freed[share.server]
            if server_free < job.spec.gpus or not bid.view.usable_gpus(share.server):
                continue
            found = _take_server(bid, job, key, by_server[share.server])
            if found is not None:
                return found
    return None


def _take_server(
    bid: PreemptionContext, job: JobView, key: Key, victims: Sequence[JobView]
) -> tuple[Candidate, tuple[JobId, ...]] | None:
    soon = FuturePool(bid)
    try:
        for victim in victims:
            soon.add_job(victim)
        candidate = soon.fit(job, consolidated_only=True)
        if candidate is None:
            return None
        needed = indispensable(bid, candidate.placement, victims, soon)
        if not bid.pays(key, needed):
            return None
        return candidate, tuple(victim.id for victim in needed)
    finally:
        soon.restore()


def _same_type(bid: PreemptionContext, job: JobView, victim: JobView) -> bool:
    """Whether the victim's GPUs are of a type that the job takes. An untyped job takes the type that fits it first."""
    wanted = job.spec.gpu_types
    if not wanted:
        return True
    assert victim.placement is not None
    return bid.view.cluster.servers[victim.placement.servers[0]].gpu_type in wanted
