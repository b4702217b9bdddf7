"""Reservations of servers as they come true: who is stopped when one begins, and whom the policy is told."""

from policies.lifecycle import Cause, JobState
from policies.model.ids import ServerIndex
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from service.engine.cycle import Cycle
from service.engine.facts import request_stop, window_changed
from service.engine.record import JobRecord


def settle_windows(cycle: Cycle) -> None:
    """Tell the policy of windows that have begun or are over, and stop who is not let in. O(windows + holding jobs)."""
    world, now_s = cycle.world, cycle.now_s
    for window in world.server_reservations:
        begun = window.active(now_s)
        if begun and window.id not in world.begun_windows:
            world.begun_windows.add(window.id)
            window_changed(cycle, window)
            if window.preempt:
                _stop_others(cycle, window)
        elif window.ends_at_s <= now_s:
            window_changed(cycle, window)
            world.begun_windows.discard(window.id)
    if any(window.ends_at_s <= now_s for window in world.server_reservations):
        world.server_reservations = tuple(window for window in world.server_reservations if window.ends_at_s > now_s)


def next_boundary_s(windows: tuple[ServerReservation, ...], now_s: float) -> float | None:
    """When a window next begins or ends."""
    if not windows:
        return None
    times = (at_s for window in windows for at_s in (window.starts_at_s, window.ends_at_s) if at_s > now_s)
    return min(times, default=None)


def _stop_others(cycle: Cycle, window: ServerReservation) -> None:
    servers = set(window.servers)
    for job_id in cycle.world.holding():
        job = cycle.world.jobs[job_id]
        if not window.admits(job.spec) and _stoppable(job) and not servers.isdisjoint(_held(job)):
            request_stop(cycle, job, JobState.PREEMPTING, Cause.PREEMPT_DECIDED, Reason.RESERVED_SERVERS)


def _stoppable(job: JobRecord) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING)


def _held(job: JobRecord) -> tuple[ServerIndex, ...]:
    return () if job.placement is None else job.placement.servers
