"""2D-Gittins: the chance to finish soon against the GPU-time it takes (after Tiresias, NSDI 2019; Gittins' index).

A job whose estimate is a distribution is ranked by that. Any other job is ranked by the GPU-seconds of the
newest jobs that ended on the cluster, against the GPU-seconds that it has held. A point estimate is not used, so the policy
needs no prediction. Until a few jobs have ended the order is that of least attained service.
"""

from collections.abc import Sequence
from typing import Any

from policies.builtin.srsf import Srsf
from policies.decision.plan import Plan
from policies.lifecycle import TERMINAL
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView
from policies.options import Options, Preemption
from policies.rank import REFRESH_S_MIN, Rank, attained_rank, distribution_units, remaining_work_rank, seconds_per_unit
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState

ENDED_MIN = 16
"""Fewer ended jobs than this give no distribution."""

ENDED_MAX = 1024
"""Ended jobs that are remembered: the newest."""

POINTS_MAX = 32
"""Equal-mass points that represent them, as many as an estimate has."""

RENEWAL_SHARE = 0.25
"""Once this share of the remembered jobs is new, the points are drawn again and all jobs ranked again."""


class GittinsState(SchedulerState):
    """The state, and what ended jobs held: GPU-seconds by job, the oldest first."""

    __slots__ = ("ended_gpu_s", "points_gpu_s", "unseen")

    def __init__(self, view: ClusterView, options: Options) -> None:
        """No job has ended yet."""
        SchedulerState.__init__(self, view, options)
        self.ended_gpu_s: dict[JobId, float] = {}
        self.points_gpu_s: tuple[float, ...] = ()
        self.unseen = 0
        """Jobs that ended after the points were drawn."""

    def dump(self) -> dict[str, Any]:
        """The state's dump, and the GPU-seconds of ended jobs."""
        ended = [[job, gpu_s] for job, gpu_s in self.ended_gpu_s.items()]
        return {
            **SchedulerState.dump(self),
            "ended_gpu_s": ended,
            "points_gpu_s": list(self.points_gpu_s),
            "unseen": self.unseen,
        }

    def learn(self, jobs: Sequence[JobView], now_s: float) -> None:
        """Remember these ended jobs, but not those that never held GPUs. O(jobs)."""
        for job in sorted(jobs, key=lambda job: job.id):
            gpu_s = job.attained_service_s(now_s)
            if gpu_s > 0.0 and job.id not in self.ended_gpu_s:
                self.ended_gpu_s[job.id] = gpu_s
                self.unseen += 1
        while len(self.ended_gpu_s) > ENDED_MAX:
            del self.ended_gpu_s[next(iter(self.ended_gpu_s))]

    def renew(self) -> bool:
        """Draw the points again if they are due; return whether they were. O(1), O(ENDED_MAX log) when due."""
        if self.unseen < max(ENDED_MIN, RENEWAL_SHARE * len(self.ended_gpu_s)):
            return False
        self.unseen = 0
        ordered = sorted(self.ended_gpu_s.values())
        count = min(POINTS_MAX, len(ordered))
        self.points_gpu_s = tuple(ordered[(2 * k + 1) * len(ordered) // (2 * count)] for k in range(count))
        return True


class Gittins(RankedPolicy):
    """See the module."""

    name = "gittins"
    summary = "soonest to end, by what ended jobs have taken"
    defaults = Options(preemption=Preemption.GUIDED)
    option_names = Srsf.option_names
    state_type = GittinsState
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The index in virtual seconds, under the job's own distribution, else under the cluster's."""
        assert isinstance(state, GittinsState)
        if _has_distribution(job):
            return remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run)
        if not state.points_gpu_s:
            return attained_rank(job, view.now_s, state.gpus)
        attained_gpu_s = job.attained_service_s(view.now_s)
        gpu_s, slope, refresh = distribution_units(state.points_gpu_s, attained_gpu_s, self.options.over_run)
        return Rank(gpu_s / state.gpus, slope, refresh)

    def refresh_at_s(self, view: ClusterView, job: JobView, rank: Rank) -> float | None:
        """Under the cluster's distribution progress is GPU-seconds held, which grow from the start of the attempt."""
        if _has_distribution(job) or rank.refresh_at_done is None:
            return RankedPolicy.refresh_at_s(self, view, job, rank)
        missing_gpu_s = rank.refresh_at_done - job.attained_service_s(view.now_s)
        return view.now_s + max(REFRESH_S_MIN, missing_gpu_s / job.spec.gpus)

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Restore the GPU-seconds of an earlier dump, and add those of jobs that have ended since."""
        assert isinstance(state, GittinsState)
        state.ended_gpu_s = {JobId(job): gpu_s for job, gpu_s in dump.get("ended_gpu_s", ())}
        state.points_gpu_s = tuple(dump.get("points_gpu_s", ()))
        state.unseen = dump.get("unseen", 0)
        state.learn([job for job in view.jobs.values() if job.state in TERMINAL], view.now_s)

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Learn from the jobs that have ended."""
        assert isinstance(state, GittinsState)
        ended = [change.job for change in changes if change.kind is ChangeKind.FINISHED and change.job is not None]
        state.learn([view.jobs[job] for job in ended], view.now_s)
        return False

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
        """Rank all jobs again when the distribution has changed: O(n log n), once in a quarter of the jobs that it holds."""
        assert isinstance(state, GittinsState)
        return state.renew() and self.on_resize(view, state, state.gpus)


def _has_distribution(job: JobView) -> bool:
    estimate = job.estimate
    if estimate is None or not estimate.trusted or len(estimate.points) < 2:
        return False
    return seconds_per_unit(job, estimate) is not None
