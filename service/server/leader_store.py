"""The leader's store: no commits after the lead is lost, and no admissions before the predictor is warm."""

from collections.abc import Callable, Sequence

from policies.model.ids import JobId
from service.db.lease import FencedOff, LeaderLease
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import CycleBatch, Store
from service.engine.record import StoredWorld
from service.runtime.garbage import made_to_stay


class LeaderStore(SqlStore):
    """The store of the leader. It commits nothing after the lead is lost or can no longer be trusted."""

    def __init__(self, database: Database, lead: LeaderLease, fencing_token: int) -> None:
        super().__init__(database, fencing_token=fencing_token, lease=lead.name)
        self._lead = lead

    def load(self) -> StoredWorld:
        """As SqlStore; the objects are kept out of garbage collection."""
        with made_to_stay():
            return super().load()

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """As SqlStore. Raises FencedOff (a StoreUnavailable) if the lead is lost."""
        self._lead.check()
        try:
            return super().commit(batch)
        except FencedOff:
            self._lead.lose()
            raise


class PatientStore:
    """Implements :class:`service.engine.ports.Store` around another one: submissions stay pending until ``ready``."""

    def __init__(self, inner: Store, ready: Callable[[], bool]) -> None:
        self._inner = inner
        self._ready = ready
        self.load = inner.load
        self.jobs = inner.jobs
        self.commit = inner.commit

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """Pending requests of the inner store, until ``ready`` without submissions and what is asked of their jobs."""
        requests = self._inner.pending_requests(limit)
        if self._ready():
            return requests
        submitted = {request.job for request in requests if request.kind is RequestKind.SUBMITTED}
        return [request for request in requests if request.job is None or request.job not in submitted]
