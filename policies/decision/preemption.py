"""The running jobs that a waiting job may displace, and the price.

The rule is our construction: job j displaces the set V iff
rank_j < eta x min over V of rank_v - sum over V of (g_v / G) (checkpoint_s + restart_s + lost_s(v)).
"""

import math
from collections.abc import Hashable, Iterator, Sequence

from policies.decision.decider import Decider
from policies.decision.searches import Searches
from policies.model.ids import JobId, ServerIndex
from policies.model.resources import Demand, taken_by
from policies.model.view import ClusterView, JobView
from policies.options import PlacementMethod, Preemption, PreemptUnsaved
from policies.placement.iteration import gang_of
from policies.rules.registered import protected_until_s
from policies.rules.unsaved_work import cannot_save
from policies.state.keys import JobKey
from policies.state.project_shares import displaces_by_level
from policies.state.running import Victim
from policies.state.scheduler_state import SchedulerState

MOVE_INTERVAL_S_MIN = 60.0
"""A job that has restarted runs for at least this long before it is moved for better communication."""

_ROUNDING = 1e-9
"""A rank that follows a line in the index may be off by this much, relatively and in virtual seconds."""


class PreemptionContext:
    """The preemption side of one decision: policy, view and state, and cached values of running jobs."""

    __slots__ = (
        "_fetched", "_limits", "_ranks", "_unsaved_by_priority", "_victim_order", "eta", "may_preempt", "movable",
        "next_stoppable_s", "policy", "searches", "state", "view",
    )  # fmt: skip

    def __init__(self, policy: Decider, view: ClusterView, state: SchedulerState) -> None:
        self.policy = policy
        self.view = view
        self.state = state
        self.may_preempt = policy.options.preemption is not Preemption.NEVER
        """Whether any job may still be displaced in this decision."""
        self.eta = policy.options.eta if policy.options.preemption is Preemption.GUIDED else 1.0
        self.next_stoppable_s = math.inf
        """When the first of the jobs that were looked at, and are protected now, may be stopped."""
        self.movable: dict[tuple[ServerIndex, int, int], tuple[Sequence[JobView], int, float]] = {}
        """By server, priority and number of jobs that are being stopped: the jobs on the server that may be moved, their GPUs,
        and the GPU seconds that they lose."""
        self.searches = Searches()
        self._ranks: dict[JobId, float] = {}
        self._limits: dict[JobId, float] = {}
        """Below which rank displacing each running job alone pays."""
        self._unsaved_by_priority = policy.options.preempt_unsaved is PreemptUnsaved.PRIORITY
        self._victim_order: Iterator[Victim] | None = None
        """Made where it is read: most decisions without preemption look at no victim."""
        self._fetched: list[Victim] = []

    def rank(self, job: JobView) -> float:
        """A running job's rank now."""
        found = self._ranks.get(job.id)
        if found is None:
            found = self._ranks[job.id] = self.policy.rank(self.view, job, self.state).value
        return found

    def price(self, job: JobView) -> float:
        """The price of stopping the job, in the unit of ranks (virtual seconds)."""
        if self.policy.options.preemption is Preemption.ALWAYS:
            return 0.0
        return self.policy.rank_per_s(job, self.state) * self.seconds_lost(job)

    def seconds_lost(self, job: JobView) -> float:
        """Seconds of run time that a stop costs the job."""
        costs = self.view.costs
        return costs.checkpoint_s + costs.restart_s + job.lost_s(self.view.now_s)

    def likeness(self, job: JobView) -> Hashable | None:
        """What decides where this waiting job could be placed, and how fast it would run there: equal for jobs placed alike.

        None where that depends on the job itself: at random, or where a reservation of servers may begin before it ends.
        """
        if self.policy.options.placement is PlacementMethod.RANDOM or self.view.server_reservations:
            return None
        times = job.iteration_times
        pace = None if times is None else (times.min_s, times.slowdown)
        return self.state.waiting.keys[job.id][0], gang_of(job.spec), pace

    def may_stop(self, job: JobView) -> bool:
        """Whether no preemption rule protects the job now; notes when the next protected job may be stopped."""
        at_s = protected_until_s(self.policy.preemption_rules, self.view.costs, job)
        if at_s > self.view.now_s:
            self.next_stoppable_s = min(self.next_stoppable_s, at_s)
            return False
        return True

    def spares(self, job: JobView, priority: int) -> bool:
        """Whether the job cannot checkpoint, and jobs of this priority may not have it stopped (``preempt_unsaved``)."""
        return self._unsaved_by_priority and priority <= job.priority and cannot_save(job)

    def may_move(self, job: JobView, priority: int) -> bool:
        """Whether the job may be stopped for the better communication of a job of this priority, or for its own.

        If it has restarted, only after it has run a while.

        Displacing by rank comes to an end because ranks improve; moves could undo each other at one instant for ever.
        """
        if not self.may_stop(job) or job.attempt_started_at_s is None or self.spares(job, priority):
            return False
        run_s_min = max(MOVE_INTERVAL_S_MIN, self.seconds_lost(job))
        return job.attempts == 1 or job.attempt_started_at_s + run_s_min <= self.view.now_s

    def loses_repeatedly(self, job: JobView) -> bool:
        """Whether the job has lost work before and would lose work again.

        Only jobs of larger priority displace it: two jobs that cannot checkpoint would otherwise undo each other's work for ever.
        """
        return job.attempts > 1 and job.lost_s(self.view.now_s) > 0.0

    def displaces(self, key: JobKey, victim: JobView) -> bool:
        """Whether a job with this key may displace this one, apart from the price."""
        return self.may_stop(victim) and self._displaces_stoppable(key, victim)

    def precedes(self, key: JobKey, victim: JobView) -> bool:
        """Whether a job with this key would displace this one if no rule protected it, apart from the price."""
        if key.tier == 0:
            return True
        if -key.minus_priority != victim.priority:
            return -key.minus_priority > victim.priority
        if self.loses_repeatedly(victim):
            return False
        if self.state.shares is not None:
            by_level = displaces_by_level(key.project_level, self.state.project_level(victim))
            if by_level is not None:
                return by_level
        return key.rank < self.eta * self.rank(victim)

    def pays(self, key: JobKey, victims: Sequence[JobView]) -> bool:
        """Whether displacing all of them pays, the price included.

        Victims of smaller priority, or of a project that has used much more, cost nothing.
        """
        if key.tier == 0:
            return True
        equals = [victim for victim in victims if self._costs(key, victim)]
        smallest_rank = min((self.rank(victim) for victim in equals), default=math.inf)
        return key.rank < self.eta * smallest_rank - sum(self.price(victim) for victim in equals)

    def pays_alone(self, key: JobKey, victim: JobView) -> bool:
        """:meth:`pays` for this one. Where it does not, no set pays that this one belongs to. O(1)."""
        if key.tier == 0 or not self._costs(key, victim):
            return True
        limit = self._limits.get(victim.id)
        if limit is None:
            limit = self._limits[victim.id] = self.eta * self.rank(victim) - self.price(victim)
        return key.rank < limit

    def candidates(self, key: JobKey) -> Iterator[JobView]:
        """Running jobs that the key may displace, the worst first."""
        if not self.may_preempt:
            return
        trusts_lines = self.policy.ranks_keep_to_lines
        position = 0
        while (entry := self._fetch(position)) is not None:
            position += 1
            if entry.job in self.state.ledger.leaving:
                continue
            if trusts_lines and self._safe_from(key, entry):
                return
            victim = self.view.jobs[entry.job]
            if self._displaces_stoppable(key, victim):
                yield victim
            elif key.tier and -key.minus_priority <= victim.priority and self._none_after(key, entry, victim):
                return

    def infeasible(self, key: JobKey, missing_gpus: int, demand: Demand | None = None) -> bool:
        """Whether it is certain from the index alone that preemption cannot bring this many GPUs, usable under the demand.

        O(candidates).
        """
        if self.state.ledger.surplus_on:
            return False
        if not self.may_preempt:
            return True
        if not self.policy.ranks_keep_to_lines or key.tier == 0:
            return False
        position = 0
        while missing_gpus > 0 and (entry := self._fetch(position)) is not None:
            if self._safe_from(key, entry):
                return True
            position += 1
            if entry.job not in self.state.ledger.leaving:
                missing_gpus -= entry.gpus if demand is None else freed_gpus(demand, self.view.jobs[entry.job])
        return missing_gpus > 0

    def worth_trying(self, key: JobKey) -> bool:
        """Whether there is any job to displace, or GPUs are being vacated that are not reserved."""
        return bool(self.state.ledger.surplus_on) or next(self.candidates(key), None) is not None

    def _displaces_stoppable(self, key: JobKey, victim: JobView) -> bool:
        return not self.spares(victim, -key.minus_priority) and self.precedes(key, victim)

    def _costs(self, key: JobKey, victim: JobView) -> bool:
        """Whether what stopping the job costs counts against a job with this key."""
        if victim.priority < -key.minus_priority:
            return False
        level = None if self.state.shares is None else self.state.project_level(victim)
        return level is None or not displaces_by_level(key.project_level, level)

    def _none_after(self, key: JobKey, entry: Victim, victim: JobView) -> bool:
        """Whether the key, which does not displace this job, displaces none of equal priority that comes after it."""
        if entry.project_level != key.project_level:
            return entry.project_level < key.project_level
        return self.rank(victim) * self.eta <= key.rank

    def _safe_from(self, key: JobKey, entry: Victim) -> bool:
        """Whether the key certainly displaces neither this job nor any that comes after it."""
        if key.tier == 0 or -key.minus_priority > entry.priority:
            return False
        if -key.minus_priority == entry.priority and entry.project_level != key.project_level:
            return entry.project_level < key.project_level
        limit = self.eta * entry.rank
        return -key.minus_priority < entry.priority or limit + abs(limit) * _ROUNDING + _ROUNDING <= key.rank

    def _fetch(self, position: int) -> Victim | None:
        """The running job at this position, the worst first, of those that may be stopped.

        Each is fetched from the index and checked against the rules once, however many waiting jobs are tried.
        """
        while position == len(self._fetched):
            if self._victim_order is None:
                self._victim_order = self.state.running.victim_order(self.state.gpus, self.view.now_s)
            entry = next(self._victim_order, None)
            if entry is None:
                return None
            if self.may_stop(self.view.jobs[entry.job]):
                self._fetched.append(entry)
        return self._fetched[position]


def freed_gpus(demand: Demand | None, job: JobView) -> int:
    """At most this many more GPUs become usable under the demand when the job has stopped. O(servers of the job)."""
    if demand is None or job.placement is None:
        return job.spec.gpus
    return sum(demand.gpus_freed(share.gpus, taken_by(job.spec, share.gpus)) for share in job.placement.shares)
