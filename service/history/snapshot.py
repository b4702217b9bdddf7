"""Snapshots of the live world, for forecasts and replays.

Taking a snapshot only copies records, so it is fast enough between two cycles. Computations on it do not touch the engine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from policies.model.cluster import Cluster
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
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
    jobs = tuple(job.copy() for job in world.jobs.values()) if with_jobs else ()
    return _snapshot(world, at_s, _servers_of(world), jobs)


class FollowedWorld:
    """A copy of a live world that follows the changes of each cycle, so that a snapshot copies only records that have changed.

    :meth:`follow` gets the changes that the policy gets. They name every job that can affect a decision differently; of other
    jobs a snapshot may hold an earlier reason.
    """

    def __init__(self, world: World) -> None:
        """Copy all of it. O(jobs + servers)."""
        self.world = world
        self._jobs = {job.id: job.copy() for job in world.jobs.values()}
        self._servers = _servers_of(world)

    def follow(self, changes: Iterable[Change]) -> None:
        """Copy what is new and what has changed since the last call. O(changes + new jobs)."""
        world, jobs = self.world, self._jobs
        for job in reversed(world.records.values()):
            if job.id in jobs:
                break
            jobs[job.id] = job.copy()
        touched: dict[JobId, None] = {}
        for change in changes:
            if change.kind is ChangeKind.SERVER_CHANGED:
                self._servers = _servers_of(world)
            if change.job is not None:
                touched[change.job] = None
        for job_id in touched:
            if job_id in world.jobs:
                jobs[job_id] = world.jobs[job_id].copy()

    def snapshot(self) -> WorldSnapshot:
        """The world after the changes that were followed. O(jobs), but copies no record."""
        known = self.world.jobs
        if len(self._jobs) > len(known):
            # Jobs that ended leave the world after the cycle that reported their end.
            self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in known}
        return _snapshot(self.world, self.world.now_s, self._servers, tuple(self._jobs.values()))


def _servers_of(world: World) -> tuple[ServerRecord, ...]:
    return tuple(replace(record) for record in world.servers)


def _snapshot(
    world: World, at_s: float, servers: tuple[ServerRecord, ...], jobs: tuple[JobRecord, ...]
) -> WorldSnapshot:
    return WorldSnapshot(
        now_s=at_s,
        cluster=world.cluster,
        costs=Costs(world.costs.checkpoint_s, world.costs.restart_s),
        servers=servers,
        jobs=jobs,
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
