"""Between the executor and the engine: two threads, one executor."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from policies.model.ids import AttemptId
from service.db import attempt_reports
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.session import Database
from service.engine.events import Report, ReportKind
from service.engine.ports import StoreUnavailable
from service.executors.fake import FakeExecutor
from service.executors.polled import PolledExecutor
from service.server.fleet import FleetExecutor

END = Report(ReportKind.EXITED, 1.0, AttemptId("1.1"), exit_code=0)


class _Slow:
    """An executor in the middle of a poll, until it is acknowledged or that has not come for a while."""

    def __init__(self) -> None:
        self.within, self.acknowledged = threading.Event(), threading.Event()
        self.polling = self.disturbed = False

    def poll(self) -> Sequence[Report]:
        self.polling = True
        self.within.set()
        self.acknowledged.wait(0.2)
        self.polling = False
        return [END]

    def acknowledge(self, reports: Sequence[Report]) -> None:
        self.disturbed |= self.polling
        self.acknowledged.set()


def test_a_pass_acknowledges_nothing_in_the_middle_of_a_poll() -> None:
    """The timer polls between passes as well; what a pass takes out of an executor's memory is what a poll walks through."""
    slow = _Slow()
    inner: Any = slow
    polled = PolledExecutor(inner, lambda _: None)
    polling = threading.Thread(target=polled.collect, daemon=True)
    polling.start()
    assert slow.within.wait(60.0)
    polled.acknowledge([END])
    polling.join(60.0)
    assert slow.acknowledged.is_set()
    assert not slow.disturbed


def test_a_database_that_is_away_is_told_as_everywhere(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads hears other services through it: a pass that cannot is one that fails, not one that breaks."""
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    lead = LeaderLease(database, LEADER_LEASE, "here", 10.0)
    fleet = FleetExecutor(FakeExecutor(clock), lead, database, "here", clock, 1.0)

    def away(_: Database) -> None:
        raise OperationalError("BEGIN", None, Exception("the database is away"))

    monkeypatch.setattr(attempt_reports, "pending_reports", away)
    with pytest.raises(StoreUnavailable, match="away"):
        PolledExecutor(fleet, lambda _: None).collect()
    monkeypatch.undo()
    assert not PolledExecutor(fleet, lambda _: None).collect()
