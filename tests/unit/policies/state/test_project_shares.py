"""Accounts of projects: use with forgetting against a numerical integration, levels, and what a dump brings back."""

import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.state.project_shares import IDLE_GPUS, STEP, ProjectShares
from service.engine.record import AttemptRecord, JobRecord
from service.engine.world import Costs, World

HALF_LIFE_S = 1000.0
EPOCH_S = 1.76e9


@dataclass
class Bench:
    """Jobs that hold GPUs for a while, told to the accounts as the engine would."""

    weights: dict[str, float] = field(default_factory=dict)
    start_s: float = EPOCH_S

    def __post_init__(self) -> None:
        self.world = World(Cluster("c", (Server("s", 64),)), Costs())
        self.world.now_s = self.start_s
        self.shares = ProjectShares(HALF_LIFE_S, self.weights, self.start_s)
        self.told: list[Change] = []
        self.next_id = 1

    def start(self, project: str, gpus: int) -> JobId:
        job = JobRecord(JobId(self.next_id), JobSpec("j", "u", gpus, project), self.world.now_s)
        self.next_id += 1
        self.world.add_job(job)
        placement = place([ServerShare(ServerIndex(0), gpus)])
        ids = self.world.bind(job.id, placement)
        job.attempt = AttemptRecord("a", job.id, 1, None, placement, ids, self.world.now_s)  # type: ignore[arg-type]
        self.told.append(Change(ChangeKind.STARTED, job.id, placement))
        return job.id

    def stop(self, job_id: JobId) -> None:
        job = self.world.jobs[job_id]
        assert job.attempt is not None
        self.world.give(job_id, job.attempt.placement, job.attempt.gpu_ids)
        job.attempt = None
        self.told.append(Change(ChangeKind.VACATED, job_id))

    def at(self, seconds: float) -> list[str]:
        """Let the accounts know what happened up to now."""
        self.world.now_s = self.start_s + seconds
        moved = self.shares.absorb(self.world, self.told)
        self.told = []
        return moved

    def used(self, project: str) -> float:
        account = self.shares.accounts[project]
        return self.shares._used(account, self.world.now_s)


def test_use_decays_by_half_in_a_half_life() -> None:
    bench = Bench(weights={"b": 2.0})
    job, other = bench.start("a", 4), bench.start("b", 4)
    bench.at(10.0)
    bench.stop(job)
    bench.stop(other)
    bench.at(10.0)
    assert math.isclose(bench.used("a"), 40.0, rel_tol=0.005)
    assert math.isclose(bench.used("b"), 20.0, rel_tol=0.005)
    bench.at(10.0 + HALF_LIFE_S)
    assert math.isclose(bench.used("a"), 20.0, rel_tol=0.005)


_stories = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.floats(0.0, 900.0), st.floats(1.0, 900.0)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(_stories)
def test_accounts_agree_with_an_integration_in_small_steps(story: list[tuple[str, int, float, float]]) -> None:
    bench = Bench()
    events = sorted(
        [(begin, 1, number) for number, (_, _, begin, _) in enumerate(story)]
        + [(begin + lasts, 0, number) for number, (_, _, begin, lasts) in enumerate(story)]
    )
    ids: dict[int, JobId] = {}
    for at_s, starts, number in events:
        bench.at(at_s)
        if starts:
            ids[number] = bench.start(story[number][0], story[number][1])
        else:
            bench.stop(ids[number])
        bench.at(at_s)
    bench.at(2000.0)
    forgetting = math.log(2.0) / HALF_LIFE_S
    for project in {name for name, *_ in story}:
        exact = sum(
            gpus
            / forgetting
            * (math.exp(-forgetting * (2000.0 - begin - lasts)) - math.exp(-forgetting * (2000.0 - begin)))
            for name, gpus, begin, lasts in story
            if name == project
        )
        assert math.isclose(bench.used(project), exact, rel_tol=1e-6, abs_tol=1e-6)


def test_the_level_of_a_project_follows_its_use() -> None:
    bench = Bench()
    bench.start("a", 8)
    bench.shares.level("idle")
    bench.at(0.0)
    told, before = 0, bench.shares.level("a")
    for second in range(1, 2000):
        moved = bench.at(float(second))
        if "a" in moved:
            told += 1
    assert bench.shares.level("a") - before >= told > 0
    apart = bench.shares.level("a") - bench.shares.level("idle")
    ratio = (bench.used("a") + IDLE_GPUS * HALF_LIFE_S) / (IDLE_GPUS * HALF_LIFE_S)
    assert abs(apart - math.log(ratio) / math.log(STEP)) <= 1.0


def test_levels_are_computed_only_when_due() -> None:
    bench = Bench()
    bench.start("a", 8)
    bench.at(0.0)
    for _ in range(200):
        due_s = bench.shares.next_s()
        assert due_s is not None
        assert due_s > bench.world.now_s
        level = bench.shares.level("a")
        assert bench.at((bench.world.now_s + due_s) / 2 - EPOCH_S) == []
        assert bench.at(due_s - EPOCH_S) == ["a"]
        assert bench.shares.level("a") == level + 1


@settings(max_examples=40, deadline=None)
@given(_stories, st.integers(0, 11))
def test_a_dump_restores_equal_accounts(story: list[tuple[str, int, float, float]], when: int) -> None:
    bench = Bench(weights={"a": 0.3})
    events = sorted(
        [(begin, 1, number) for number, (_, _, begin, _) in enumerate(story)]
        + [(begin + lasts, 0, number) for number, (_, _, begin, lasts) in enumerate(story)]
    )
    ids: dict[int, JobId] = {}
    for step, (at_s, starts, number) in enumerate(events):
        bench.world.now_s = EPOCH_S + at_s
        if starts:
            ids[number] = bench.start(story[number][0], story[number][1])
        else:
            bench.stop(ids[number])
        if step == when:
            twin = ProjectShares(HALF_LIFE_S, bench.weights, bench.world.now_s)
            twin.restore(bench.world, bench.shares.dump())
            bench.at(at_s)
            assert twin.dump() == bench.shares.dump()
        bench.at(at_s)


def test_idle_projects_are_forgotten_after_a_long_time() -> None:
    bench = Bench()
    job = bench.start("a", 8)
    bench.at(0.0)
    bench.stop(job)
    bench.at(100.0)
    for number in range(1, 60):
        bench.at(number * HALF_LIFE_S)
    assert bench.shares.accounts == {}


def test_a_job_may_run_or_wait_for_thousands_of_half_lives() -> None:
    bench = Bench()
    bench.start("a", 8)
    bench.shares.join(JobRecord(JobId(90), JobSpec("j", "u", 1, "waiting"), EPOCH_S))
    bench.at(0.0)
    first = bench.shares.dump()
    for number in range(1, 40):
        bench.at(number * 100 * HALF_LIFE_S)
    assert math.isclose(bench.used("a"), 8 * HALF_LIFE_S / math.log(2.0))
    ratio = (8 / math.log(2.0) + IDLE_GPUS) / IDLE_GPUS
    ahead = bench.shares.level("a") - bench.shares.level("waiting")
    assert math.isclose(ahead, math.log(ratio) / math.log(STEP), abs_tol=1.0)

    twin = ProjectShares(HALF_LIFE_S, {}, bench.world.now_s)
    twin.restore(bench.world, first)
    assert twin.level("a") == bench.shares.level("a"), "also where the service was down for all that time"
    forgetful = ProjectShares(HALF_LIFE_S, {}, bench.world.now_s)
    forgetful.restore(bench.world, {})
    assert forgetful.level("a") == bench.shares.level("a"), "and where it has no dump"
