"""Indexes follow what has changed since the last cycle."""

from policies.decision.protocols import Indexing
from policies.model.view import ClusterView
from policies.state.scheduler_state import SchedulerState


def index_again(policy: Indexing, view: ClusterView, state: SchedulerState, project: str) -> None:
    """The project's level has changed: index its jobs by the new one. O(its jobs log n)."""
    assert state.shares is not None
    state.restless = state.swayed = True
    for job_id in list(state.shares.members.get(project, ())):
        if (waiting := state.waiting_keys.get(job_id)) is not None and waiting[1].tier:
            state.enqueue(view.jobs[job_id], waiting[1].rank)
        elif job_id in state.running_keys:
            policy.index_running(view, view.jobs[job_id], state)


def follow_windows(view: ClusterView, state: SchedulerState) -> None:
    """Index waiting jobs anew when windows have been made or have gone: who is let in is a class of its own. O(n log n)."""
    if view.windows is state.windows:
        return
    state.windows = view.windows
    state.restless = state.swayed = True
    for job_id in list(state.waiting_keys):
        state.enqueue(view.jobs[job_id], state.waiting_keys[job_id][1].rank)
