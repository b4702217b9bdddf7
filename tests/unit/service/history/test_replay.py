"""Recorded cycles: kept with what they rest on, told as JSON, and decided again to the same actions."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies import ranked
from policies.builtin import las
from policies.model.cluster import Cluster, Server
from policies.model.decision import Change, ChangeKind, Decision, Preempt
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex
from policies.model.job import ArrayPlace, JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.reasons import Explanation, Reason
from policies.registry import make_policy
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord
from service.engine.watch import WatchingPolicy, WatchingSink
from service.engine.world import Costs, World
from service.history.cycle_file import CycleFileError, cycle_document, read_cycle
from service.history.cycles import CycleSnapshot, Recorder, replay
from service.history.snapshot import FollowedWorld, WorldSnapshot, take
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import prepare
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("two", (Server("a", 4, nic_bytes_s=1e9), Server("b", 2, nic_bytes_s=1e9)))
ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4), st.integers(1, 900)), min_size=3, max_size=14)
POLICIES = st.sampled_from(["fifo", "fifo_backfill", "sjf", "las", "asrpt", "asrpt never", "srsf"])


@pytest.fixture(autouse=True)
def _no_pause_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grown index may lag behind a rebuilt one by the least time between two refreshes of a rank: make that nothing."""
    for module in (ranked, las):
        monkeypatch.setattr(module, "REFRESH_S_MIN", 1e-6)


def recorded(
    rows: list[tuple[int, int, int]], policy: str, model: str = "", *, jobs_max: int = 100, kept: int = 1000
) -> Recorder:
    """A whole simulation under a recorder. Restarts take no time: a grown index lets a job gain rank while it restarts."""
    workload = Workload(
        "w",
        tuple(
            WorkloadJob(f"j{n}", float(at), gpus, seconds + n / 64, model=model)
            for n, (at, gpus, seconds) in enumerate(sorted(rows))
        ),
    )
    name, _, mode = policy.partition(" ")
    options = {"preemption": mode} if mode else {}
    recorder = Recorder(make_policy(name, options), options, jobs_max=jobs_max, kept=kept)
    simulator = Simulator(
        prepare(workload, CLUSTER).jobs, CLUSTER, recorder, "oracle", SimulationOptions(restart_s=0.0)
    )
    ports = simulator.engine._ports
    simulator.engine._ports = replace(ports, sink=WatchingSink(ports.sink, [recorder]))
    simulator.run()
    return recorder


def snapshots(recorder: Recorder) -> list[CycleSnapshot]:
    found = [recorder.snapshot(cycle) for cycle in recorder.cycles()]
    assert None not in found
    return [each for each in found if each is not None]


SCATTERED = [(183, 4, 48), (53, 2, 351), (140, 2, 207), (387, 3, 37), (27, 2, 325), (156, 4, 551), (114, 2, 625)]
"""With four more: in the end the rank of a job on both servers falls half as fast as that of one on one server would."""


@given(ROWS, POLICIES, st.sampled_from(["", "resnet50"]))
@example([*SCATTERED, (157, 3, 17), (19, 2, 10), (226, 3, 17), (9, 4, 726)], "srsf", "resnet50")
@settings(max_examples=40, deadline=None)
def test_every_recorded_cycle_is_decided_again_from_its_document(
    rows: list[tuple[int, int, int]], policy: str, model: str
) -> None:
    recorder = recorded(rows, policy, model)
    assert recorder.cycles()
    for snapshot in snapshots(recorder):
        document = json.loads(json.dumps(cycle_document(snapshot), allow_nan=False))
        again = read_cycle(document)
        assert cycle_document(again) == document
        back = {change.job for change in again.changes if change.kind is ChangeKind.WITHDRAWN}
        if back.isdisjoint(change.job for change in again.changes if change.kind is ChangeKind.ARRIVED):
            told = replay(again, make_policy(again.policy, again.options))
            assert told.replayed == list(snapshot.actions), snapshot.cycle
            assert told.equal


def test_a_replay_shows_a_different_decision() -> None:
    snapshot = snapshots(recorded([(0, 4, 100), (0, 2, 50), (10, 4, 5)], "fifo"))[-1]
    assert replay(snapshot, make_policy("fifo")).equal
    assert not replay(replace(snapshot, actions=snapshot.actions[:1]), make_policy("fifo")).equal


