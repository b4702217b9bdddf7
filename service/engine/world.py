"""The engine's live state: unfinished jobs, the GPUs that each holds, the usable servers. Policies only read it.

It is rebuilt from the store at start and after a failed transaction. Only ``service.engine`` changes it.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from policies.choose import UsableFit
from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.resources import Amounts, amounts_of, demand_of
from policies.model.view import ClusterView
from policies.state.keys import gang_class
from policies.throughput import NeverFits, times_of
from policies.training.gpu_names import with_types_of
from service.engine.admission import Admission
from service.engine.record import JobRecord, ServerRecord, StoredWorld


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a preemption: GPUs stay held for ``checkpoint_s``, and each later start makes no progress for ``restart_s``."""

    checkpoint_s: float = 0.0
    restart_s: float = 60.0


class World(ClusterView):
    """The view that policies get. GPUs are bits of one integer a server (1 = free)."""

    def __init__(self, cluster: Cluster, costs: Costs, admission: Admission | None = None) -> None:
        self.now_s = 0.0
        self.cluster = cluster
        self.costs = costs
        self.records: dict[JobId, JobRecord] = {}
        """The same as ``jobs``, which policies only read."""
        self.jobs: Mapping[JobId, JobRecord] = self.records
        self.servers = [ServerRecord() for _ in cluster.servers]
        self.server_reservations = ()
        self.begun_reservations: set[int] = set()
        """Reservations whose begin was reported to the policy."""
        self.dependents: dict[JobId, dict[JobId, dict[JobId, None]]] = {}
        """The jobs that wait for an unfinished job, in the order of admission. The elements of an array wait for the same jobs,
        so they are one entry, which those jobs share: a thousand elements that wait for a thousand jobs are no million."""
        self.admission = admission or Admission()
        self.admission.has_servers = self._has_servers
        self._usable_fit = UsableFit()
        self._free = [(1 << server.gpus) - 1 for server in cluster.servers]
        """A bit for each free GPU of a server."""
        self._free_gpus = [server.gpus for server in cluster.servers]
        """Their number, which is read several times an event."""
        self._spare: dict[ServerIndex, Amounts] = {}
        """CPUs and memory that no job holds, of the servers that state any."""
        for index in cluster.stating:
            self._note_amounts(ServerIndex(index), cluster.servers[index])
        self._holding: dict[JobId, Placement] = {}

    # Read by policies.

    def usable_gpus(self, server: ServerIndex) -> int:
        """GPUs of the server if new work may go there, else 0."""
        return self.cluster.servers[server].gpus if self.servers[server].usable else 0

    def free_gpus(self, server: ServerIndex) -> int:
        """Free GPUs of a usable server, else 0."""
        record = self.servers[server]
        # Does not call ``usable``: a simulation calls this several times an event.
        return 0 if record.drained or record.down or record.engine_drained else self._free_gpus[server]

    def spare(self, server: ServerIndex) -> Amounts | None:
        """CPUs and memory that no job holds; None where they are not known."""
        return self._spare.get(server)

    def spares(self) -> dict[ServerIndex, Amounts]:
        """The same of all servers that state any. O(servers that do)."""
        return dict(self._spare)

    def holding(self) -> Iterable[JobId]:
        """Jobs that hold GPUs, in the order of their starts."""
        return tuple(self._holding)

    def held_gpus(self) -> int:
        """GPUs that jobs hold, on servers of every state. O(jobs that hold GPUs)."""
        return sum(self.jobs[job].spec.gpus for job in self._holding)

    # Changed by the engine.

    def add_server(self, server: Server, record: ServerRecord) -> None:
        """Append a server to the cluster. The iteration times of known jobs do not change."""
        self.cluster = replace(self.cluster, servers=(*self.cluster.servers, server))
        self.servers.append(record)
        self._free.append((1 << server.gpus) - 1)
        self._free_gpus.append(server.gpus)
        self._note_amounts(ServerIndex(len(self.servers) - 1), server)

    def add_job(self, job: JobRecord) -> None:
        """Add an unfinished job, with its GPUs if its open attempt holds any. Its GPU types get the cluster's names."""
        job.spec = with_types_of(job.spec, self.cluster)
        if job.iteration_times is None:
            try:
                job.iteration_times = times_of(job.spec, self.cluster, job.slowdown)
            except NeverFits:
                # A job from a time with more servers may fit nowhere now. It waits until servers come back.
                pass
        self.records[job.id] = job
        if job.attempt is not None:
            self._hold(job.id, job.attempt.placement, job.attempt.gpu_ids)

    def time_again(self, job: JobRecord) -> None:
        """The slowdown of a job without a stage graph may have changed."""
        if job.spec.stage_graph is None:
            with suppress(NeverFits):
                job.iteration_times = times_of(job.spec, self.cluster, job.slowdown)

    def servers_changed(self) -> None:
        """Servers were added, or take work again or no more."""
        self._usable_fit.servers_changed()
        if self.admission.limits:
            self.admission.servers_changed()

    def _has_servers(self, job: JobRecord) -> bool:
        return self._usable_fit.fits(self, gang_class(job.spec, ()), job.spec)

    def remove_job(self, job_id: JobId) -> None:
        """Remove a finished job; it must hold no GPUs."""
        assert job_id not in self._holding, f"job {job_id} still holds GPUs"
        del self.records[job_id]

    def drop_job(self, job_id: JobId) -> None:
        """Remove a job whose version was not committed, and free its GPUs."""
        if (held := self._holding.get(job_id)) is not None:
            attempt = self.records[job_id].attempt
            assert attempt is not None
            self.give(job_id, held, attempt.gpu_ids)
        self.admission.forget(job_id)
        self.records.pop(job_id, None)

    def bind(self, job_id: JobId, placement: Placement) -> tuple[tuple[int, ...], ...]:
        """Take the lowest free GPUs of each share and return their indices. O(GPUs of the job)."""
        gpu_ids = tuple(_lowest(self._free[share.server], share.gpus) for share in placement.shares)
        self._hold(job_id, placement, gpu_ids)
        return gpu_ids

    def give(self, job_id: JobId, placement: Placement, gpu_ids: tuple[tuple[int, ...], ...]) -> None:
        """Free the GPUs of a job."""
        del self._holding[job_id]
        if self.admission.limits:
            self.admission.forget(job_id)
        for index, share in enumerate(placement.shares):
            self._free[share.server] |= _mask(gpu_ids[index])
            self._free_gpus[share.server] += len(gpu_ids[index])
        if self._spare:
            self._take_amounts(job_id, placement, sign=1)

    def _hold(self, job_id: JobId, placement: Placement, gpu_ids: tuple[tuple[int, ...], ...]) -> None:
        for index, share in enumerate(placement.shares):
            mask = _mask(gpu_ids[index])
            assert self._free[share.server] & mask == mask, (
                f"GPUs {gpu_ids[index]} of server {share.server} are held twice"
            )
            self._free[share.server] &= ~mask
            self._free_gpus[share.server] -= len(gpu_ids[index])
        self._holding[job_id] = placement
        if self._spare:
            self._take_amounts(job_id, placement, sign=-1)
        job = self.records[job_id]
        if job.spec.array is not None:
            self.admission.know_array(job)
        if self.admission.limits:
            self.admission.hold(job)

    def _take_amounts(self, job_id: JobId, placement: Placement, *, sign: int) -> None:
        demand = demand_of(self.records[job_id].spec)
        if demand is None:
            return
        for share in placement.shares:
            if (spare := self._spare.get(share.server)) is not None:
                self._spare[share.server] = spare.plus(demand.of(share.gpus), sign)

    def _note_amounts(self, index: ServerIndex, server: Server) -> None:
        if (amounts := amounts_of(server)) is not None:
            self._spare[index] = amounts


def world_of(stored: StoredWorld, cluster: Cluster, costs: Costs) -> World:
    """Build the world from the stored one. ``cluster`` holds every stored server. O(jobs + servers)."""
    world = World(cluster, costs, Admission(stored.limits))
    world.server_reservations = stored.windows
    for index, record in enumerate(stored.servers):
        world.servers[index] = record
    for job in sorted(stored.jobs, key=lambda job: job.id):
        world.add_job(job)
    return world


def _mask(ids: tuple[int, ...]) -> int:
    mask = 0
    for gpu in ids:
        mask |= 1 << gpu
    return mask


def _lowest(free: int, count: int) -> tuple[int, ...]:
    ids: list[int] = []
    while len(ids) < count:
        assert free, "more GPUs bound than are free"
        low = free & -free
        ids.append(low.bit_length() - 1)
        free ^= low
    return tuple(ids)
