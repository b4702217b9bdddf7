"""Death at every passage of every crash point, and at every pair of them, over workloads, policies and stores.

The service that dies is the production engine; its successor is a new engine on what the store and the machines have kept.
After each death and each pass: one attempt a job, one job a GPU, nothing behind a checkpoint. At the end: every job ended as
it should, no attempt open, nothing running, every GPU free.
"""

from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster
from service.db.servers import enroll
from service.db.session import Database
from service.db.tables import ATTEMPTS, EVENTS, REQUESTS
from service.engine.crash_points import CrashPoint
from tests.crash.dying import Death
from tests.crash.simulated import WORKLOADS, Mortal, SqlMemory, live_through
from tests.scenarios.dsl import servers

IN_THE_LOOP = (
    CrashPoint.LOADED,
    CrashPoint.DECIDED,
    CrashPoint.COMMITTED,
    CrashPoint.SETTLED,
    CrashPoint.ACKNOWLEDGED,
    CrashPoint.COMMANDED,
    CrashPoint.SENT,
    CrashPoint.RECONCILING,
    CrashPoint.RECONCILED,
)
AFTER_A_DEATH = {CrashPoint.LOADED, CrashPoint.RECONCILING, CrashPoint.RECONCILED}
"""Points that a service passes only while it starts, or when something got lost."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_death_at_every_passage_of_every_point(name: str) -> None:
    _, peaceful = live_through(name)
    assert len(peaceful.passed) > 50
    died_at = set()
    for passage in range(1, len(peaceful.passed) + 1):
        story, reaper = live_through(name, Death(None, passage))
        assert story.deaths == 1
        died_at.update(reaper.died_at)
    assert died_at == set(IN_THE_LOOP) - AFTER_A_DEATH


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_death_at_every_pair_of_points(name: str) -> None:
    """At every passage, and again at the first passage of every point after it: also while it comes back."""
    _, peaceful = live_through(name)
    pairs = set()
    for passage in range(1, len(peaceful.passed) + 1):
        for point in IN_THE_LOOP:
            _, reaper = live_through(name, Death(None, passage), Death(point, 1))
            pairs.add(tuple(reaper.died_at))
    firsts = set(IN_THE_LOOP) - AFTER_A_DEATH
    assert {pair for pair in pairs if len(pair) == 2} >= {(first, CrashPoint.LOADED) for first in firsts}
    assert len({second for _, *seconds in pairs for second in seconds}) == len(IN_THE_LOOP)
    assert len(pairs) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_three_deaths_in_a_row_while_it_comes_back(name: str) -> None:
    for passage in range(1, 60, 4):
        coming = [Death(CrashPoint.LOADED, 1), Death(CrashPoint.LOADED, 1), Death(CrashPoint.COMMITTED, 1)]
        story, _ = live_through(name, Death(None, passage), *coming)
        assert story.deaths == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crowd, A-SRPT", "trouble, LAS"])
@pytest.mark.parametrize("point", [*(point for point in IN_THE_LOOP if point not in AFTER_A_DEATH), CrashPoint.WRITTEN])
def test_death_on_a_database(database: Database, name: str, point: CrashPoint) -> None:
    """The same on SQLite, where a transaction can be cut off in its middle; and what the rows say in the end."""
    enroll(database, Cluster("scenario", servers("2x4")))
    deaths = [Death(point, 2), Death(CrashPoint.LOADED, 1), Death(point, 1), Death(CrashPoint.WRITTEN, 3)]
    story, reaper = live_through(name, *deaths, store=SqlMemory(database))
    assert reaper.died_at == [point, CrashPoint.LOADED, point, CrashPoint.WRITTEN]
    with database.reading() as session:
        connection = session.connection()
        events = connection.execute(select(EVENTS).order_by(EVENTS.c.id)).mappings().all()
        attempts = connection.execute(select(ATTEMPTS)).mappings().all()
        requests = connection.execute(select(REQUESTS)).mappings().all()
    _assert_one_story_a_job(story, [dict(event) for event in events])
    assert all(attempt["ended_at_s"] is not None for attempt in attempts), "an attempt is still open"
    assert {AttemptState(attempt["state"]) for attempt in attempts} <= {
        AttemptState.COMPLETED,
        AttemptState.PREEMPTED,
        AttemptState.FAILED,
        AttemptState.LOST,
        AttemptState.CANCELLED,
    }
    assert all(request["consumed_cycle"] is not None for request in requests), "a request was forgotten"


def _assert_one_story_a_job(story: Mortal, events: list[dict[str, Any]]) -> None:
    """What is told of a job is one chain of states from its submission to its end, without a gap or a repetition."""
    for job in story.ids.values():
        own = [event for event in events if event["job_id"] == job]
        assert own[0]["source"] is None
        assert all(before["target"] == after["source"] for before, after in pairwise(own)), own
        assert JobState(own[-1]["target"]) in (JobState.SUCCEEDED, JobState.CANCELLED)
