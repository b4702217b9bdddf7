"""Defragmentation: move small jobs so that a gang fits on few servers and its communication stays local.

Our construction. Enough GPUs are free, but scattered. Jobs that lose nothing but a restart by running elsewhere are stopped
on the servers where that frees most; they start again on the GPUs that the gang does not take. Done iff
eta x (g / G) x remaining time x (stretch scattered - stretch consolidated) > sum over moved v of (g_v / G) x (checkpoint_s +
restart_s + lost_s(v)): what the gang gains against what the moved jobs lose. Ranks do not matter, because
the moved jobs only change places. A job of larger priority is not moved.
"""

from collections.abc import Sequence

from policies.choose import Candidate
from policies.consolidation import room_needed
from policies.decision.future_pool import FuturePool
from policies.decision.preemption import PreemptionContext
from policies.decision.searches import MadeRoom
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.view import JobView
from policies.options import Preemption
from policies.rank import expected_remaining_s

SERVERS_TRIED_MAX = 16
"""Largest number of servers considered, those with most free GPUs first."""


def make_room(
    context: PreemptionContext, job: JobView, scattered: Candidate
) -> tuple[Placement, tuple[JobId, ...]] | None:
    """A consolidated placement for the job and the jobs that move for it; None where that does not pay.

    O(SERVERS_TRIED_MAX x jobs on a server).
    """
    times, remaining_s = job.iteration_times, expected_remaining_s(job, context.view.now_s)
    if context.policy.options.preemption is Preemption.NEVER or times is None or scattered.iteration_s is None:
        return None
    if remaining_s is None or (times.slowdown is not None and not times.slowdown.measured):
        return None
    room = _room(context, job, scattered)
    if room is None:
        return None
    gain_s = remaining_s * (scattered.iteration_s - room.iteration_s) / times.min_s
    if context.eta * job.spec.gpus * gain_s <= room.cost_s:
        return None
    return room.placement, room.movers


def _room(context: PreemptionContext, job: JobView, scattered: Candidate) -> MadeRoom | None:
    """The room that could be made for the job, whether that pays or not. Found once for jobs that are placed alike."""
    alike = context.likeness(job)
    if alike is None:
        return _search_room(context, job, scattered)
    sought, rooms = (alike, job.priority), context.searches.rooms
    if sought not in rooms:
        rooms[sought] = _search_room(context, job, scattered)
    return rooms[sought]


def _search_room(context: PreemptionContext, job: JobView, scattered: Candidate) -> MadeRoom | None:
    movers = _movers(context, job, scattered)
    if movers is None:
        return None
    with FuturePool(context, with_leaving=False) as pool:
        for mover in movers:
            pool.add_job(mover)
        candidate = pool.fit(job, consolidated_only=True)
    if candidate is None or candidate.iteration_s is None:
        return None
    used = set(candidate.placement.servers)
    needed = [mover for mover in movers if mover.placement is not None and used.intersection(mover.placement.servers)]
    cost_s = sum([mover.spec.gpus * context.seconds_lost(mover) for mover in needed])
    return MadeRoom(candidate.placement, candidate.iteration_s, tuple([mover.id for mover in needed]), cost_s)


def _movers(context: PreemptionContext, job: JobView, scattered: Candidate) -> Sequence[JobView] | None:
    """Jobs to move so that as few servers as possible hold the gang; None if no set of jobs is enough."""
    servers = context.view.cluster.servers
    gpu_type = servers[scattered.placement.servers[0]].gpu_type
    offers: list[tuple[int, float, ServerIndex, Sequence[JobView]]] = []
    for looked_at, (server, free) in enumerate(context.state.pool.fullest(gpu_type)):
        if looked_at == SERVERS_TRIED_MAX:
            break
        jobs, gpus, cost = _movable(context, server, job.priority)
        offers.append((free + gpus, cost, server, jobs))
    servers_needed, gpus_needed = room_needed(context.view.cluster, job, gpu_type)
    roomy = [room for room, *_ in offers if room >= gpus_needed]
    # Where GPUs are being vacated, a server has more room than its offer says.
    if len(roomy) < min(servers_needed, SERVERS_TRIED_MAX) and not context.state.ledger.surplus_on:
        return None
    offers.sort(key=lambda offer: (-offer[0], offer[1], offer[2]))
    chosen, missing = [], job.spec.gpus
    for room, _, server, movable in offers:
        if missing <= 0:
            break
        chosen.append((server, min(room, missing), movable))
        missing -= room
    if missing > 0:
        return None
    return [mover for server, share, movable in chosen for mover in _fewest(context, server, share, movable)]


def _fewest(context: PreemptionContext, server: ServerIndex, share: int, movable: Sequence[JobView]) -> list[JobView]:
    """The movable jobs that lose least, until the share is free."""
    missing = share - context.state.pool.free(server)
    picked: list[JobView] = []
    for mover in sorted(movable, key=lambda other: (context.seconds_lost(other), -other.spec.gpus, other.id)):
        if missing <= 0:
            break
        picked.append(mover)
        missing -= mover.spec.gpus
    return picked


def _movable(context: PreemptionContext, server: ServerIndex, priority: int) -> tuple[Sequence[JobView], int, float]:
    """What may be moved from the server for a job of this priority. Computed once while no further job is being stopped."""
    key = server, priority, len(context.state.ledger.leaving)
    known = context.movable.get(key)
    if known is None:
        jobs = [
            job for job in _on(context, server) if job.priority <= priority and _moves_easily(context, job, priority)
        ]
        cost = sum([job.spec.gpus * context.seconds_lost(job) for job in jobs])
        known = context.movable[key] = jobs, sum([job.spec.gpus for job in jobs]), cost
    return known


def _on(context: PreemptionContext, server: ServerIndex) -> list[JobView]:
    """Running jobs that hold GPUs of the server and no others, in the order of their ids."""
    return [
        context.view.jobs[job_id]
        for job_id, alone in sorted(context.state.placements.on_server.get(server, {}).items())
        if alone and job_id not in context.state.ledger.leaving
    ]


def _moves_easily(context: PreemptionContext, job: JobView, priority: int) -> bool:
    """Whether the job runs equally fast on any GPUs, and may be moved now for a job of this priority."""
    times = job.iteration_times
    local = times is None or times.ceil_s <= context.policy.options.tau * times.min_s
    return local and context.may_move(job, priority)
