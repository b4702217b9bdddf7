"""What every store must do. Subclass :class:`StoreContract` and give it a ``harness`` fixture."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import pytest

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.cluster import Server
from policies.model.decision import Action, Change, ChangeKind, Preempt, Reserve, Start
from policies.model.estimate import EndedJob, Estimate, LossCurve, Prediction, Unit
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import IterationTimes, JobSpec, Launch, PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, Slowdown, SpanSeconds, place
from policies.model.plan import PipelineSchedule
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from service.engine.events import EngineRequest, JobEvent, RequestKind
from service.engine.limits import QUEUE, LimitOwner, OwnerLimit, Scope
from service.engine.ports import CycleBatch, JobWrite, NewServer, Store
from service.engine.record import AttemptRecord, JobRecord, ServerRecord


class StoreHarness(Protocol):
    """A store, and what others than the engine do to it."""

    @property
    def store(self) -> Store: ...
    def submit(self, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
        """Accept jobs with their SUBMITTED requests."""

    def add_request(self, request: EngineRequest) -> int:
        """Accept another request."""

    def bump(self, job: JobId) -> None:
        """Change a job's row behind the engine's back: its version rises by one."""


SPEC = JobSpec(
    name="gpt2",
    user="ada",
    project="nlp",
    gpus=4,
    command=("python", "train.py"),
    env={"LR": "0.1"},
    stage_graph=StageGraph((Stage("s0", 0.1, 0.2, 10), Stage("s1", 0.3, 0.4, 20, 5)), ((0, 1, 1000),)),
    parallelism=ParallelismConfig((2, 2), (1, 1), PipelineSchedule.ONE_F_ONE_B, 8),
    walltime_s=900.0,
    priority=3,
    labels={"team": "a"},
    preemption=PreemptionSignal("SIGUSR1", 12.5),
    launch=Launch.GPU,
)
PLACEMENT = place([ServerShare(ServerIndex(0), 3, (2, 1)), ServerShare(ServerIndex(1), 1, (0, 1))])


@dataclass(slots=True)
class Driver:
    """Commits cycles to a store as the engine would."""

    store: Store
    cycle: int = 0

    def commit(
        self, *writes: JobWrite, actions: Sequence[Action] = (), at_s: float = 10.0, **more: object
    ) -> frozenset[JobId]:
        """One cycle with these writes."""
        self.cycle += 1
        batch = CycleBatch(self.cycle, at_s, (), actions, writes={write.job.id: write for write in writes})
        return self.store.commit(replace(batch, **more))

    def admit(self) -> list[JobRecord]:
        """Take in all submitted jobs; returns them as the engine holds them."""
        requests = {
            request.job: request.id
            for request in self.store.pending_requests(1000)
            if request.kind is RequestKind.SUBMITTED
        }
        jobs = self.store.jobs([job for job in requests if job is not None])
        writes = [touched(job, requests=[requests[job.id]]) for job in jobs]
        for write in writes:
            job = write.job
            write.events.append(
                JobEvent(job.id, job.submitted_at_s, None, job.state, Cause.SUBMITTED, job.reason, self.cycle + 1)
            )
        self.commit(*writes)
        return jobs


def touched(job: JobRecord, *, requests: list[int] | None = None) -> JobWrite:
    """The write of a job whose fields were (or will be) changed."""
    job.version += 1
    return JobWrite(job, job.version - 1, requests=requests or [])


def start(job: JobRecord, placement: Placement = PLACEMENT) -> JobWrite:
    """Open the job's next attempt, as a committed Start does."""
    write = touched(job)
    job.attempts += 1
    job.attempt = AttemptRecord(
        attempt_id(job.id, job.attempts),
        job.id,
        job.attempts,
        AttemptState.LAUNCHING,
        placement,
        ((0, 1, 2), (0,)),
        10.0,
    )
    write.attempts.append(job.attempt)
    write.events.append(
        JobEvent(job.id, 10.0, job.state, JobState.STARTING, Cause.START_DECIDED, Reason.STARTED, 1, job.attempt.id)
    )
    job.state, job.reason = JobState.STARTING, Reason.STARTED
    return write