def test_a_replay_with_another_policy() -> None:
    """A short job behind a long one: first in, first out starts the long one, shortest first the short one."""
    recorder = recorded([(0, 4, 60), (0, 2, 60), (1, 4, 500), (2, 4, 50)], "fifo")
    snapshot = next(each for each in snapshots(recorder) if [action.job for action in each.actions] == [JobId(3)])
    told = replay(snapshot, make_policy("sjf"))
    assert [action.job for action in told.replayed] == [JobId(4)]
    assert not told.equal


def test_a_job_that_gpus_are_being_vacated_for_is_said_to_wait_for_that() -> None:
    recorder = recorded([(0, 4, 9000), (5, 4, 9000), (10, 4, 5)], "srsf")
    snapshot = next(each for each in snapshots(recorder) if any(isinstance(at, Preempt) for at in each.actions))
    told = replay(snapshot, make_policy("srsf"))
    assert told.waiting[JobId(3)].sentence.endswith(
        "GPUs are being vacated for the job; it starts when the jobs on them have stopped."
    )
    assert "precede" not in told.waiting[JobId(3)].sentence
    assert "1 job precedes it" in told.waiting[JobId(2)].sentence


def test_the_newest_cycles_are_kept_and_large_worlds_are_not_recorded() -> None:
    rows = [(10 * n, 4, 50) for n in range(8)]
    every = recorded(rows, "fifo").cycles()
    assert recorded(rows, "fifo", kept=3).cycles() == every[:3]
    assert recorded(rows, "fifo", jobs_max=0).cycles() == []
    assert 0 < len(recorded(rows, "fifo", jobs_max=2).cycles()) < len(every)


def test_an_uncommitted_decision_is_not_recorded() -> None:
    recorder = recorded([(0, 1, 5)], "fifo")
    known = recorder.cycles()
    recorder.committed(known[0] + 1)  # a cycle without a decision of its own
    assert recorder.cycles() == known


class _Counts:
    """A policy whose state is how often it was asked, and whose decisions are those it was given."""

    name = "counts"

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = iter(decisions)
        self.asked = 0

    def initial_state(self, view: object) -> "_Counts":
        return self

    def rebuild(self, view: object, dump: object = None) -> "_Counts":
        return self

    def dump(self) -> dict[str, int]:
        return {"asked": self.asked}

    def decide(self, view: object, changes: object, state: object) -> Decision:
        self.asked += 1
        return next(self._decisions)

    def explain(self, view: object, state: object, job: JobId) -> Explanation:
        raise AssertionError


def test_the_recorded_policy_state_precedes_the_decision_and_rolled_back_decisions_have_no_cycle() -> None:
    acts, rests = Decision((Preempt(JobId(1)),)), Decision()
    policy = _Counts(acts, rests, acts)
    recorder, world = Recorder(policy, {}, jobs_max=5, kept=5), World(CLUSTER, Costs())
    recorder.decide(world, (), policy)
    recorder.decide(world, (), policy)
    recorder.committed(1)
    assert recorder.cycles() == []
    recorder.decide(world, (), policy)
    recorder.committed(2)
    kept = recorder.snapshot(2)
    assert kept is not None
    assert (kept.cycle, kept.dump) == (2, {"asked": 2})


def test_a_document_has_no_commands_or_environments() -> None:
    snapshot = snapshots(recorded([(0, 1, 5)], "fifo"))[0]
    job = snapshot.world.jobs[0].copy()
    job.spec = replace(job.spec, command=("run", "hunter2"), env={"PASSWORD": "hunter2"}, working_dir="/hunter2")
    text = json.dumps(cycle_document(replace(snapshot, world=replace(snapshot.world, jobs=(job,)))))
    assert "hunter2" not in text


def with_array(labels: dict[str, str]) -> CycleSnapshot:
    """A cycle with ten elements of an array and a single job."""
    snapshot = snapshots(recorded([(0, 1, 5)], "fifo"))[0]
    [job] = snapshot.world.jobs
    elements = []
    for index in range(10):
        element = job.copy()
        element.id = JobId(20 + index)
        element.spec = replace(job.spec, labels=labels, array=ArrayPlace(index, 10, JobId(20)))
        elements.append(element)
    return replace(snapshot, world=replace(snapshot.world, jobs=(job, *elements)))


