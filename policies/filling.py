"""A ranked policy that can fill servers: while large gangs bring much of the work, the jobs that run are chosen as a set."""

from collections.abc import Sequence
from typing import Any

from policies.decision.filling_order import jobs_before
from policies.decision.plan import Plan
from policies.decision.preemption import PreemptionContext
from policies.decision.server_filling import fill_servers
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.view import ClusterView
from policies.options import Fill, OptionError, Options, Preemption
from policies.ranked import RankedPolicy
from policies.state.gang_mix import GangMix
from policies.state.scheduler_state import SchedulerState


class FillingState(SchedulerState):
    """The state, and the mix of gangs that arrive."""

    __slots__ = ("mix",)

    def __init__(self, view: ClusterView, options: Options) -> None:
        """Nothing has arrived."""
        SchedulerState.__init__(self, view, options)
        self.mix = GangMix()

    def dump(self) -> dict[str, Any]:
        """The state's dump, and the mix of gangs: it does not follow from the jobs."""
        return {**SchedulerState.dump(self), "mix": self.mix.dump()}


class FillingPolicy(RankedPolicy):
    """A policy with the option ``fill``. Its state derives from :class:`FillingState`."""

    state_type = FillingState

    def __init__(self, options: Options) -> None:
        """Raises OptionError for options that contradict each other."""
        if options.preemption is Preemption.NEVER and options.fill is Fill.SERVER_FILLING:
            raise OptionError("option fill: 'server_filling' is not possible with preemption=never")
        RankedPolicy.__init__(self, options)

    @property
    def _watches_the_mix(self) -> bool:
        return self.options.fill is not Fill.FIRST_FIT and self.options.preemption is not Preemption.NEVER

    def fills(self, state: SchedulerState) -> bool:
        """True with ``server_filling``, and with ``auto`` while large gangs bring much of the work."""
        assert isinstance(state, FillingState)
        return self._watches_the_mix and (self.options.fill is Fill.SERVER_FILLING or state.mix.filling)

    def fill(self, context: PreemptionContext, plan: Plan) -> None:
        """Choose the jobs that run as a set."""
        assert isinstance(context.state, FillingState)
        fill_servers(context, plan, context.state.mix.load(context.state.gpus))

    def jobs_ahead(self, state: SchedulerState, job: JobId) -> int:
        """While servers are filled, wide gangs may go before jobs of better ranks."""
        if not self.fills(state):
            return RankedPolicy.jobs_ahead(self, state, job)
        assert isinstance(state, FillingState)
        return jobs_before(state, job, state.mix.load(state.gpus))

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Take back the mix of gangs; jobs that are not in the dump are new."""
        assert isinstance(state, FillingState)
        state.mix = GangMix(**dump.get("mix", {}))
        if self._watches_the_mix:
            state.mix.count(view, [job for job in view.jobs.values() if job.id > state.mix.last])

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Count the gangs that have arrived. While servers are filled, jobs do not displace others one by one."""
        assert isinstance(state, FillingState)
        if not self._watches_the_mix:
            return False
        arrived = [view.jobs.get(each.job) for each in changes if each.kind is ChangeKind.ARRIVED and each.job]
        if not arrived:
            return False
        filled = self.fills(state)
        state.mix.count(view, [job for job in arrived if job is not None])
        return self.fills(state) != filled

    def queue_note(self, state: SchedulerState) -> str:
        """While servers are filled, the gang size matters beside the rank."""
        if self.fills(state):
            return (
                "Servers are filled: of the first jobs that together fill the cluster, the widest gangs are placed first "
                "where that saves time."
            )
        return RankedPolicy.queue_note(self, state)
