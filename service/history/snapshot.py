"""Snapshots of the live world, for forecasts and replays.

Taking a snapshot only copies records, so it is fast enough between two cycles. Computations on it do not touch the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from policies.model.cluster import Cluster
from policies.model.server_reservation import ServerReservation
from service.engine.limits import LimitOwner, OwnerLimit
from service.engine.record import JobRecord, ServerRecord, StoredWorld
from service.engine.world import Costs, World, world_of


@dataclass(frozen=True, slots=True)
class WorldSnapshot:
    """Unfinished jobs with their open attempts, and the servers. The records must not be changed; copy them first."""

    now_s: float
    cluster: Cluster
    costs: Costs
    servers: tuple[ServerRecord, ...]
    jobs: tuple[JobRecord, ...]
    limits: Mapping[LimitOwner, OwnerLimit] = field(default_factory=dict)
    windows: tuple[ServerReservation, ...] = ()


def take(world: World, now_s: float | None = None, *, with_jobs: bool = True) -> WorldSnapshot:
    """Copy the world as of ``now_s``, or as of its newest cycle if that is later. O(jobs + servers)."""
    at_s = world.now_s if now_s is None else max(now_s, world.now_s)
    return WorldSnapshot(
        now_s=at_s,
        cluster=world.cluster,
        costs=world.costs,
        servers=tuple(replace(record) for record in world.servers),
        jobs=tuple(job.copy() for job in world.jobs.values()) if with_jobs else (),
        limits=dict(world.admission.limits),
        windows=world.server_reservations,
    )


def restore(snapshot: WorldSnapshot) -> World:
    """A world with the contents of the snapshot, for a policy to decide about. O(jobs + servers)."""
    world = world_of(
        StoredWorld(
            [job.copy() for job in snapshot.jobs],
            [replace(record) for record in snapshot.servers],
            windows=snapshot.windows,
        ),
        snapshot.cluster,
        snapshot.costs,
    )
    world.now_s = snapshot.now_s
    return world