class StoreContract:
    """Each test gets a fresh, empty store through ``harness``."""

    @pytest.fixture
    def harness(self) -> StoreHarness:
        raise NotImplementedError

    @pytest.fixture
    def driver(self, harness: StoreHarness) -> Driver:
        return Driver(harness.store)

    def test_an_empty_store_is_an_empty_world(self, harness: StoreHarness) -> None:
        world = harness.store.load()
        assert (world.jobs, world.cycle, world.policy_dump) == ([], 0, None)
        assert harness.store.pending_requests(10) in ([], ())
        assert harness.store.jobs([JobId(1)]) == []

    def test_a_submission_waits_as_a_fact_until_a_cycle_admits_it(self, harness: StoreHarness, driver: Driver) -> None:
        ids = harness.submit([SPEC, replace(SPEC, name="b", hold=True)], 5.0)
        assert ids == sorted(ids)
        requests = harness.store.pending_requests(10)
        assert [(request.kind, request.job, request.at_s) for request in requests] == [
            (RequestKind.SUBMITTED, job, 5.0) for job in ids
        ]
        assert harness.store.load().jobs == [], "not admitted yet"
        jobs = driver.admit()
        assert [(job.spec.name, job.held, job.priority) for job in jobs] == [("gpt2", False, 3), ("b", True, 3)]
        assert not harness.store.pending_requests(10)
        assert [job.id for job in harness.store.load().jobs] == ids

    def test_a_new_job_is_as_asked(self, harness: StoreHarness) -> None:
        ids = harness.submit([SPEC], 5.0)
        (job,) = harness.store.jobs(ids)
        assert job == JobRecord(ids[0], SPEC, 5.0, priority=3, anchor_s=job.anchor_s)

    def test_every_field_of_a_job_comes_back(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC], 5.0)
        (job,) = driver.admit()
        write = start(job)
        job.estimate = Estimate((1.5, 2.5), Unit.ITERATIONS, "recurrence: 2 past runs", "m1", 0.25, False)
        job.iteration_times = IterationTimes(0.1, 0.3, 0.2, Slowdown(1.5, 3.0))
        job.seconds_by_span = SpanSeconds("V100", server=0.25, cluster=0.75)
        job.loss_curve = LossCurve((1.0, 2.0), (0.5, -0.25))
        job.reservation = PLACEMENT
        job.held, job.progressing = True, True
        job.reports_iterations, job.reports_checkpoints = True, True
        job.stop_cause = Reason.PREEMPTED
        for number, name in enumerate(_plain_numbers(job), start=2):
            setattr(job, name, type(getattr(job, name) or 0.5)(number))
        job.exit_code = -9
        attempt = job.attempt
        assert attempt is not None
        attempt.resume_iteration, attempt.resume_service_s, attempt.started_at_s = 7.0, 8.5, 9.25
        attempt.stop_requested_at_s, attempt.last_iteration, attempt.fencing_token = 11.0, 12.0, 13
        attempt.first_progress_at_s, attempt.first_progress_iteration = 14.0, 15.0
        assert driver.commit(write) == frozenset()
        expected = job.copy()
        assert harness.store.load().jobs == [expected]
        assert harness.store.jobs([job.id]) == [expected]

    def test_what_is_handed_out_is_not_what_is_kept(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC], 5.0)
        (job,) = driver.admit()
        driver.commit(start(job))
        assert job.attempt is not None
        job.iterations, job.attempt.exit_code = 99.0, 1
        (kept,) = harness.store.jobs([job.id])
        assert kept.attempt is not None
        assert (kept.iterations, kept.attempt.exit_code) == (0.0, None)

    def test_an_attempt_that_ends_is_no_longer_the_jobs(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC], 5.0)
        (job,) = driver.admit()
        driver.commit(start(job))
        write = touched(job)
        attempt = job.attempt
        assert attempt is not None
        attempt.state, attempt.ended_at_s, attempt.reason = AttemptState.FAILED, 20.0, Reason.CRASHED
        write.attempts.append(attempt)
        job.attempt, job.state = None, JobState.QUEUED
        driver.commit(write)
        assert harness.store.load().jobs == harness.store.jobs([job.id]) == [job]
        driver.commit(start(job))
        (again,) = harness.store.load().jobs
        assert again.attempt is not None
        assert again.attempt.id == attempt_id(job.id, 2)

    def test_an_ended_job_is_not_loaded_but_known(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC, SPEC], 5.0)
        first, second = driver.admit()
        driver.commit(ended(first))
        assert harness.store.load().jobs == [second]
        assert harness.store.jobs([second.id, first.id, JobId(77)]) == [first, second]

    def test_a_stale_row_drops_its_own_part_alone(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC, SPEC], 5.0)
        stale, fresh = driver.admit()
        request = harness.add_request(EngineRequest(0, RequestKind.PRIORITY, 6.0, stale.id, priority=9))
        other = harness.add_request(EngineRequest(0, RequestKind.PRIORITY, 6.0, fresh.id, priority=9))
        harness.bump(stale.id)
        writes = touched(stale, requests=[request]), touched(fresh, requests=[other])
        stale.priority = fresh.priority = 9
        assert driver.commit(*writes) == {stale.id}
        assert [job.priority for job in harness.store.load().jobs] == [3, 9]
        assert [pending.id for pending in harness.store.pending_requests(10)] == [request]

    @pytest.mark.parametrize("bumped", ["victim", "successor"])
    def test_preemptions_fall_with_the_reservation_they_serve(
        self, harness: StoreHarness, driver: Driver, bumped: str
    ) -> None:
        harness.submit([SPEC] * 4, 5.0)
        victim, other_victim, successor, bystander = driver.admit()
        driver.commit(start(victim), start(other_victim))
        harness.bump({"victim": victim, "successor": successor}[bumped].id)
        writes = [touched(job) for job in (victim, other_victim, successor, bystander)]
        successor.reservation = PLACEMENT
        actions = [
            Preempt(victim.id, successor.id),
            Preempt(other_victim.id, successor.id),
            Reserve(successor.id, PLACEMENT),
        ]
        dropped = driver.commit(*writes, actions=[*actions, Start(bystander.id, PLACEMENT)])
        assert dropped == {victim.id, other_victim.id, successor.id}
        assert [job.version for job in harness.store.load().jobs] == [
            2 + (bumped == "victim"),
            2,
            1 + (bumped == "successor"),
            2,
        ]

    def test_a_second_commit_of_the_same_write_is_stale(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC], 5.0)
        (job,) = driver.admit()
        assert driver.commit(start(job)) == frozenset()
        again = JobWrite(job, job.version - 1)
        assert driver.commit(again) == {job.id}

    def test_facts_come_oldest_first_up_to_the_limit_and_once(self, harness: StoreHarness, driver: Driver) -> None:
        ids = [
            harness.add_request(EngineRequest(0, RequestKind.SERVER_DRAINED, float(at), server=ServerIndex(0)))
            for at in range(5)
        ]
        assert [request.id for request in harness.store.pending_requests(3)] == ids[:3]
        driver.commit(requests=[ids[1], ids[0]])
        assert [request.id for request in harness.store.pending_requests(10)] == ids[2:]

    def test_every_field_of_a_fact_comes_back(self, harness: StoreHarness) -> None:
        (job,) = harness.submit([SPEC], 5.0)
        server = Server("s9", 8, "A100", "r2", 1e9, 2e9, 1.5, 80.0)
        requests = [
            EngineRequest(0, RequestKind.HOLD, 6.0, job, preempt=True),
            EngineRequest(0, RequestKind.PRIORITY, 6.5, job, priority=-4),
            EngineRequest(0, RequestKind.SERVER_RESUMED, 7.0, server=ServerIndex(0)),
            EngineRequest(0, RequestKind.SERVER_ADDED, 7.5, server_spec=server),
            EngineRequest(0, RequestKind.QUOTA_SET, 8.0, owner=LimitOwner(Scope.USER, "ann"), gpus_running_max=3),
            EngineRequest(0, RequestKind.QUEUE_PAUSED, 8.5, owner=QUEUE, note="maintenance"),
            EngineRequest(0, RequestKind.SERVER_UNHEALTHY, 9.0, server=ServerIndex(1), note="Xid 79", drain=True),
        ]
        ids = [harness.add_request(request) for request in requests]
        expected = [replace(request, id=number) for request, number in zip(requests, ids, strict=True)]
        assert harness.store.pending_requests(10)[1:] == expected

    def test_servers_are_remembered_in_their_order(self, harness: StoreHarness, driver: Driver) -> None:
        new = {ServerIndex(index): NewServer(Server(name, 4), found=False) for index, name in enumerate("ba")}
        down = ServerRecord(down=True, detail="no answer")
        driver.commit(servers={ServerIndex(1): down, ServerIndex(0): ServerRecord()}, new_servers=new)
        assert harness.store.load().servers == [ServerRecord(), down]
        both = ServerRecord(drained=True, engine_drained=True, detail="disk")
        unhealthy = ServerRecord(drained=True, health_reason="Xid 79")
        driver.commit(servers={ServerIndex(0): both, ServerIndex(1): unhealthy})
        assert harness.store.load().servers == [both, unhealthy]

    def test_limits_are_remembered_as_the_newest_request_about_each_part_left_them(self, harness: StoreHarness) -> None:
        nlp, ann = LimitOwner(Scope.PROJECT, "nlp"), LimitOwner(Scope.USER, "ann")
        for kind, owner, gpus in (
            (RequestKind.QUOTA_SET, nlp, 16),
            (RequestKind.QUEUE_PAUSED, nlp, None),
            (RequestKind.QUOTA_SET, nlp, 0),
            (RequestKind.QUEUE_PAUSED, QUEUE, None),
            (RequestKind.QUOTA_SET, ann, 2),
            (RequestKind.QUOTA_SET, ann, None),
        ):
            harness.add_request(EngineRequest(0, kind, 1.0, owner=owner, gpus_running_max=gpus, note="why"))
        paused = OwnerLimit(paused=True, pause_reason="why")
        assert harness.store.load().limits == {nlp: replace(paused, gpus_running_max=0), QUEUE: paused}
        harness.add_request(EngineRequest(0, RequestKind.QUEUE_RESUMED, 1.0, owner=QUEUE))
        harness.add_request(EngineRequest(0, RequestKind.QUEUE_RESUMED, 1.0, owner=nlp))
        assert harness.store.load().limits == {nlp: OwnerLimit(0)}

    def test_reservations_are_remembered_until_they_are_over_or_cancelled(
        self, harness: StoreHarness, driver: Driver
    ) -> None:
        window = ServerReservation(0, (ServerIndex(1), ServerIndex(0)), 100.0, 200.0, user="ann", preempt=False)
        first = harness.add_request(EngineRequest(0, RequestKind.RESERVATION_MADE, 1.0, window=window, note="why"))
        later = replace(window, starts_at_s=50.0, ends_at_s=60.0)
        second = harness.add_request(EngineRequest(0, RequestKind.RESERVATION_MADE, 1.0, window=later))
        assert harness.store.pending_requests(10)[0].window == replace(window, id=first)
        assert harness.store.load().windows == (replace(later, id=second), replace(window, id=first))
        driver.commit(at_s=60.0, dump={})
        assert harness.store.load().windows == (replace(window, id=first),)
        harness.add_request(EngineRequest(0, RequestKind.RESERVATION_CANCELLED, 70.0, reservation=first))
        assert harness.store.load().windows == ()

    def test_the_loops_position_and_the_newest_dump_are_remembered(self, harness: StoreHarness, driver: Driver) -> None:
        change = Change(ChangeKind.SERVER_CHANGED, server=ServerIndex(0))
        driver.commit(dump={"timers": [1, 2.5], "deep": {"x": None}}, changes=[change])
        driver.commit(changes=[change])
        world = harness.store.load()
        assert (world.cycle, world.policy_dump) == (2, {"timers": [1, 2.5], "deep": {"x": None}})
        driver.commit(dump={"timers": []}, changes=[change])
        assert harness.store.load().policy_dump == {"timers": []}

    def test_predictions_and_labels_are_taken(self, harness: StoreHarness, driver: Driver) -> None:
        harness.submit([SPEC], 5.0)
        (job,) = driver.admit()
        write = touched(job)
        write.prediction = Prediction(
            Estimate((10.0, 20.0), Unit.ITERATIONS, "cluster median"), "f1", (1.0, float("nan"))
        )
        assert driver.commit(write) == frozenset()
        assert driver.commit(ended(job)) == frozenset()

    @pytest.mark.slow
    def test_many_jobs_at_once(self, harness: StoreHarness, driver: Driver) -> None:
        """More rows than any database takes parameters in one statement of the naive kind."""
        ids = harness.submit([replace(SPEC, stage_graph=None, parallelism=None)] * 6000, 5.0)
        requests = {request.job: request.id for request in harness.store.pending_requests(10_000)}
        jobs = harness.store.jobs(ids)
        assert [job.id for job in jobs] == ids
        driver.commit(*(touched(job, requests=[requests[job.id]]) for job in jobs))
        assert not harness.store.pending_requests(1)
        assert len(harness.store.load().jobs) == 6000


def ended(job: JobRecord, *, iterations: float | None = 40.0, service_s: float = 80.0) -> JobWrite:
    """The write with which a job succeeds."""
    write = touched(job)
    write.events.append(JobEvent(job.id, 30.0, job.state, JobState.SUCCEEDED, Cause.EXITED_ZERO, Reason.COMPLETED, 2))
    job.state, job.reason, job.finished_at_s, job.attempt = JobState.SUCCEEDED, Reason.COMPLETED, 30.0, None
    write.label = EndedJob(
        job.id, job.spec, job.submitted_at_s, 30.0, iterations, service_s, "succeeded", 2.0, "V100", 2
    )
    return write


def _plain_numbers(job: JobRecord) -> list[str]:
    """The counts and amounts of a record, so that a new field is covered without a word here."""
    fixed = {"id", "version", "attempts", "submitted_at_s", "exit_code"}
    return [
        field.name
        for field in fields(job)
        if field.name not in fixed
        and not isinstance(getattr(job, field.name), bool)
        and (isinstance(getattr(job, field.name), int | float) or "float" in str(field.type))
    ]
