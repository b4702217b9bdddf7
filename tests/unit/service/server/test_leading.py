"""What a service does when it takes the lead of a long queue: schedule at once, and learn from the past beside it."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.decision.queue_order import QueueWanted
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Prediction, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.shares import Shares
from service.config.settings import load_settings
from service.db.history import ended_jobs
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.prediction_log import first_predictions
from service.db.servers import enroll
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.ports import CycleBatch
from service.executors.fake import FakeExecutor
from service.runtime.steady_clock import SteadyClock
from service.server import warming
from service.server.leading import Leading
from service.server.live_stack import HostExecutor, LeaderContext
from service.telemetry.metrics import Metrics
from tests.conformance.store_suite import Driver, ended, touched

SPEC = JobSpec("train", "ada", 1, command=("true",))


@pytest.fixture
def context(database: Database, tmp_path: Path) -> LeaderContext:
    """Two GPUs, and a lead that is this one's."""
    clock = SteadyClock()
    lead = LeaderLease(database, LEADER_LEASE, "here", 3600.0)
    assert lead.take()
    settings = load_settings({"data_dir": tmp_path, "executor": "fake", "reschedule_period_s": 1.0})
    cluster = enroll(database, Cluster("one", (Server("a", 2),)))
    fake = FakeExecutor(clock)
    return LeaderContext(settings, clock, database, cluster, lead, "here", HostExecutor(fake, fake, None), Metrics())


def submit(database: Database, count: int) -> None:
    with database.writing() as session:
        SqlStore(database).submit(session, [replace(SPEC, name=f"{number}") for number in range(count)], 5.0)


def eventually(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 60.0
    while not holds() and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    return holds()


def test_a_long_queue_is_scheduled_before_the_past_is_read(
    context: LeaderContext, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was submitted meanwhile is taken in when it can be predicted."""
    driver = Driver(SqlStore(database))
    submit(database, 4)
    driver.admit()
    submit(database, 1)
    go_on, asked, cycles_before = threading.Event(), list[Any](), list[int]()

    def slow(*question: Any) -> Any:
        asked.append(question[2])
        cycles_before.append(leader.loop.wait_cycle(-1, 0.0))
        go_on.wait(60.0)
        return first_predictions(*question)

    monkeypatch.setattr(warming, "WARM_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(warming, "first_predictions", slow)
    leader = Leading(context)
    try:
        leader.start()
        jobs = leader.stack.engine.world.jobs
        assert eventually(lambda: sum(job.state is not JobState.QUEUED for job in jobs.values()) == 2)
        assert eventually(lambda: bool(cycles_before))
        assert asked == [[1, 2, 3, 4]]
        assert cycles_before[0] >= 1
        assert JobId(5) not in jobs
        go_on.set()
        assert eventually(lambda: JobId(5) in jobs)
    finally:
        go_on.set()
        leader.close()


def test_a_short_past_is_learnt_from_before_anything_is_scheduled(
    context: LeaderContext, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(database, 2)
    Driver(SqlStore(database)).admit()
    threads: list[str] = []

    def noted(*question: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return ended_jobs(*question, **more)

    monkeypatch.setattr(warming, "WARM_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(warming, "ended_jobs", noted)
    leader = Leading(context)
    leader.close()
    assert threads == [threading.current_thread().name]


def test_the_api_is_told_of_held_gpus_the_newest_cycle_and_the_queue(
    context: LeaderContext, database: Database
) -> None:
    submit(database, 3)
    leader = Leading(context)
    try:
        assert (leader.cluster().held_gpus, leader.status().duration_s) == (0, None)
        leader.start()
        assert eventually(lambda: leader.cluster().held_gpus == 2)
        [place] = leader.queue(QueueWanted(None, 5)).jobs
        assert (place.key.job, place.position) == (3, 1)
        assert leader.shares() == Shares()
        now = leader.cluster()
        assert sum(now.usable_gpus) == sum(now.free_gpus) + now.held_gpus
        assert eventually(lambda: (leader.status().duration_s or 0.0) > 0.0)
    finally:
        leader.close()


@pytest.mark.parametrize("rows_at_once", [100, 0])
def test_the_error_of_a_job_from_before_a_restart_is_that_of_its_first_prediction(
    context: LeaderContext, database: Database, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """The estimate that the restarted service loads has seen the job run."""
    submit(database, 1)
    driver = Driver(SqlStore(database))
    [job] = driver.admit()
    for total_s in (20.0, 100.0):
        write = touched(job)
        job.estimate = Estimate((total_s,), Unit.SERVICE_S, "recurrence: 3 past runs", seconds_per_unit=1.0)
        write.prediction = Prediction(job.estimate)
        driver.commit(write)
    monkeypatch.setattr(warming, "WARM_ROWS_AT_ONCE", rows_at_once)
    leader = Leading(context)
    try:
        leader.start()
        assert eventually(lambda: leader.stack.warming.warm)
        writes = {job.id: ended(job, iterations=None, service_s=100.0)}
        leader.stack.measured.cycle(CycleBatch(9, 200.0, (), (), writes=writes))
    finally:
        leader.close()
    bucket = {"source": "recurrence", "le": "0.25"}
    assert context.metrics.registry.get_sample_value("sooner_prediction_error_ratio_bucket", bucket) == 1
