"""Begin and end of server reservations: stops jobs, and reports changed servers to the policy."""

from policies.lifecycle import Cause, JobState
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from service.engine.cycle import Cycle
from service.engine.requests import request_stop, server_reservation_changed


def settle_server_reservations(cycle: Cycle) -> None:
    """Report reservations that have begun or are over to the policy, and stop the jobs that they do not admit.

    O(reservations + holding jobs).
    """
    world, now_s = cycle.world, cycle.now_s
    for reserved in world.server_reservations:
        if reserved.active(now_s) and reserved.id not in world.begun_reservations:
            world.begun_reservations.add(reserved.id)
            server_reservation_changed(cycle, reserved)
            if reserved.preempt:
                _stop_others(cycle, reserved)
        elif reserved.ends_at_s <= now_s:
            server_reservation_changed(cycle, reserved)
            world.begun_reservations.discard(reserved.id)
    if any(reserved.ends_at_s <= now_s for reserved in world.server_reservations):
        world.server_reservations = tuple(each for each in world.server_reservations if each.ends_at_s > now_s)


def next_boundary_s(reservations: tuple[ServerReservation, ...], now_s: float) -> float | None:
    """When a reservation next begins or ends."""
    times = (at_s for each in reservations for at_s in (each.starts_at_s, each.ends_at_s) if at_s > now_s)
    return min(times, default=None)


def _stop_others(cycle: Cycle, reserved: ServerReservation) -> None:
    servers = set(reserved.servers)
    for job_id in cycle.world.holding():
        job = cycle.world.jobs[job_id]
        stoppable = job.state in (JobState.STARTING, JobState.RUNNING)
        held = () if job.placement is None else job.placement.servers
        if stoppable and not reserved.admits(job.spec) and not servers.isdisjoint(held):
            request_stop(cycle, job, JobState.PREEMPTING, Cause.PREEMPT_DECIDED, Reason.RESERVED_SERVERS)
