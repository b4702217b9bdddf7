"""Simulated attempts that were open when their service ended."""

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.registry import make_policy
from service.db.servers import enroll
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.engine import Engine, Ports
from service.executors.fake import FakeExecutor
from service.sim.predictors import NoPredictor
from tests.null_sink import NullSink


class _Clock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


def _service(database: Database, clock: _Clock) -> Engine[object]:
    cluster = enroll(database, Cluster("c", (Server("a", 4),)))
    return Engine(
        make_policy("fifo"), cluster, Ports(SqlStore(database), FakeExecutor(clock), clock, NoPredictor(), NullSink())
    )


def _pass(engine: Engine[object], clock: _Clock, times: int = 3) -> None:
    for _ in range(times):
        clock.at_s += 1.0
        assert not engine.cycle().failed


def test_a_restart_loses_the_attempts_and_no_job_fails(database: Database) -> None:
    clock, store = _Clock(), SqlStore(database)
    specs = [JobSpec(name, "ada", 1, max_retries=0, labels={"fake_duration_s": "500"}) for name in ("runs", "ends")]
    with database.writing() as session:
        runs, ends = store.submit(session, specs, 1000.0)
    _pass(_service(database, clock), clock)
    assert [job.state for job in store.jobs([runs, ends])] == [JobState.RUNNING, JobState.RUNNING]
    after = _service(database, clock)
    after.reconcile()
    _pass(after, clock)
    for job in store.jobs([runs, ends]):
        assert (job.state, job.attempts, job.retries) == (JobState.RUNNING, 2, 0)
    clock.at_s += 500.0
    _pass(after, clock)
    assert {job.state for job in store.jobs([JobId(runs), JobId(ends)])} == {JobState.SUCCEEDED}
