"""A swarm of seeded faults: first everything goes wrong while the promises must hold, then nothing does and all must finish.

A failure prints its seed; ``swarm(seed, name)`` repeats it event by event.
"""

import random

import pytest

from policies.lifecycle import TERMINAL, JobState
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.registry import BUILT_IN
from service.engine.events import Report, ReportKind
from tests.scenarios.chance import Flaky, Watched, crowd
from tests.scenarios.dsl import Story, policy

FAULTS_UNTIL_S = 600


def swarm(seed: int, name: str) -> Story:
    """Ten minutes of faults, then peace until the end."""
    dice = random.Random(seed)
    flaky = Flaky(seed, failing=0.0, stale=0.05)
    watched = Watched(policy(name))
    story = crowd(seed, watched, store=flaky)
    flaky.failing = 0.02
    placed: dict[JobId, tuple[int, ...]] = {}
    for at_s in range(5, FAULTS_UNTIL_S, 10):
        story.until(float(at_s))
        _nobody_starts_on_a_server_that_is_out(story, placed)
        _fault(story, dice)
    flaky.failing = flaky.stale = 0.0
    for server in range(len(story.cluster.servers)):
        story.executor.repair_server(ServerIndex(server))
        story.resume(server)
    for held in story.ids:
        story.release(held)
    story.wire.cut = False
    story.cycle()
    story.engine.reconcile()
    story.to_the_end()
    return story


def _fault(story: Story, dice: random.Random) -> None:
    servers = len(story.cluster.servers)
    running = sorted(name for name in story.records if story.state(name) is JobState.RUNNING)
    kind = dice.randrange(12)
    if kind == 0:
        story.executor.fail_server(ServerIndex(dice.randrange(servers)))
    elif kind == 1:
        story.executor.repair_server(ServerIndex(dice.randrange(servers)))
    elif kind == 2:
        story.drain(dice.randrange(servers))
    elif kind == 3:
        story.resume(dice.randrange(servers))
    elif kind in (4, 5) and running:
        story.crash(dice.choice(running))
    elif kind == 6 and running:
        _say_again(story, dice.choice(running))
    elif kind == 7 and story.records:
        story.hold(dice.choice(sorted(story.records)), preempt=dice.random() < 0.5)
    elif kind == 8 and story.records:
        story.release(dice.choice(sorted(story.records)))
    elif kind == 9 and story.records and dice.random() < 0.3:
        story.cancel(dice.choice(sorted(story.records)))
    elif kind == 10:
        story.wire.cut = True
    elif kind == 11:
        _come_back(story)


def _say_again(story: Story, name: str) -> None:
    """Old reports once more, of this attempt and of the one before."""
    number = story.records[name].attempts
    for attempt in range(max(1, number - 1), number + 1):
        story.says(Report(ReportKind.STARTED, story.clock.now_s(), attempt_id(story.ids[name], attempt)))


def _come_back(story: Story) -> None:
    """The network is whole again, and the service starts anew; until it can load, it cannot."""
    story.wire.cut = False
    failing, story.store.failing = story.store.failing, 0.0  # type: ignore[attr-defined]
    story.restart()
    story.store.failing = failing  # type: ignore[attr-defined]


def _nobody_starts_on_a_server_that_is_out(story: Story, placed: dict[JobId, tuple[int, ...]]) -> None:
    """``placed``: servers of each job at the last look."""
    world = story.engine.world
    out = {index for index, record in enumerate(world.servers) if not record.usable}
    for event in story.log.events[story.log.seen :]:
        if event.target is JobState.STARTING and event.at_s == story.clock.now_s():
            job = world.jobs.get(event.job)
            if job is not None and job.placement is not None and job.state is JobState.STARTING:
                assert not out.intersection(job.placement.servers)


@pytest.mark.parametrize("seed", range(30))
def test_after_the_storm_everything_finishes(seed: int) -> None:
    name = sorted(BUILT_IN)[seed % len(BUILT_IN)]
    story = swarm(seed, name)
    states = {job: story.state(job) for job in story.ids}
    assert set(states.values()) <= TERMINAL, f"swarm({seed}, {name!r}): {states}"
    cancelled = [job for job, state in states.items() if state is JobState.CANCELLED]
    assert not [job for job, state in states.items() if state is JobState.FAILED]
    assert len(cancelled) < 10
    assert not story.executor.observed(), f"swarm({seed}, {name!r}): attempts that nobody wants are left"
    held = {job: story.record(job).attempt for job in story.ids}
    assert not any(held.values())


@pytest.mark.parametrize("name", ["asrpt", "las"])
def test_a_storm_is_the_same_storm_again(name: str) -> None:
    one, two = swarm(3, name), swarm(3, name)
    assert one.log.events == two.log.events
    assert len(one.log.events) > 50
