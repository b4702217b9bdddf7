"""A copy of the live world in another process, updated in each cycle.

The first message is a snapshot of the world. Each later one holds only the changed records, so a cycle costs O(changes).
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
"""Placeholder for a specification that the replica already has. A specification never changes and is most of a record."""


@dataclass(frozen=True, slots=True)
class WorldUpdate:
    """Differences from the previous update. None: unchanged. The replica removes ``ended`` jobs at the next update."""

    now_s: float
    jobs: tuple[JobRecord, ...]
    gone: tuple[JobId, ...]
    ended: tuple[JobId, ...]
    cluster: Cluster | None
    servers: tuple[ServerRecord, ...] | None
    windows: tuple[ServerReservation, ...] | None


class ReplicaSource:
    """The live side. It tracks the contents of the replica. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._marks: dict[JobId, tuple[int, JobState]] = {}
        self._windows: tuple[ServerReservation, ...] = ()

    def snapshot(self, world: World) -> WorldSnapshot:
        """The initial snapshot of a replica. O(jobs + servers)."""
        self._marks = {job.id: _mark(job) for job in world.jobs.values()}
        self._windows = world.server_reservations
        return take(world)

    def update(self, world: World, changes: Iterable[Change]) -> WorldUpdate:
        """The update for ``changes``, which name every job that can affect the decision differently. O(changes)."""
        servers_changed = False
        touched: dict[JobId, None] = {}
        for change in changes:
            servers_changed |= change.kind is ChangeKind.SERVER_CHANGED
            if change.job is not None:
                touched[change.job] = None
        return self._update(world, touched, servers_changed)

    def present(self, world: World) -> WorldUpdate:
        """The update between two cycles: starts and stops that no change has reported yet. O(running jobs)."""
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
    """The side in the other process: the world as of the newest update."""

    def __init__(self, snapshot: WorldSnapshot) -> None:
        self.world = restore(snapshot)
        self._ended: tuple[JobId, ...] = ()

    def apply(self, update: WorldUpdate) -> None:
        """Apply an update. O(changes)."""
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