def test_the_spec_of_an_array_is_written_once() -> None:
    snapshot = with_array({"note": "x" * 10_000})
    document = json.loads(json.dumps(cycle_document(snapshot)))
    assert len(json.dumps(document)) < 3 * 10_000
    again = read_cycle(document).world.jobs
    assert [job.spec for job in again] == [replace(job.spec, command=(), env={}) for job in snapshot.world.jobs]
    assert [job.id for job in again] == [job.id for job in snapshot.world.jobs]


def test_an_element_without_the_spec_of_its_array_is_refused() -> None:
    document = cycle_document(with_array({}))
    with pytest.raises(CycleFileError, match="'20' is missing"):
        read_cycle(document | {"arrays": {}})
    with pytest.raises(CycleFileError, match="array 20 is that of a single job"):
        read_cycle(document | {"arrays": {"20": {"v": 1, **document["jobs"][0]["spec"]}}})


def test_a_document_of_the_first_version_keeps_the_meaning_of_its_schedules() -> None:
    """In it ``1f1b`` never flushed, and ``sync`` was what is now called 1F1B."""
    snapshot = with_array({"schedule": "1f1b"})
    single, *elements = snapshot.world.jobs
    graph = StageGraph((Stage("a", 1.0, 1.0, 1), Stage("b", 1.0, 1.0, 1)), ((0, 1, 1),))
    for job, old in ((single, "1f1b"), (elements[0], "sync")):
        job.spec = replace(job.spec, gpus=2, stage_graph=graph, parallelism=ParallelismConfig((1, 1), (1, 1)))
        document = cycle_document(replace(snapshot, world=replace(snapshot.world, jobs=(job,))))
        for spec in (document["jobs"][0]["spec"], *document.get("arrays", {}).values()):
            if "parallelism" in spec:
                spec["parallelism"]["schedule"] = old
        [again] = read_cycle(document | {"schema": "sooner.cycle/1"}).world.jobs
        assert again.spec.parallelism is not None
        assert again.spec.parallelism.schedule == {"1f1b": "pipedream", "sync": "1f1b"}[old]
        assert again.spec.labels == job.spec.labels


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "sooner.jobs/1"}, "sooner.cycle/2"),
        ({"jobs": [{"v": 1}]}, "missing"),
        ({"now_s": None}, "wrong type"),
        ({"now_s": 10**400}, "wrong type"),
        ({"cycle": math.inf}, "wrong type"),
        ({"costs": {"v": 1, "restart_s": 10**400}}, "Costs.restart_s: a whole number of so many digits is too large"),
        ({"actions": {"v": 1, "items": [{"action": "dance"}]}}, "action"),
    ],
)
def test_an_invalid_document_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    document = cycle_document(snapshots(recorded([(0, 1, 5)], "fifo"))[0])
    with pytest.raises(CycleFileError, match=said):
        read_cycle(document | change)
    with pytest.raises(CycleFileError, match="'cluster' is missing"):
        read_cycle({key: value for key, value in document.items() if key != "cluster"})


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("cluster", "servers", 0, "gpus"), 10**9, "server a must have 0 to 1024 GPUs"),
        (("cluster", "servers", 0, "gpus"), -1, "server a must have 0 to 1024 GPUs"),
        (("cluster", "servers", 0, "gpu_speed"), 0, "the speeds of server a must be above 0"),
        (("jobs", 0, "attempt", "placement", "shares", 0, 0), 10**9, "job 1 is placed on a server that is not in the"),
        (("jobs", 0, "attempt", "placement", "shares", 0, 1), 10**400, "job 1 has GPUs that server a does not have"),
        (("jobs", 0, "attempt", "gpu_ids", 0, 0), -1, "job 1 has GPUs that server a does not have"),
        (("jobs", 0, "estimate", "points"), [0.0], "the points of job 1's estimate must be above 0 and ascending"),
        (
            ("jobs", 0, "estimate", "points"),
            [-5.0, 1.0],
            "the points of job 1's estimate must be above 0 and ascending",
        ),
        (("jobs", 0, "estimate", "points"), [], "the points of job 1's estimate must be above 0 and ascending"),
        (("jobs", 0, "estimate", "points"), [5.0, 1.0], "the points of job 1's estimate must be above 0 and ascending"),
        (("jobs", 0, "estimate", "seconds_per_unit"), -1, "seconds_per_unit .* must be above 0 \\(got -1\\)"),
    ],
)
def test_numbers_that_cannot_be_are_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    """A replay of such a cycle would fail, never end, or go through a thousand million GPUs."""
    running = next(
        each
        for each in reversed(snapshots(recorded([(0, 4, 100), (5, 2, 50)], "fifo")))
        if each.world.jobs and each.world.jobs[0].attempt is not None
    )
    document = json.loads(json.dumps(cycle_document(running)))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    assert path[-1] in inner or isinstance(inner, list)
    inner[path[-1]] = value
    with pytest.raises(CycleFileError, match=said):
        read_cycle(document)


