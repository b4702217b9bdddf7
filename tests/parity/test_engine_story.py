"""Under the same virtual clock and simulated executor the database tells the same story as memory, event by event."""

from collections.abc import Sequence
from typing import Any

import pytest

from policies.lifecycle import Cause
from policies.model.ids import JobId
from policies.registry import BUILT_IN
from service.db.servers import enroll
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.events import EngineRequest
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord, StoredWorld
from tests.scenarios.chance import crowd
from tests.scenarios.dsl import Story, policy


class Twofold:
    """Commits to memory and to the database, and answers from the database: both must say the same."""

    def __init__(self, inner: Any, database: Database) -> None:
        self.inner, self.sql, self._database = inner, SqlStore(database), database

    def submit(self, job: JobRecord) -> None:
        self.inner.submit(job)
        with self._database.writing() as session:
            assert self.sql.submit(session, [job.spec], job.submitted_at_s) == [job.id]

    def add_request(self, request: EngineRequest) -> None:
        self.inner.add_request(request)
        with self._database.writing() as session:
            self.sql.add_request(session, request)

    def load(self) -> StoredWorld:
        return self.sql.load()

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        return self.sql.jobs(ids)

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        requests = self.sql.pending_requests(limit)
        assert [request.id for request in requests] == [request.id for request in self.inner.pending_requests(limit)]
        return requests

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        dropped = self.sql.commit(batch)
        assert dropped == self.inner.commit(batch)
        return dropped


def in_both(story: Story, database: Database) -> Twofold:
    """Let a story that has not begun be kept in memory and in the database."""
    assert enroll(database, story.cluster) == story.cluster
    twofold = Twofold(story.memory, database)
    story.store = twofold
    story.memory = _Both(story.memory, twofold)  # type: ignore[assignment]
    story.engine = story._engine()
    return twofold


def _tell(story: Story) -> Story:
    """Half an hour with a crash, a hold, a drain and a restart."""
    story.until(40)
    running = [name for name in story.records if story.record(name).attempt is not None]
    story.crash(running[0]).hold(running[-1], preempt=True).drain(1).until(90)
    story.release(running[-1]).resume(1).restart().until(200)
    story.cancel(sorted(story.records)[0])
    return story.to_the_end()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_memory_and_database_tell_the_same_story(database: Database, name: str) -> None:
    expected = _tell(crowd(8, policy(name)))
    story = crowd(8, policy(name))
    twofold = in_both(story, database)
    assert _tell(story).log.events == expected.log.events
    assert len(expected.log.events) > 60
    if name in ("asrpt", "las", "srsf"):
        assert any(event.cause is Cause.PREEMPT_DECIDED for event in expected.log.events)
    for job in story.ids.values():
        (ours,) = twofold.sql.jobs([job])
        (theirs,) = expected.memory.jobs([job])
        assert (ours.state, ours.reason, ours.attempts, ours.service_s) == (
            theirs.state,
            theirs.reason,
            theirs.attempts,
            theirs.service_s,
        )


class _Both:
    """The scenario's side of a twofold store: submissions and requests go to both."""

    def __init__(self, memory: Any, twofold: Twofold) -> None:
        self._memory, self._twofold = memory, twofold

    def submit(self, job: JobRecord) -> None:
        self._twofold.submit(job)

    def add_request(self, request: EngineRequest) -> None:
        self._twofold.add_request(request)

    def load(self) -> StoredWorld:
        return self._twofold.load()

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        return self._memory.jobs(ids)
