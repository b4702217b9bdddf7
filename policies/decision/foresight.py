"""The next preemption if nothing but time changes: no arrival, end, report or request. For explanations; it changes nothing.

Time alone lets a job displace another: a protection ends, ranks follow their lines, an estimate is outlived. The instants at
which the policy decides again are known beforehand, so the queue is scanned at each of them, on a copy of the index of running
jobs, until a scan acts. Where ranks rise steadily a cycle between two instants may act first; the earliest time is searched for.
"""

import math
import sys
from collections.abc import Sequence
from copy import copy

from policies.decision.guard import turn_ends_at_s
from policies.decision.plan import Plan
from policies.decision.scan import Scanner, scan_queue_heads
from policies.model.decision import Action, Foreseen, Preempt
from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView, ViewAt
from policies.options import Options, Preemption
from policies.state.last_scan import LastScan
from policies.state.scheduler_state import SchedulerState

SCANS_MAX = 64
"""Scans of the queue; a preemption that more of them would find is not foreseen. The scheduling loop waits meanwhile."""

HORIZON_S = 86_400.0
"""How far ahead ranks that rise are followed."""

_PROBES = 4
"""Times between two instants at which rising ranks are compared."""

_PRECISION_S = 0.1


NOTHING = Foreseen(math.inf, ())


def foresee(policy: Scanner, view: ClusterView, state: SchedulerState) -> Foreseen:
    """The next preemption; no stops where there is none, or where something else comes before it: a victim's expected end, too.

    O(running + SCANS_MAX x scan).
    """
    if policy.options.preemption is Preemption.NEVER or not state.waiting or not _up_to_date(view, state):
        return NOTHING
    order = state.guard.overdue_order
    if order and order[0][1] in state.ledger.reservations:
        return NOTHING  # the last holders of its GPUs are stopped before the scan
    # What the last cycle left to the next one, so that only trials are undone below.
    state.ledger.sync(view)
    valid = state.scan.valid
    try:
        found = _Future(policy, view, state).first()
    finally:
        state.scan.valid = valid
    known = all(view.jobs[stop.for_job].waiting for stop in found.stops if stop.for_job is not None)
    ended = any(_ends_before(view.jobs[stop.job], view.now_s, found.at_s) for stop in found.stops)
    return found if known and not ended else NOTHING


def _ends_before(job: JobView, now_s: float, at_s: float) -> bool:
    """Whether the job reaches the last point of its estimate until then."""
    estimate = job.estimate
    if estimate is None:
        return False
    return job.done(estimate.unit, now_s) < estimate.points[-1] <= job.done(estimate.unit, at_s)


def _up_to_date(view: ClusterView, state: SchedulerState) -> bool:
    """Whether the policy has seen all changes of the jobs that hold GPUs. O(running)."""
    running, leaving, guarded = state.running, state.ledger.leaving, set(state.guard.members())
    known = running.keys.keys() | running.protected.keys() | leaving.keys() | guarded
    return known - guarded <= set(view.holding()) <= known


class _Future:
    """A copy of what a scan changes, moved on from instant to instant."""

    def __init__(self, policy: Scanner, view: ClusterView, state: SchedulerState) -> None:
        self._policy = policy
        self._view = view
        self._state = copy(state)
        self._state.scan = LastScan()
        self._state.running = state.running.copy()
        self._state.reasons = state.reasons.copy()
        self._state.delays = state.delays.copy()
        self._end_s = _ends_at_s(policy.options, view, state)
        self._scans = 0

    def first(self) -> Foreseen:
        """The first instant at which a scan acts, if it stops jobs for others."""
        at_s = self._view.now_s
        while self._scans < SCANS_MAX:
            self._follow(at_s)
            plan = self._scan(at_s)
            if plan.actions:
                return _foreseen(at_s, plan.actions)
            after = [wake_s for wake_s in (*plan.wakes_s, self._state.running.next_refresh_s()) if wake_s is not None]
            next_s = min((wake_s for wake_s in after if wake_s > at_s), default=math.inf)
            if (from_s := self._acts_from_s(at_s, min(next_s, self._end_s, at_s + HORIZON_S))) is not None:
                return self._confirmed(from_s, next_s)
            if next_s >= self._end_s:
                return NOTHING
            at_s = next_s
        return NOTHING

    def _follow(self, at_s: float) -> None:
        later = ViewAt(self._view, at_s)
        for job_id in self._state.running.due_refreshes(at_s):
            self._policy.index_running(later, self._view.jobs[job_id], self._state)

    def _scan(self, at_s: float) -> Plan:
        """What a cycle at this time would do."""
        self._scans += 1
        later, state = ViewAt(self._view, at_s), self._state
        plan = Plan(later, state)
        state.scan = LastScan()
        try:
            scan_queue_heads(self._policy, later, state, plan, victims_changed=True)
        finally:
            state.undo_tentative()
            state.ledger.sync(self._view)
        return plan

    def _acts_from_s(self, from_s: float, until_s: float) -> float | None:
        """The earliest time between two instants at which a cycle would act; None unless ranks rise or jobs may be moved."""
        if not self._state.running.rising() and not self._state.placements.stretched:
            return None
        probes = [from_s + (until_s - from_s) * step / _PROBES for step in range(1, _PROBES)]
        for probe_s in (*probes, math.nextafter(until_s, 0.0)):
            if not self._scan(probe_s).actions:
                from_s = probe_s
                continue
            while probe_s - from_s > _PRECISION_S:
                middle_s = (from_s + probe_s) / 2.0
                if self._scan(middle_s).actions:
                    probe_s = middle_s
                else:
                    from_s = middle_s
            return probe_s
        return None

    def _confirmed(self, from_s: float, next_s: float) -> Foreseen:
        """What a cycle does from then on, if it does the same at the next instant at which there certainly is a cycle."""
        until_s = min(next_s, from_s + HORIZON_S)
        if until_s >= self._end_s:
            return NOTHING
        found = _foreseen(from_s, self._scan(from_s).actions)
        last = self._scan(math.nextafter(until_s, 0.0))
        if until_s == next_s and _foreseen(from_s, last.actions) == found:
            self._follow(next_s)
            last = self._scan(next_s)
        return found if _foreseen(from_s, last.actions) == found else NOTHING


def _foreseen(at_s: float, actions: Sequence[Action]) -> Foreseen:
    return Foreseen(
        at_s, tuple(action for action in actions if isinstance(action, Preempt) and action.for_job is not None)
    )


_AFTER_ALL = JobId(sys.maxsize)
"""Larger than any job's."""


def _ends_at_s(options: Options, view: ClusterView, state: SchedulerState) -> float:
    """When something is certain to change that the scans do not follow: the guarded jobs, levels of projects, reservations."""
    now_s, changes_s = view.now_s, [state.own_change_s()]
    if state.guard.gpus_max > 0.0:
        following = state.guard.overdue_order.after((now_s - options.guard_wait_s, _AFTER_ALL))
        if (entry := next(following, None)) is not None:
            changes_s.append(entry[0] + options.guard_wait_s)
        changes_s.append(turn_ends_at_s(options, view, state))
        if state.guard.turns.next_from_s > now_s:
            changes_s.append(state.guard.turns.next_from_s)
    if state.shares is not None:
        changes_s.append(state.shares.next_s())
    for window in view.server_reservations:
        changes_s += [at_s for at_s in (window.starts_at_s, window.ends_at_s) if at_s > now_s]
    return min((at_s for at_s in changes_s if at_s is not None), default=math.inf)