def test_batches_reach_the_inner_sink() -> None:
    seen: list[object] = []

    class Keeps:
        def transition(self, event: object, job: object) -> None:
            seen.append(event)

        def cycle(self, batch: object) -> None:
            seen.append(batch)

    sink = WatchingSink(Keeps(), [Recorder(make_policy("fifo"), {}, jobs_max=1, kept=1)])
    batch = CycleBatch(1, 0.0, (), ())
    sink.cycle(batch)
    assert seen == [batch]


class _Compares(WatchingPolicy):
    """Compares a followed world with a whole copy, in each cycle or in each third one."""

    def __init__(self, inner: Any, every: int) -> None:
        super().__init__(inner)
        self._every = every
        self._followed: FollowedWorld | None = None
        self.compared = 0
        self._asked = 0

    def decide(self, view: Any, changes: Any, state: Any) -> Decision:
        if self._followed is None:
            self._followed = FollowedWorld(view)
        else:
            self._followed.follow(changes)
        self._asked += 1
        if self._asked % self._every == 0:
            assert _facts(self._followed.snapshot()) == _facts(take(view))
            self.compared += 1
        return self.inner.decide(view, changes, state)


def _facts(snapshot: WorldSnapshot) -> Any:
    """All but the reasons why jobs wait, of which no change tells."""
    return replace(
        snapshot,
        jobs=tuple(replace(job, reason=Reason.NEW, version=0) for job in sorted(snapshot.jobs, key=lambda job: job.id)),
    )


@given(ROWS, POLICIES, st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_followed_world_is_a_copy_of_the_whole_one(rows: list[tuple[int, int, int]], policy: str, every: int) -> None:
    workload = Workload(
        "w", tuple(WorkloadJob(f"j{n}", float(at), gpus, float(s)) for n, (at, gpus, s) in enumerate(sorted(rows)))
    )
    name, _, mode = policy.partition(" ")
    compares = _Compares(make_policy(name, {"preemption": mode} if mode else {}), every)
    Simulator(prepare(workload, CLUSTER).jobs, CLUSTER, compares, "oracle", SimulationOptions()).run()
    assert compares.compared


def test_a_followed_world_has_jobs_that_no_change_names_and_servers_as_they_are() -> None:
    world = World(CLUSTER, Costs())
    followed = FollowedWorld(world)
    world.add_job(JobRecord(JobId(1), JobSpec("held", "ann", 1), 0.0, held=True))
    world.servers[0].drained = True
    followed.follow([Change(ChangeKind.SERVER_CHANGED, server=ServerIndex(0))])
    assert followed.snapshot() == take(world)
    world.jobs[JobId(1)].held = False
    world.servers[0].drained = False
    assert followed.snapshot() != take(world)
    followed.follow([Change(ChangeKind.SERVER_CHANGED, server=ServerIndex(0)), Change(ChangeKind.ARRIVED, JobId(1))])
    earlier = followed.snapshot()
    assert earlier == take(world)
    world.remove_job(JobId(1))
    followed.follow([])
    assert followed.snapshot().jobs == ()
    assert len(earlier.jobs) == 1


def test_a_recorder_copies_all_of_a_world_that_it_did_not_follow() -> None:
    """A rolled-back cycle loads another world; a dropped write changes the same one without a change."""
    acts = Decision((Preempt(JobId(1)),))
    policy = _Counts(acts, acts, acts)
    recorder, first, second = Recorder(policy, {}, jobs_max=5, kept=5), World(CLUSTER, Costs()), World(CLUSTER, Costs())
    second.add_job(JobRecord(JobId(1), JobSpec("a", "ann", 1), 0.0))
    for cycle, world in enumerate((first, second)):
        recorder.decide(world, (), policy)
        recorder.committed(cycle)
    second.jobs[JobId(1)].priority = 7
    recorder.rebuild(second)
    recorder.decide(second, (), policy)
    recorder.committed(2)
    found = [recorder.snapshot(cycle) for cycle in range(3)]
    assert [each and [job.priority for job in each.world.jobs] for each in found] == [[], [0], [7]]
