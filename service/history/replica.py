"""A copy of the live world in another process, kept up to date cycle by cycle.

The first message is a snapshot of everything; each later one holds what changed, so that a cycle costs O(changes)
however long the queue is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from policies.lifecycle import JobState
from policies.model.cluster import Cluster
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.server_reservation import ServerReservation
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import World
from service.history.snapshot import WorldSnapshot, restore, take

_KNOWN_SPEC = JobSpec("", "", 1)
"""Stands for the specification that the replica has already: it never changes, and is most of a record."""


@dataclass(frozen=True, slots=True)
class WorldUpdate:
    """What differs from the update before. None: as before. ``ended`` jobs are forgotten at the next update."""

    now_s: float
    jobs: tuple[JobRecord, ...]
    gone: tuple[JobId, ...]
    ended: tuple[JobId, ...]
    cluster: Cluster | None
    servers: tuple[ServerRecord, ...] | None
    windows: tuple[ServerReservation, ...] | None


class ReplicaSource:
    """The live side: knows what the replica has. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._marks: dict[JobId, tuple[int, JobState]] = {}
        self._windows: tuple[ServerReservation, ...] = ()

    def snapshot(self, world: World) -> WorldSnapshot:
        """Everything, with which a replica begins. O(jobs + servers)."""
        self._marks = {job.id: _mark(job) for job in world.jobs.values()}
        self._windows = world.server_reservations
        return take(world)

    def update(self, world: World, changes: Iterable[Change]) -> WorldUpdate:
        """What ``changes`` tell: they name every job whose part in a decision is another. O(changes)."""
        servers_changed = False
        touched: dict[JobId, None] = {}
        for change in changes:
            servers_changed |= change.kind is ChangeKind.SERVER_CHANGED
            if change.job is not None:
                touched[change.job] = None
        return self._update(world, touched, servers_changed)

    def present(self, world: World) -> WorldUpdate:
        """The world between two cycles: what was just started or stopped, of which no change tells yet. O(running jobs)."""
        jobs = (world.jobs[job] for job in world.holding())
        return self._update(world, [job.id for job in jobs if self._marks.get(job.id) != _mark(job)], False)

    def _update(self, world: World, touched: Iterable[JobId], servers_changed: bool) -> WorldUpdate:
        jobs: list[JobRecord] = []
        gone: list[JobId] = []
        ended: list[JobId] = []
        marks = self._marks
        for job_id in touched:
            if job_id not in world.jobs:
                gone.append(job_id)
                marks.pop(job_id, None)
                continue
            job = world.jobs[job_id]
            copy = job.copy()
            if job_id in marks:
                copy.spec = _KNOWN_SPEC
            jobs.append(copy)
            marks[job_id] = _mark(job)
            if job.finished:
                ended.append(job_id)
                del marks[job_id]
        windows = world.server_reservations if world.server_reservations is not self._windows else None
        self._windows = world.server_reservations
        return WorldUpdate(
            world.now_s,
            tuple(jobs),
            tuple(gone),
            tuple(ended),
            world.cluster if servers_changed else None,
            tuple(replace(server) for server in world.servers) if servers_changed else None,
            windows,
        )


class Replica:
    """The other side: the world as of the newest update."""

    def __init__(self, snapshot: WorldSnapshot) -> None:
        self.world = restore(snapshot)
        self._ended: tuple[JobId, ...] = ()

    def apply(self, update: WorldUpdate) -> None:
        """Take over what changed. O(changes)."""
        world = self.world
        specs = {job.id: world.jobs[job.id].spec for job in update.jobs if job.id in world.jobs}
        for job_id in (*self._ended, *update.gone, *(job.id for job in update.jobs)):
            world.drop_job(job_id)
        self._ended = update.ended
        if update.cluster is not None and update.servers is not None:
            for server in update.cluster.servers[len(world.servers) :]:
                world.add_server(server, ServerRecord())
            world.servers = list(update.servers)
        if update.windows is not None:
            world.server_reservations = update.windows
        for job in update.jobs:
            job.spec = specs.get(job.id, job.spec)
            world.add_job(job)
        world.now_s = update.now_s


def _mark(job: JobRecord) -> tuple[int, JobState]:
    return job.version, job.state
