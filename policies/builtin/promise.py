"""Promised ends: each job is told at its submission when it will have ended, and most promises are kept.

Our construction, inspired by PCS ("PCS: Scheduling with Predictable Completion Times", OSDI 2024); it is not PCS, which gets
predictable times from weighted fair queues (docs/explanation/decisions/0032-promised-ends.md).

Jobs are ordered by remaining virtual work over the weight of their promise, as Smith's rule orders weighted jobs. A weight
falls late: it is 1 while a job has more than half of its slack (what its promise leaves beside its own time), and grows by
the factor 1 / (1 - ``promise_weight``) each time that waiting halves what is left. With 0 the order is that of A-SRPT; with
1, jobs that have used up half of their slack come before all others, in the order of the promised ends. A job that could not
keep its promise even if it started at once weighs 1 again. The lengths of promises are calibrated so that the share
``promise_level`` is kept, whatever the weights (:mod:`policies.state.promises`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from policies.decision.plan import Plan
from policies.filling import FillingPolicy, FillingState
from policies.lifecycle import TERMINAL, JobState
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.reasons import PROMISED_END, Explanation
from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, PREEMPTION_OPTIONS, Options, Preemption
from policies.rank import REFRESH_S_MIN, Rank, expected_remaining_s, remaining_work_rank, seconds_per_unit
from policies.ranked import RankedPolicy
from policies.state.promises import Promise, Promises
from policies.state.scheduler_state import SchedulerState

_FIRST = 1e-6
"""Rank of a job whose promise outweighs everything: before any other job that has work left (virtual seconds)."""

_LATEST_S = 1e12
"""The ranks of two such jobs are in the order of their promised ends, but so near that neither displaces the other."""

_NOMINAL_S_MIN = 1.0


class PromiseState(FillingState):
    """The state, the mix of gangs, and the promises."""

    __slots__ = ("promises", "weighs")

    def __init__(self, view: ClusterView, options: Options) -> None:
        """Nothing is promised."""
        FillingState.__init__(self, view, options)
        self.promises = Promises(options.promise_level)
        self.weighs = options.promise_weight > 0.0

    def dump(self) -> dict[str, Any]:
        """The state's dump, and the promises."""
        return {**FillingState.dump(self), "promises": self.promises.dump()}

    def own_change_s(self) -> float | None:
        """When the weight of a promise may change."""
        return self.promises.next_due_s() if self.weighs else None


