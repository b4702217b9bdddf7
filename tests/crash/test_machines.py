"""State machines: any sequence of requests, cycles, deaths and passing time, against a plain model of what was promised."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from policies.lifecycle import Cause, JobState
from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.registry import make_policy
from service.db.session import Database
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, JobEvent, RequestKind
from service.engine.ports import JobWrite, Store
from service.engine.record import JobRecord
from service.executors.fake import FakeExecutor
from service.sim.predictors import NoPredictor
from service.wire import examples
from tests.api.client import client_of
from tests.api.conftest import app_of, make_world
from tests.conformance.store_suite import Driver, start, touched
from tests.conformance.test_executors import FakeClock
from tests.conformance.test_stores import MemoryHarness, SqlHarness
from tests.null_sink import NullSink
from tests.scenarios.checks import assert_sane

pytestmark = pytest.mark.slow

PRIORITIES = st.integers(-3, 3)
TERMINAL = {"succeeded", "failed", "cancelled"}


class TwoStores(RuleBasedStateMachine):
    """The memory store and a database, told the same: they say the same. Each step starts from what the store hands out."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        sql = SqlHarness(database)
        self.memory = MemoryHarness()
        self.harnesses = (self.memory, sql)
        stored = sql.store.load()
        self.memory.memory._cycle, self.memory.memory._at_s = stored.cycle, stored.at_s
        self.drivers = [Driver(harness.store, stored.cycle) for harness in self.harnesses]
        self.jobs: list[JobId] = []

    @rule(count=st.integers(1, 3), hold=st.booleans(), priority=PRIORITIES, at_s=st.integers(0, 100))
    def submit(self, count: int, hold: bool, priority: int, at_s: int) -> None:
        specs = [JobSpec(f"j{n}", "ada", 1, hold=hold, priority=priority) for n in range(count)]
        ids = self.harnesses[1].submit(specs, float(at_s))
        for job, spec in zip(ids, specs, strict=True):
            reason = Reason.HELD if hold else Reason.NEW
            record = JobRecord(job, spec, at_s, reason=reason, priority=priority, held=hold, anchor_s=at_s)
            self.memory.memory.submit(record)
        self.jobs += ids

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        kind=st.sampled_from([RequestKind.CANCEL, RequestKind.HOLD, RequestKind.RELEASE, RequestKind.PRIORITY]),
    )
    def ask(self, data: st.DataObject, kind: RequestKind) -> None:
        request = EngineRequest(0, kind, 5.0, data.draw(st.sampled_from(self.jobs)), priority=data.draw(PRIORITIES))
        for harness in self.harnesses:
            harness.add_request(request)

    @rule(limit=st.integers(1, 5))
    def consume(self, limit: int) -> None:
        """What is pending is taken in, or noted with the job that it is about, or with none."""

        def plan(store: Store, driver: Driver) -> frozenset[JobId]:
            requests = store.pending_requests(limit)
            mine: dict[JobId, list[int]] = {}
            for request in requests:
                assert request.job is not None
                mine.setdefault(request.job, []).append(request.id)
            records = [record for record in store.jobs(list(mine)) if not record.finished]
            alive = {record.id for record in records}
            loose = [request for job, ids in mine.items() if job not in alive for request in ids]
            writes = [touched(record, requests=mine[record.id]) for record in records]
            return driver.commit(*writes, requests=loose, dump={"facts": len(requests)})

        self._both(plan)

    @rule(data=st.data(), stale=st.booleans())
    def begin(self, data: st.DataObject, stale: bool) -> None:
        """Start a queued job; perhaps somebody else has changed its row meanwhile."""
        queued = [record.id for record in self._loaded() if record.state is JobState.QUEUED]
        if not queued:
            return
        job = data.draw(st.sampled_from(queued))
        self._both(lambda store, driver: self._change(store, driver, job, stale, start))

    @rule(data=st.data(), stale=st.booleans(), state=st.sampled_from([JobState.SUCCEEDED, JobState.FAILED]))
    def finish(self, data: st.DataObject, stale: bool, state: JobState) -> None:
        running = [record.id for record in self._loaded() if record.attempt is not None]
        if not running:
            return

        def end(record: JobRecord) -> JobWrite:
            write = touched(record)
            assert record.attempt is not None
            record.attempt.ended_at_s, record.attempt.state = 20.0, type(record.attempt.state).COMPLETED
            write.attempts.append(record.attempt)
            event = JobEvent(record.id, 20.0, record.state, state, Cause.EXITED_ZERO, Reason.COMPLETED, 1)
            write.events.append(event)
            record.state, record.attempt, record.finished_at_s = state, None, 20.0
            return write

        job = data.draw(st.sampled_from(running))
        self._both(lambda store, driver: self._change(store, driver, job, stale, end))

    @invariant()
    def they_say_the_same(self) -> None:
        memory, sql = (harness.store for harness in self.harnesses)
        ours, theirs = memory.load(), sql.load()
        assert (ours.jobs, ours.cycle, ours.at_s) == (theirs.jobs, theirs.cycle, theirs.at_s)
        assert ours.policy_dump in (None, theirs.policy_dump)
        assert memory.jobs(self.jobs) == sql.jobs(self.jobs)
        pending = [[(f.kind, f.job, f.priority) for f in store.pending_requests(1000)] for store in (memory, sql)]
        assert pending[0] == pending[1]

    def _loaded(self) -> list[JobRecord]:
        return self.memory.store.load().jobs

    def _both(self, plan: Callable[[Store, Driver], frozenset[JobId]]) -> None:
        dropped = [plan(harness.store, driver) for harness, driver in zip(self.harnesses, self.drivers, strict=True)]
        assert dropped[0] == dropped[1]

    def _change(
        self, store: Store, driver: Driver, job: JobId, stale: bool, change: Callable[[JobRecord], JobWrite]
    ) -> frozenset[JobId]:
        (record,) = store.jobs([job])
        if stale:
            next(harness for harness in self.harnesses if harness.store is store).bump(job)
        dropped = driver.commit(change(record), dump={"job": job})
        assert dropped == ({job} if stale else frozenset())
        return dropped

    def teardown(self) -> None:
        """Leave nothing unfinished to the next one on the same database."""
        sql, driver = self.harnesses[1], self.drivers[1]
        requests = [request.id for request in sql.store.pending_requests(10_000)]
        writes = []
        for record in sql.store.jobs(self.jobs):
            if not record.finished:
                write = touched(record)
                if record.attempt is not None:
                    record.attempt.state, record.attempt.ended_at_s = type(record.attempt.state).LOST, 30.0
                    write.attempts.append(record.attempt)
                record.state, record.attempt, record.finished_at_s = JobState.CANCELLED, None, 30.0
                writes.append(write)
        driver.commit(*writes, requests=requests)


