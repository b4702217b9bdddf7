"""What every policy must do. Subclass :class:`PolicyContract` and give it a ``make`` fixture."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies import ranked
from policies.base import Policy, queue_of
from policies.builtin import las
from policies.builtin.asrpt import Asrpt, AsrptState
from policies.decision.queue_order import QueuePlace, QueueWanted
from policies.lifecycle import JobState
from policies.model.cluster import Cluster
from policies.model.decision import Change, ChangeKind, Preempt
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.options import Preemption
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState
from service.engine.record import JobRecord
from service.engine.world import Costs, World
from tests.scenarios.chance import WAITING_REASONS, Flaky, Watched, crowd
from tests.scenarios.dsl import Story, servers

Make = Callable[..., Policy[Any]]
"""A fresh policy with these options."""

SEEDS = st.integers(min_value=0, max_value=10**9)
FEW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)

FEWER = settings(FEW, max_examples=3)


def history(story: Story) -> list[tuple[object, ...]]:
    """All transitions of a story."""
    return [(event.at_s, event.job, event.target, event.reason, event.attempt) for event in story.log.events]


class PolicyContract:
    """Each test makes its own policies through ``make(**options)``."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @FEW
    @given(SEEDS)
    def test_equal_input_gives_equal_decisions(self, make: Make, seed: int) -> None:
        one, two = Watched(make()), Watched(make())
        assert history(crowd(seed, one).to_the_end()) == history(crowd(seed, two).to_the_end())
        assert one.decisions == two.decisions

    @FEW
    @given(SEEDS)
    def test_the_order_in_which_equal_arrivals_are_told_does_not_matter(self, make: Make, seed: int) -> None:
        plain = crowd(seed, make()).to_the_end()
        shuffled = crowd(seed, Watched(make(), shuffled=seed)).to_the_end()
        assert history(plain) == history(shuffled)

    @FEW
    @given(SEEDS)
    def test_nobody_starves_and_every_gang_is_whole(self, make: Make, seed: int) -> None:
        """The story itself sees to it that no GPU is given twice and every gang is whole, after every pass."""
        story = crowd(seed, make()).to_the_end()
        assert {story.state(name) for name in story.ids} == {JobState.SUCCEEDED}
        assert story.engine.counters["decisions_rejected"] == 0

    @FEW
    @given(SEEDS)
    def test_every_waiting_job_has_a_reason_and_no_running_one_keeps_it(self, make: Make, seed: int) -> None:
        story = crowd(seed, Watched(make()))
        for at_s in range(0, 600, 20):
            story.until(float(at_s))
            for job in story.engine.world.jobs.values():
                explanation = story.engine.explain(job.id)
                assert job.reason is story.memory.jobs([job.id])[0].reason, "what is shown is what is stored"
                if job.waiting:
                    assert job.reason in WAITING_REASONS, job.reason
                    assert explanation.reason in WAITING_REASONS
                elif job.state in (JobState.STARTING, JobState.RUNNING):
                    assert job.reason is Reason.STARTED
                    assert explanation.reason is Reason.STARTED

    @FEW
    @given(SEEDS)
    def test_it_decides_as_if_it_had_just_been_rebuilt(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        """Transactions fail, rows go stale, attempts crash, users interfere: no memory may go astray."""
        no_pause_between_refreshes(monkeypatch)
        flaky = Flaky(seed, failing=0.03, stale=0.15)
        flaky.failing = 0.0  # a service that cannot load at its start ends
        story = crowd(seed, Watched(make(), rebuilt=True), store=flaky)
        flaky.failing = 0.03
        disturb(story, seed)
        flaky.failing = flaky.stale = 0.0
        story.to_the_end()
        assert flaky.failed + flaky.bumped > 0
        assert {story.state(name) for name in story.ids} == {JobState.SUCCEEDED}

    @FEWER
    @given(SEEDS)
    def test_cpus_and_memory_are_never_given_twice_and_no_hungry_job_starves(self, make: Make, seed: int) -> None:
        """The story itself sees to it after every pass that no server gives more than it states."""
        story = crowd(seed, Watched(make()), hungry=True).to_the_end()
        assert {story.state(name) for name in story.ids} == {JobState.SUCCEEDED}
        assert story.engine.counters["decisions_rejected"] == 0

    @FEWER
    @given(SEEDS)
    def test_with_hungry_jobs_it_decides_as_if_it_had_just_been_rebuilt(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        no_pause_between_refreshes(monkeypatch)
        flaky = Flaky(seed, failing=0.0, stale=0.15)
        story = crowd(seed, Watched(make(), rebuilt=True), store=flaky, hungry=True)
        disturb(story, seed)
        flaky.stale = 0.0
        story.to_the_end()
        assert {story.state(name) for name in story.ids} == {JobState.SUCCEEDED}

    @FEW
    @given(SEEDS)
    def test_without_preemption_nobody_is_stopped(self, make: Make, seed: int) -> None:
        watched = Watched(make(preemption="never"), rebuilt=True)
        story = crowd(seed, watched).to_the_end()
        assert not [a for decision in watched.decisions for a in decision.actions if isinstance(a, Preempt)]
        assert {story.state(name) for name in story.ids} == {JobState.SUCCEEDED}

    def test_a_decision_does_not_scan_the_queue(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        few, many = _accesses(make(), 1_000), _accesses(make(), 20_000)
        assert many <= 2 * few + 10, f"{few} looks at jobs with 1,000 waiting, {many} with 20,000"


class RankedPolicyContract(PolicyContract):
    """A policy of ranks besides has a queue."""

    @FEW
    @given(SEEDS)
    def test_the_queue_is_in_the_order_of_ranks(self, make: Make, seed: int) -> None:
        """All waiting jobs sorted by what they show, with the ranks of a state that was just rebuilt; and any part of it."""
        chosen, dice = make(), random.Random(seed)
        story = crowd(seed, chosen)
        held: list[str] = []
        for at_s in range(0, 600, 30):
            story.until(float(at_s))
            waiting = [name for name, job in story.records.items() if job.waiting]
            if waiting and dice.random() < 0.3:
                held.append(dice.choice(waiting))
                story.hold(held[-1]).until(float(at_s))
            elif held:
                story.release(held.pop()).until(float(at_s))
            places = check_queue(story, chosen)
            check_parts(story, places, dice)

    @FEW
    @given(SEEDS)
    def test_one_gang_at_a_time_the_first_of_the_queue_starts(self, make: Make, seed: int) -> None:
        """Gangs of the whole cluster; nothing else changes their ranks. A-SRPT may release another job since the last look."""
        dice = random.Random(seed)
        story = Story("1x4", make(preemption="never"))
        for number in range(10):
            runs_s, priority = float(dice.randrange(1, 60)), dice.choice((0, 0, 1))
            predicted = dice.choice(("truth", runs_s * 2, None))
            spec = {"user": f"u{number}", "project": "p", "priority": priority}
            story.job(f"j{number}", gpus=4, runs_s=runs_s, predicted=predicted, **spec)
        foretold, started, unlisted = list[JobId](), list[JobId](), list[JobId]()
        for at_s in range(2_000):
            if len(started) == 10:
                break
            listed = [place.key.job for place in story.engine.queue(QueueWanted(None, 10)).jobs]
            story.until(float(at_s))
            for job in [event.job for event in story.log.events[story.log.seen :] if event.target is JobState.STARTING]:
                started.append(job)
                foretold.append(listed[0] if job in listed else job)
                unlisted += [] if job in listed else [job]
        assert len(started) == 10
        assert foretold == started
        # Before the first pass the queue is empty.
        assert unlisted == started[:1] or isinstance(make(), Asrpt)

    def test_a_part_of_the_queue_does_not_scan_the_queue(self, make: Make) -> None:
        chosen = make()
        world = _crowded(5_000)
        state = chosen.rebuild(world)
        middle = queue_of(chosen, world, state, QueueWanted(None, 2_500)).jobs[-1:]
        world.jobs = counting = _Counting(world.jobs)
        past = middle[0].key if middle else None
        found = queue_of(chosen, world, state, QueueWanted(past, 50)).jobs
        assert counting.looks == len(found)
        assert [place.position for place in found] == [2_501 + number for number in range(len(found))]


def no_pause_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grown index may lag behind a rebuilt one by the least time between two refreshes of a rank: make that nothing."""
    for module in (ranked, las):
        monkeypatch.setattr(module, "REFRESH_S_MIN", 1e-6)


def disturb(story: Story, seed: int) -> None:
    """Ten minutes of crashes, holds and releases; every job is released in the end."""
    dice = story.store.dice  # type: ignore[attr-defined]
    held: list[str] = []
    for at_s in range(5, 605, 10):
        story.until(float(at_s))
        running = [name for name in story.records if story.state(name) is JobState.RUNNING]
        if running and dice.random() < 0.15:
            story.crash(dice.choice(running))
        if story.records and dice.random() < 0.1:
            held.append(dice.choice(sorted(story.records)))
            story.hold(held[-1], preempt=dice.random() < 0.5)
        elif held and dice.random() < 0.3:
            story.release(held.pop(0))
    for number, name in enumerate(held):
        story.release(name).until(620.0 + number)


class _Counting(dict[JobId, JobRecord]):
    """Counts how often a job is looked at, and forbids looking at all of them."""

    looks = 0

    def __getitem__(self, key: JobId) -> JobRecord:
        self.looks += 1
        return super().__getitem__(key)

    def get(self, key: JobId, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def values(self) -> Any:
        raise AssertionError("a decision looked at all jobs")

    items = __iter__ = values


def check_queue(story: Story, chosen: Policy[Any]) -> Sequence[QueuePlace]:
    """The queue of a story, which holds exactly the waiting jobs but those behind the virtual gate."""
    world = story.engine.world
    found = story.engine.queue(QueueWanted(None, 1_000, sorted(world.jobs)))
    state = chosen.rebuild(world, story.engine.dump())
    rank = cast(RankedPolicy, chosen).rank
    expected = []
    for job in world.jobs.values():
        if job.waiting and job.reason is not Reason.VIRTUAL_GATE:
            guarded = state.guard.tier(job.id) == 0
            level = 0 if guarded else state.project_level(job)
            by_rank = 0.0 if guarded else rank(world, job, state).value
            late = not guarded and _unreleased(chosen, state, job.id)
            expected.append((not guarded, -job.priority, level, late, by_rank, job.submitted_at_s, job.id))
    expected.sort()
    assert [place.key.job for place in found.jobs] == [entry[-1] for entry in expected], f"at {world.now_s} s"
    assert [place.position for place in found.jobs] == list(range(1, len(expected) + 1))
    shown = [math.inf if place.rank is None else place.rank for place in found.jobs]
    assert shown == pytest.approx([rank(world, world.jobs[entry[-1]], state).value for entry in expected])
    assert found.ordered == len(expected)
    assert set(found.others) == world.jobs.keys() - {entry[-1] for entry in expected}
    return found.jobs


def _unreleased(chosen: Policy[Any], state: SchedulerState, job: JobId) -> bool:
    """Whether released jobs come before this one: it may start early, before its virtual completion."""
    if not isinstance(state, AsrptState) or cast(Asrpt, chosen).options.preemption is not Preemption.NEVER:
        return False
    return job not in state.released_at_s


def check_parts(story: Story, places: Sequence[QueuePlace], dice: random.Random) -> None:
    """Pages are parts of the whole, and some jobs keep their positions among all."""
    world = story.engine.world
    limit, past, walked = dice.randrange(1, 5), None, list[QueuePlace]()
    while page := story.engine.queue(QueueWanted(past, limit)).jobs:
        assert len(page) <= limit
        walked += page
        past = page[-1].key
    assert walked == list(places)
    some = [place for place in places if dice.random() < 0.5]
    ids = [place.key.job for place in some]
    assert story.engine.queue(QueueWanted(None, 1_000, ids)).jobs == tuple(some)
    assert story.engine.queue(QueueWanted(None, 1, ids)).jobs == tuple(some[:1])
    users = {world.jobs[place.key.job].spec.user for place in places[:1]}
    of_users = [place for place in places if world.jobs[place.key.job].spec.user in users]
    found = story.engine.queue(QueueWanted(None, limit, sees=lambda _, user: user in users))
    assert (found.jobs, found.ordered, found.others) == (tuple(of_users[:limit]), len(of_users), ())
    for number, place in enumerate(some):
        assert story.engine.queue(QueueWanted(place.key, 1_000, ids)).jobs == tuple(some[number + 1 :])


def _crowded(waiting: int) -> World:
    """A long queue of many gang sizes."""
    world = World(Cluster("c", servers("8x8")), Costs())
    world.now_s = 10_000.0
    for number in range(waiting):
        spec = JobSpec("j", "u", gpus=2 ** (number % 6), priority=0)
        world.add_job(JobRecord(JobId(number + 1), spec, float(number % 977)))
    return world


def _accesses(policy: Policy[Any], waiting: int) -> int:
    """Looks at jobs in one decision after one arrival, with a full cluster and a long queue of many gang sizes."""
    world = _crowded(waiting)
    state = policy.rebuild(world)
    policy.decide(world, (), state)  # reasons are said once for all after a rebuild
    newcomer = JobRecord(JobId(waiting + 1), JobSpec("new", "u", gpus=1), world.now_s)
    world.add_job(newcomer)
    for server in range(8):
        world.servers[server].down = True
    changes = [Change(ChangeKind.SERVER_CHANGED, server=ServerIndex(server)) for server in range(8)]
    policy.decide(world, changes, state)
    counting = _Counting(world.jobs)
    world.jobs = counting
    policy.decide(world, [Change(ChangeKind.ARRIVED, newcomer.id)], state)
    for server in range(8):
        world.servers[server].down = False
    policy.decide(world, changes, state)  # 64 GPUs are free: it starts a few
    return counting.looks
