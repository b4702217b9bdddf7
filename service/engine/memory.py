"""A store in memory, for the simulator and for forecasts."""

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import islice

from policies.model.ids import JobId
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord, StoredWorld


class MemoryStore:
    """Implements :class:`service.engine.ports.Store`, beginning with ``world``.

    The store returns the same record objects that it was given, never fails and keeps no commits. A simulation loads the
    world once. ``needed``: jobs that later submissions need; their records are kept.
    """

    def __init__(self, world: StoredWorld | None = None, needed: Set[JobId] = frozenset()) -> None:
        self._world = world or StoredWorld()
        self._needed = needed
        self._requests: dict[int, EngineRequest] = {}
        self._next_request = 1
        self._submitted: dict[JobId, JobRecord] = {}

    def submit(self, job: JobRecord) -> EngineRequest:
        """Accept a job: its record and its SUBMITTED request."""
        self._submitted[job.id] = job
        return self._accept(EngineRequest(self._next_request, RequestKind.SUBMITTED, job.submitted_at_s, job.id))

    def add_request(self, request: EngineRequest) -> EngineRequest:
        """Accept a request, and set its id."""
        return self._accept(replace(request, id=self._next_request))

    def _accept(self, request: EngineRequest) -> EngineRequest:
        self._requests[request.id] = request
        self._next_request += 1
        return request

    def load(self) -> StoredWorld:
        """The initial world."""
        return self._world

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Those of the jobs that are submitted and either needed or not yet admitted, by ascending id."""
        return [self._submitted[job_id] for job_id in sorted(ids) if job_id in self._submitted]

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """Unconsumed requests, oldest first."""
        if not self._requests:
            return ()
        return list(islice(self._requests.values(), limit))

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Remove the batch's requests. No row is ever stale."""
        self._consume(batch, frozenset())
        return frozenset()

    def _consume(self, batch: CycleBatch, dropped: frozenset[JobId]) -> None:
        for job_id, write in batch.writes.items():
            if write.requests and job_id not in dropped:
                for request_id in write.requests:
                    del self._requests[request_id]
                if job_id not in self._needed:
                    self._submitted.pop(job_id, None)
        for request_id in batch.requests:
            del self._requests[request_id]