def test_the_database_is_the_memory_store(any_database: Database) -> None:
    bounds = settings(max_examples=20, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(lambda: TwoStores(any_database), settings=bounds)


class WholeService(RuleBasedStateMachine):
    """Requests over HTTP, the engine on the same database, pretended machines; the model is what clients were told."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = make_world(Path(self.folder.name))
        self.client = client_of(app_of(self.world), self.world.token)
        self.clock = FakeClock()
        self.executor = FakeExecutor(self.clock, launch_s=1.0, stop_s=2.0)
        self.policy = "fifo"
        self.told: dict[int, dict[str, Any]] = {}
        self.drained: set[str] = set()
        self.keys = 0

    @initialize(policy=st.sampled_from(["asrpt", "las", "fifo_backfill"]))
    def serve(self, policy: str) -> None:
        self.policy = policy
        self.restart()

    @rule()
    def restart(self) -> None:
        """The service dies and starts again; the machines run on."""
        ports = Ports(self.world.store, self.executor, self.clock, NoPredictor(), NullSink())
        self.engine = Engine(make_policy(self.policy), Cluster("test", tuple(self.world.servers)), ports)
        self.engine.reconcile()

    @rule(
        gpus=st.sampled_from([1, 1, 2, 4]),
        runs_s=st.sampled_from([1, 10, 100]),
        priority=PRIORITIES,
        hold=st.booleans(),
        exit_code=st.sampled_from([0, 0, 0, 3]),
        repeats=st.integers(1, 3),
    )
    def submit(self, gpus: int, runs_s: int, priority: int, hold: bool, exit_code: int, repeats: int) -> None:
        """However often it is sent with its key, it is one job."""
        self.keys += 1
        labels = {"fake_duration_s": str(runs_s), "fake_exit_code": str(exit_code)}
        more = {"gpus": gpus, "priority": priority, "hold": hold, "labels": labels, "max_retries": 0}
        body = {**examples.PLAIN_JOB, **more}
        headers = {"Idempotency-Key": f"key-{self.keys}"}
        answers = [self.client.post("/v1/jobs", json=body, headers=headers) for _ in range(repeats)]
        assert {answer.status_code for answer in answers} == {201}
        (job,) = {answer.json()["id"] for answer in answers}
        assert job not in self.told
        self.told[job] = {"priority": priority, "held": hold, "cancelled": False, "exit_code": exit_code, "pending": []}

    @precondition(lambda self: self.told)
    @rule(
        data=st.data(),
        action=st.sampled_from(["hold", "release", "cancel", "priority"]),
        priority=PRIORITIES,
        seconds=st.sampled_from([None, 0.0, 1.0]),
    )
    def ask(self, data: st.DataObject, action: str, priority: int, seconds: float | None) -> None:
        """What was accepted will be done, at once or with what comes until the next pass; what was refused has ended."""
        job = data.draw(st.sampled_from(sorted(self.told)))
        body = {"priority": priority} if action == "priority" else {}
        answer = self.client.post(f"/v1/jobs/{job}/{action}", json=body)
        if self.state(job) in TERMINAL:
            assert answer.status_code == 409
            return
        assert answer.status_code == 202, answer.text
        changes = {"cancel": ("cancelled", True), "hold": ("held", True), "release": ("held", False)}
        self.told[job]["pending"].append(changes.get(action, ("priority", priority)))
        if seconds is not None:
            self.cycle(seconds)

    @rule(server=st.sampled_from(["a", "b"]), drain=st.booleans())
    def change_server(self, server: str, drain: bool) -> None:
        verb = "drain" if drain else "resume"
        assert self.client.post(f"/v1/cluster/servers/{server}/{verb}", json={}).status_code == 202
        (self.drained.add if drain else self.drained.discard)(server)

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 60.0]))
    def cycle(self, seconds: float) -> None:
        """Time passes and a pass is made; then whatever was accepted has been done."""
        self.clock.time_s += seconds
        before = {job: self.document(job) for job in self.told}
        self.engine.cycle()
        assert not self.engine.violations
        assert_sane(self.engine.world)
        for job, told in self.told.items():
            for name, value in told["pending"]:
                told[name] = value
            told["pending"] = []
            self._check(job, told, before[job], self.document(job))

    def _check(self, job: int, told: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> None:
        state = now["state"]
        if before["state"] in TERMINAL:
            assert state == before["state"], "terminal is terminal"
            return
        if state != "cancelled":  # a job that ends in this pass is spared what was asked after that
            assert now["priority"] == told["priority"]
            assert now["held"] == told["held"]
        if told["cancelled"]:
            assert state in {"cancelling", *TERMINAL}
        if told["held"] and before["state"] == "queued":
            assert state in {"queued", "cancelled"}, "a held job does not start"
        if state == "succeeded":
            assert told["exit_code"] == 0
        if state == "failed":
            assert told["exit_code"] != 0
        if before["state"] == "queued":
            assert self.drained.isdisjoint(now["servers"]), "nothing new starts on a drained server"

    @invariant()
    def nobody_is_lost(self) -> None:
        listed = self.client.get("/v1/jobs?limit=500").json()["items"]
        assert {job["id"] for job in listed} == set(self.told)

    def document(self, job: int) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{job}").json()
        return found

    def state(self, job: int) -> str:
        return str(self.document(job)["state"])

    def teardown(self) -> None:
        """Everything ends once it may."""
        for job in self.told:
            self.client.post(f"/v1/jobs/{job}/release", json={})
        for server in ("a", "b"):
            self.client.post(f"/v1/cluster/servers/{server}/resume", json={})
        for _ in range(20):
            self.clock.time_s += 60.0
            self.engine.cycle()
        states = {self.state(job) for job in self.told}
        assert states <= TERMINAL, states
        assert not self.engine.world.jobs
        assert not self.executor.observed()
        self.world.database.close()
        self.folder.cleanup()


def test_whatever_clients_do_they_get_what_they_were_promised() -> None:
    bounds = settings(max_examples=10, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(WholeService, settings=bounds)
