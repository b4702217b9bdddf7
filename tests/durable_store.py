"""A memory store that keeps committed copies and gives them back, as a database would, and that can be changed by others."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from policies.model.ids import JobId
from policies.model.server_reservation import ServerReservation, server_reservations_after
from service.engine.events import EngineRequest, RequestKind, limit_after
from service.engine.limits import LimitOwner, OwnerLimit
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch, dropped_with
from service.engine.record import JobRecord, ServerRecord, StoredWorld


class DurableStore(MemoryStore):
    """Implements :class:`service.engine.ports.Store` for tests of rolled-back and stale transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._committed: dict[JobId, JobRecord] = {}
        self._servers: list[ServerRecord] = []
        self._windows: dict[int, ServerReservation] = {}
        self._limits: dict[LimitOwner, OwnerLimit] = {}
        self._cycle = 0
        self._at_s = -inf
        self._dump: dict[str, object] | None = None

    def submit(self, job: JobRecord) -> EngineRequest:
        """Accept a job: a copy of its record and its SUBMITTED request."""
        self._committed[job.id] = job.copy()
        return super().submit(job)

    def add_request(self, request: EngineRequest) -> EngineRequest:
        """Accept a request; its id, and that of the reservation it makes, are given here."""
        if request.owner is not None:
            self._limits[request.owner] = limit_after(self._limits.get(request.owner, OwnerLimit()), request)
        if request.window is not None:
            window = self._windows[self._next_request] = replace(request.window, id=self._next_request)
            request = replace(request, window=window)
        elif request.reservation is not None:
            self._windows.pop(request.reservation, None)
        return super().add_request(request)

    def bump(self, job_id: JobId) -> None:
        """Change a committed row behind the engine's back, as another writer would."""
        self._committed[job_id].version += 1

    def load(self) -> StoredWorld:
        """The committed world."""
        jobs = [job.copy() for job in self._committed.values() if not job.finished and not self._unseen(job.id)]
        servers = [replace(record) for record in self._servers]
        limits = {owner: limit for owner, limit in self._limits.items() if limit.limits}
        return StoredWorld(
            jobs,
            servers,
            self._cycle,
            self._dump,
            limits,
            self._at_s,
            server_reservations_after(self._windows.values(), self._at_s),
        )

    def _unseen(self, job_id: JobId) -> bool:
        return any(
            request.kind is RequestKind.SUBMITTED and request.job == job_id for request in self._requests.values()
        )

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Copies of those jobs, in ascending id."""
        return [self._committed[job_id].copy() for job_id in sorted(ids) if job_id in self._committed]

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Apply the batch; see the protocol."""
        stale = [
            job_id
            for job_id, write in batch.writes.items()
            if self._committed[job_id].version != write.expected_version
        ]
        dropped = dropped_with(stale, batch)
        self._keep(batch, dropped)
        self._consume(batch, dropped)
        return dropped

    def _keep(self, batch: CycleBatch, dropped: frozenset[JobId]) -> None:
        self._cycle = batch.cycle
        self._at_s = batch.at_s
        if batch.dump is not None:
            self._dump = batch.dump
        for job_id, write in batch.writes.items():
            if job_id not in dropped:
                self._committed[job_id] = write.job.copy()
        for index, record in batch.servers.items():
            while len(self._servers) <= index:
                self._servers.append(ServerRecord())
            self._servers[index] = replace(record)
