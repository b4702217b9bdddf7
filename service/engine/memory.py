"""A store without a disk: for the simulator, and (``durable=True``) for tests of rolled-back and stale transactions."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from policies.model.ids import JobId
from policies.model.server_reservation import ServerReservation, server_reservations_after
from service.engine.events import EngineRequest, RequestKind, limit_after
from service.engine.limits import Owner, OwnerLimit
from service.engine.ports import CycleBatch, dropped_with
from service.engine.record import JobRecord, ServerRecord, StoredWorld


class MemoryStore:
    """Implements :class:`service.engine.ports.Store`.

    ``durable`` keeps committed copies, so that :meth:`load` gives back what a database would. Without it the store hands
    out the very records it was given, never fails and remembers nothing of ended jobs: that is what a simulation needs.
    """

    def __init__(self, *, durable: bool = False, servers: int = 0) -> None:
        self._durable = durable
        self._facts: dict[int, EngineRequest] = {}
        self._next_request = 1
        self._submitted: dict[JobId, JobRecord] = {}
        self._committed: dict[JobId, JobRecord] = {}
        self._servers = [ServerRecord() for _ in range(servers)]
        self._windows: dict[int, ServerReservation] = {}
        self._limits: dict[Owner, OwnerLimit] = {}
        self._cycle = 0
        self._at_s = -inf
        self._dump: dict[str, object] | None = None

    def submit(self, job: JobRecord) -> EngineRequest:
        """Accept a job: its row and its SUBMITTED request."""
        if self._durable:
            self._committed[job.id] = job.copy()
        else:
            self._submitted[job.id] = job
        return self._remember(EngineRequest(self._next_request, RequestKind.SUBMITTED, job.submitted_at_s, job.id))

    def add_request(self, request: EngineRequest) -> EngineRequest:
        """Accept a request; its id is given here."""
        if request.owner is not None:
            self._limits[request.owner] = limit_after(self._limits.get(request.owner, OwnerLimit()), request)
        if request.window is not None:
            window = self._windows[self._next_request] = replace(request.window, id=self._next_request)
            request = replace(request, window=window)
        elif request.reservation is not None:
            self._windows.pop(request.reservation, None)
        return self._remember(replace(request, id=self._next_request))

    def _remember(self, request: EngineRequest) -> EngineRequest:
        self._facts[request.id] = request
        self._next_request += 1
        return request

    def bump(self, job_id: JobId) -> None:
        """Change a committed row behind the engine's back, as another writer would (tests)."""
        self._committed[job_id].version += 1

    def load(self) -> StoredWorld:
        """The committed world; empty without ``durable``."""
        jobs = [job.copy() for job in self._committed.values() if not job.finished and not self._unseen(job.id)]
        servers = [ServerRecord(record.drained, record.down) for record in self._servers]
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
        return any(request.kind is RequestKind.SUBMITTED and request.job == job_id for request in self._facts.values())

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Those jobs, in ascending id."""
        if self._durable:
            return [self._committed[job_id].copy() for job_id in sorted(ids) if job_id in self._committed]
        return [self._submitted[job_id] for job_id in sorted(ids) if job_id in self._submitted]

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """Unconsumed requests, oldest first."""
        if not self._facts:
            return ()
        return list(islice(self._facts.values(), limit))

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Apply the batch; see the protocol."""
        dropped: frozenset[JobId] = frozenset()
        if self._durable:
            stale = [
                job_id
                for job_id, write in batch.writes.items()
                if self._committed[job_id].version != write.expected_version
            ]
            if stale:
                dropped = dropped_with(stale, batch)
            self._keep(batch, dropped)
        for job_id, write in batch.writes.items():
            if write.requests and job_id not in dropped:
                for fact_id in write.requests:
                    del self._facts[fact_id]
                self._submitted.pop(job_id, None)
        for fact_id in batch.requests:
            del self._facts[fact_id]
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
            self._servers[index] = ServerRecord(record.drained, record.down)
