"""A-SRPT: the single-machine SRPT relaxation guides a schedule of gangs.

After the idea of "Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters"
(arXiv 2501.05563): predicted iterations, a preemptive single-machine instance, its solution as the guide. Everything
concrete here (work, release, order, price of a preemption, delay, guard) is our construction; see
``docs/explanation/a-srpt.md`` for which is which.

``preemption=never``: a job competes once the virtual machine has completed it; this gate keeps long jobs off the cluster,
which is worth more than keeping every GPU busy. ``guided`` and ``always``: every unfinished job is ranked by its remaining
virtual work, and better jobs displace running ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from policies.decision.plan import Plan
from policies.filling import FillingPolicy, FillingState
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.reasons import ALIKE_RUNS, Explanation, Reason
from policies.model.view import ClusterView, JobView
from policies.options import (
    GUARD_OPTIONS,
    PLACEMENT_OPTIONS,
    PREEMPTION_OPTIONS,
    Fill,
    Options,
    Order,
    Preemption,
    Queue,
    Release,
)
from policies.rank import Rank, attained_rank, expected_remaining_s, remaining_work_rank
from policies.ranked import RankedPolicy
from policies.relaxation import VirtualMachine
from policies.state.pilots import Pilots
from policies.state.scheduler_state import SchedulerState

_PILOTS_CHANGE = frozenset({ChangeKind.ARRIVED, ChangeKind.WITHDRAWN, ChangeKind.ESTIMATED, ChangeKind.VACATED})
"""After which a job may compete as a run of its program, or may not any more. One that ends has been withdrawn or has vacated its
GPUs.
"""


class AsrptState(FillingState):
    """The state, the mix of gangs, the virtual machine with the jobs it has released, and the pilots of programs."""

    __slots__ = ("machine", "pilots", "released_at_s")

    def __init__(self, view: ClusterView, options: Options) -> None:
        """The virtual machine is idle."""
        FillingState.__init__(self, view, options)
        self.machine = VirtualMachine(view.now_s)
        self.released_at_s: dict[JobId, float] = {}
        self.pilots = Pilots()

    def dump(self) -> dict[str, Any]:
        """Delays, the virtual schedule and the mix of gangs: none follows from the jobs."""
        released = {str(job): at_s for job, at_s in sorted(self.released_at_s.items())}
        return {**FillingState.dump(self), "machine": self.machine.dump(), "released_at_s": released}


class Asrpt(FillingPolicy):
    """See the module."""

    name = "asrpt"
    summary = "SRPT relaxation guides placement"
    defaults = Options(preemption=Preemption.GUIDED, queue=Queue.AUTO, fill=Fill.AUTO)
    option_names = (
        PREEMPTION_OPTIONS
        | PLACEMENT_OPTIONS
        | GUARD_OPTIONS
        | {"fill", "order", "over_run", "queue", "release", "reserve"}
    )
    state_type = AsrptState
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Remaining virtual work; without preemption, virtual work or virtual completion time by the option ``order``."""
        assert isinstance(state, AsrptState)
        if self.options.preemption is not Preemption.NEVER:
            alike = state.pilots.alike(job.id)
            return remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run, alike)
        if self.options.order is Order.VIRTUAL and job.id in state.released_at_s:
            return Rank(state.released_at_s[job.id], 0)
        return Rank(_virtual_work_s(view, job, state), 0)

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Restore the virtual machine and the mix of gangs from the dump; jobs that are not in the dump are new."""
        assert isinstance(state, AsrptState)
        if self.options.preemption is not Preemption.NEVER:
            state.pilots.note_all(view.jobs.values())
        FillingPolicy.restore(self, view, state, dump)
        machine = dump.get("machine")
        if machine is None or machine["now_s"] > view.now_s:
            return
        state.machine = VirtualMachine(machine["now_s"])
        for job_id, at_s in dump.get("released_at_s", {}).items():
            if JobId(int(job_id)) in view.jobs:
                state.released_at_s[JobId(int(job_id))] = at_s
        for job_id, remaining_s in machine["remaining_s"].items():
            if (job := view.jobs.get(JobId(int(job_id)))) is not None:
                state.machine.add(job.id, remaining_s, job.submitted_at_s)
        # Until now the machine also worked on jobs that have left it since.
        self._release(view, state)
        for job in view.jobs.values():
            if not job.waiting:
                self.on_withdrawal(job.id, state)

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Note the runs that come and go, and count the gangs that have arrived."""
        assert isinstance(state, AsrptState)
        if self.options.preemption is not Preemption.NEVER:
            for change in changes:
                if change.kind in _PILOTS_CHANGE and change.job is not None and change.job in view.jobs:
                    state.pilots.note(view.jobs[change.job])
        return FillingPolicy.observe(self, view, changes, state)

    def on_arrival(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        """With the gate, new jobs go to the virtual machine first; requeued ones have passed it already."""
        if self.options.preemption is not Preemption.NEVER:
            return RankedPolicy.on_arrival(self, view, job, state)
        assert isinstance(state, AsrptState)
        if job.attempts > 0 and job.id not in state.released_at_s and job.id not in state.machine:
            state.released_at_s[job.id] = view.now_s
        if job.id in state.released_at_s:
            state.enqueue(job, self.rank(view, job, state).value)
            return None
        if job.id not in state.machine:
            self._release(view, state)
            state.machine.add(job.id, _virtual_work_s(view, job, state), job.submitted_at_s)
        if self.options.release is Release.EARLY:
            state.enqueue(job, self.rank(view, job, state).value + _UNRELEASED)
        return None

    def on_withdrawal(self, job: JobId, state: SchedulerState) -> None:
        """A job that ended, was held or was started early leaves the virtual machine."""
        assert isinstance(state, AsrptState)
        state.machine.remove(job)
        state.released_at_s.pop(job, None)

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
        """Let the virtual machine run up to now, and decide again at its next completion; or rank pilots again."""
        assert isinstance(state, AsrptState)
        if self.options.preemption is Preemption.NEVER:
            self._release(view, state)
            plan.wake_at(state.machine.next_completion_s())
            return False
        easier = False
        for job_id in state.pilots.changed():
            if job_id in state.waiting:
                self.on_arrival(view, view.jobs[job_id], state)
            elif job_id in state.running.keys:
                easier |= self.index_running(view, view.jobs[job_id], state)
        return easier

    def on_resize(self, view: ClusterView, state: SchedulerState, gpus_before: int) -> bool:
        """Virtual seconds are seconds of the whole cluster: rescale what is left on the virtual machine."""
        assert isinstance(state, AsrptState)
        self._release(view, state)
        state.machine.rescale(gpus_before / state.gpus)
        return RankedPolicy.on_resize(self, view, state, gpus_before)

    def explain(self, view: ClusterView, state: SchedulerState, job: JobId) -> Explanation:
        """As in other policies, with the number of runs that learn from this one."""
        assert isinstance(state, AsrptState)
        found, alike = RankedPolicy.explain(self, view, state, job), state.pilots.alike(job)
        return found if alike == 1 else replace(found, numbers={**found.numbers, ALIKE_RUNS: alike})

    def queue_note(self, state: SchedulerState) -> str:
        """As in other policies; with early releases the virtual completion matters beside the rank."""
        if self.options.preemption is Preemption.NEVER and self.options.release is Release.EARLY:
            return "Jobs that the virtual machine has completed come before all others, whatever the ranks."
        return FillingPolicy.queue_note(self, state)

    def waiting_reason(self, state: SchedulerState, job: JobId) -> Reason:
        """The virtual gate for jobs that the virtual machine has not completed; else as in other policies."""
        if job in state.waiting:
            return RankedPolicy.waiting_reason(self, state, job)
        return Reason.VIRTUAL_GATE

    def _release(self, view: ClusterView, state: AsrptState) -> None:
        for completion in state.machine.advance(view.now_s):
            job = view.jobs.get(completion.job)
            state.released_at_s[completion.job] = completion.at_s
            state.reasons.drop(completion.job)
            state.reasons.require(completion.job)
            if job is not None and job.waiting:
                state.enqueue(job, self.rank(view, job, state).value)


_UNRELEASED = 1e15
"""Added to the rank of jobs that start early: any released job comes before them (virtual seconds)."""


def _virtual_work_s(view: ClusterView, job: JobView, state: SchedulerState) -> float:
    """p = g x expected remaining seconds / G; attained service where there is no estimate."""
    estimate = job.estimate
    remaining_s = expected_remaining_s(job, view.now_s) if estimate is not None and estimate.trusted else None
    if remaining_s is None:
        return attained_rank(job, view.now_s, state.gpus).value
    return job.spec.gpus * remaining_s / state.gpus
