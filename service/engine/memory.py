"""A store without a disk, for the simulator and for forecasts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from policies.model.ids import JobId
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord, StoredWorld


class MemoryStore:
    """Implements :class:`service.engine.ports.Store`, beginning with ``world``.

    The store hands out the very records it was given, never fails and keeps nothing of what is committed: a simulation
    loads the world once.
    """

    def __init__(self, world: StoredWorld | None = None) -> None:
        self._world = world or StoredWorld()
        self._facts: dict[int, EngineRequest] = {}
        self._next_request = 1
        self._submitted: dict[JobId, JobRecord] = {}

    def submit(self, job: JobRecord) -> EngineRequest:
        """Accept a job: its record and its SUBMITTED request."""
        self._submitted[job.id] = job
        return self.add_request(EngineRequest(0, RequestKind.SUBMITTED, job.submitted_at_s, job.id))

    def add_request(self, request: EngineRequest) -> EngineRequest:
        """Accept a request; its id is given here."""
        request = self._facts[self._next_request] = replace(request, id=self._next_request)
        self._next_request += 1
        return request

    def load(self) -> StoredWorld:
        """The world that the store began with."""
        return self._world

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Those jobs that are submitted and not yet admitted, in ascending id."""
        return [self._submitted[job_id] for job_id in sorted(ids) if job_id in self._submitted]

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """Unconsumed requests, oldest first."""
        if not self._facts:
            return ()
        return list(islice(self._facts.values(), limit))

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Mark the batch's requests as consumed. Nothing is ever stale."""
        self._consume(batch, frozenset())
        return frozenset()

    def _consume(self, batch: CycleBatch, dropped: frozenset[JobId]) -> None:
        for job_id, write in batch.writes.items():
            if write.requests and job_id not in dropped:
                for fact_id in write.requests:
                    del self._facts[fact_id]
                self._submitted.pop(job_id, None)
        for fact_id in batch.requests:
            del self._facts[fact_id]
