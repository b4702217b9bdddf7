"""The scratch of one decision: what it means to do, counted as done until the decision ends."""

from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.view import ClusterView
from policies.state.ledger import GpuLedger


class TentativeChanges:
    """Starts, reservations and stops entered in the ledger by the decision in progress.

    :meth:`undo` takes them back: what was really done comes back as changes of the next cycle.
    """

    __slots__ = ("_ledger", "_reserved", "_stopped")

    def __init__(self, ledger: GpuLedger) -> None:
        self._ledger = ledger
        self._reserved: list[JobId] = []
        self._stopped: list[JobId] = []

    def start(self, view: ClusterView, placement: Placement) -> None:
        """Count these free GPUs as taken."""
        self._ledger.take(placement)
        self._ledger.sync_placement(view, placement)

    def reserve(self, view: ClusterView, job: JobId, placement: Placement) -> None:
        """Count these GPUs as reserved for the job."""
        self._ledger.reserve(job, placement)
        self._reserved.append(job)
        self._ledger.sync_placement(view, placement)

    def stop(self, view: ClusterView, job: JobId, placement: Placement) -> None:
        """Count the job as being stopped. It stays in the index of running jobs, which may be iterated over now."""
        self._ledger.leave(job, placement)
        self._stopped.append(job)
        self._ledger.sync_placement(view, placement)

    def undo(self) -> None:
        """Take everything back; the pool follows with the next :meth:`GpuLedger.sync`."""
        for job in self._reserved:
            self._ledger.release(job)
        for job in self._stopped:
            self._ledger.stay(job)
        self._reserved, self._stopped = [], []
        self._ledger.give_back()

    def check(self) -> None:
        """Raise AssertionError unless the ledger holds every tentative entry."""
        assert set(self._reserved) <= self._ledger.reservations.keys()
        assert set(self._stopped) <= self._ledger.leaving.keys()