class PromisedEnds(FillingPolicy):
    """See the module."""

    name = "promise"
    summary = "promised ends that are kept with a stated probability"
    defaults = Options(preemption=Preemption.GUIDED)
    option_names = (
        PREEMPTION_OPTIONS
        | PLACEMENT_OPTIONS
        | GUARD_OPTIONS
        | {"fill", "over_run", "promise_level", "promise_weight", "reserve"}
    )
    state_type = PromiseState
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Remaining virtual work over the weight of the promise."""
        assert isinstance(state, PromiseState)
        rank = remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run)
        halvings = state.promises.urgency.get(job.id)
        if halvings is None:
            return rank
        share = (1.0 - self.options.promise_weight) ** halvings
        if share > 0.0:
            return Rank(rank.value * share, rank.slope * share, rank.refresh_at_done)
        return Rank(_FIRST * (1.0 + state.promises.of[job.id].end_s / _LATEST_S), 0, rank.refresh_at_done)

    def promised_end_s(self, state: SchedulerState, job: JobId) -> float | None:
        """When the job will have ended, as it was told; None if it was told nothing."""
        assert isinstance(state, PromiseState)
        promise = state.promises.of.get(job)
        return None if promise is None else promise.end_s

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Promises of jobs that are here still, and what was learned. Without them, jobs that never started get new ones."""
        assert isinstance(state, PromiseState)
        FillingPolicy.restore(self, view, state, dump)
        promises, kept = state.promises, dump.get("promises")
        if kept is None:
            return
        promises.calibration = type(promises.calibration)(self.options.promise_level, kept["calibration"])
        for job, promise in kept["of"].items():
            if JobId(int(job)) in view.jobs:
                promises.make(JobId(int(job)), Promise(*promise))
        promises.settled = {JobId(job) for job in kept["settled"] if job in promises.of}
        promises.given_up = {JobId(job) for job in kept["given_up"] if job in promises.of}
        urgency = {JobId(int(job)): halvings for job, halvings in kept["urgency"].items()}
        promises.urgency = {job: halvings for job, halvings in urgency.items() if job in promises.of}
        self._settle(view, state, [job for job in promises.of if view.jobs[job].state in TERMINAL])

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Learn from the jobs that have ended, and count the gangs that have arrived."""
        assert isinstance(state, PromiseState)
        ended = [change.job for change in changes if change.kind is ChangeKind.FINISHED and change.job is not None]
        self._settle(view, state, ended)
        return FillingPolicy.observe(self, view, changes, state)

    def _settle(self, view: ClusterView, state: PromiseState, ended: Sequence[JobId]) -> None:
        for job in sorted(ended):
            state.promises.end(job, view.now_s, counts=view.jobs[job].state is not JobState.CANCELLED)

    def on_arrival(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        """Index the job, and note it for a promise if it is new and has an estimate."""
        assert isinstance(state, PromiseState)
        RankedPolicy.on_arrival(self, view, job, state)
        promises, remaining_s = state.promises, _remaining_s(view, job)
        if remaining_s is None:
            promises.work.remove(job.id)
            return
        rank = remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run)
        promises.work.add(job.id, rank.value, remaining_s * job.spec.gpus / state.gpus)
        promise = promises.of.get(job.id)
        if promise is None:
            if job.attempts == 0:
                promises.unpromised.add(job.id)
        else:
            promises.look_at(job.id, view.now_s)

    def on_withdrawal(self, job: JobId, state: SchedulerState) -> None:
        """The job's work waits no more."""
        assert isinstance(state, PromiseState)
        state.promises.work.remove(job)
        state.promises.unpromised.discard(job)

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
        """Settle promises that are over, and index again the jobs whose promises may weigh otherwise now; then make new ones.

        New ones come last, because they do not depend then on the order in which the jobs arrived.
        """
        assert isinstance(state, PromiseState)
        promises, easier = state.promises, False
        for job_id in sorted(set(promises.due(view.now_s))):
            promises.pass_end(job_id, view.now_s)
            if state.weighs:
                easier |= self._look_at(view, view.jobs[job_id], state)
        made = [(job, self._promise(view, view.jobs[job], state)) for job in sorted(promises.unpromised)]
        promises.unpromised.clear()
        for job_id, promise in made:
            promises.make(job_id, promise)
            if state.weighs:
                self._look_at(view, view.jobs[job_id], state)
        plan.wake_at(state.own_change_s())
        return easier

    def explain(self, view: ClusterView, state: SchedulerState, job: JobId) -> Explanation:
        """As in other policies, with the promised end."""
        found = RankedPolicy.explain(self, view, state, job)
        end_s = self.promised_end_s(state, job)
        return found if end_s is None else replace(found, numbers={**found.numbers, PROMISED_END: end_s})

    def queue_note(self, state: SchedulerState) -> str:
        """The promises that move ranks, and as in other policies."""
        note = FillingPolicy.queue_note(self, state)
        if not self.options.promise_weight:
            return note
        moved = "Ranks are reduced for jobs that have used up half of the slack before their promised ends."
        return f"{moved} {note}".strip()

    def _look_at(self, view: ClusterView, job: JobView, state: PromiseState) -> bool:
        """Index the job by what its promise weighs now; return whether it is easier to displace."""
        promises = state.promises
        if job.waiting and job.id in state.waiting:
            # When it must have started to end in time, under its estimate.
            restart_s = view.costs.restart_s if job.attempts else 0.0
            last_start_s = promises.of[job.id].end_s - restart_s - (_remaining_s(view, job) or 0.0)
            if (left_s := promises.press(job.id, last_start_s - view.now_s)) is not None:
                promises.look_at(job.id, max(last_start_s - left_s, view.now_s + REFRESH_S_MIN))
            state.enqueue(job, self.rank(view, job, state).value)
            return False
        return job.state in (JobState.STARTING, JobState.RUNNING) and self.index_running(view, job, state)

    def _promise(self, view: ClusterView, job: JobView, state: PromiseState) -> Promise:
        """The promise of a job that arrives."""
        estimate = job.estimate
        assert estimate is not None
        own_s = estimate.quantile(self.options.promise_level) * (seconds_per_unit(job, estimate) or 1.0)
        nominal_s = max(_NOMINAL_S_MIN, own_s + state.promises.work.ahead_s(job.id))
        end_s = float(math.ceil(view.now_s + state.promises.calibration.ratio(nominal_s) * nominal_s))
        slack_s = max(0.0, end_s - view.now_s - (_remaining_s(view, job) or 0.0))
        return Promise(view.now_s, end_s, slack_s, nominal_s)


def _remaining_s(view: ClusterView, job: JobView) -> float | None:
    """Expected seconds left; None where the job is ranked without its estimate."""
    estimate = job.estimate
    return expected_remaining_s(job, view.now_s) if estimate is not None and estimate.trusted else None
