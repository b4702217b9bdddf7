"""Two hundred seeds of the swarm; ``python -m tests.simulation.swarm`` runs more."""

from collections.abc import Callable
from functools import cache

import pytest

from policies.lifecycle import JobState
from policies.registry import BUILT_IN
from tests.simulation.swarm import Swarm, how_to_repeat, main, swarm
from tests.simulation.weather import KINDS

SEEDS = 200
FIRST = 40
"""Seeds that run every time; the rest with the slow tests."""


@pytest.fixture(scope="module")
def first_story() -> Callable[[int], Swarm]:
    """The stories of the first seeds, which two tests look at."""
    return cache(swarm)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed >= FIRST else ()) for seed in range(SEEDS)]
)
def test_promises_hold_in_the_storm_and_everything_finishes_after_it(
    seed: int, first_story: Callable[[int], Swarm]
) -> None:
    try:
        (first_story if seed < FIRST else swarm)(seed)
    except Exception as error:
        raise AssertionError(how_to_repeat(seed)) from error


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_storm_is_the_same_storm_again(name: str) -> None:
    one, two = swarm(3, name), swarm(3, name)
    assert one.log.events == two.log.events
    assert len(one.log.events) > 50


def test_the_seeds_meet_every_policy_and_every_kind_of_trouble(first_story: Callable[[int], Swarm]) -> None:
    """Or the swarm would be a breeze."""
    stories = [first_story(seed) for seed in range(FIRST)]
    assert {story.policy.name for story in stories} >= {"asrpt", "las", "srsf", "gittins", "easy", "fair"}
    assert {kind for story in stories for kind in story.weather.kinds} == set(KINDS)
    assert {story.weather.network for story in stories} == {"reserved", "contended"}
    records = [story.record(name) for story in stories for name in story.ids]
    assert sum(record.attempts > 3 for record in records) > 30
    assert sum(record.preemptions > 1 for record in records) > 20
    assert sum(record.state is JobState.CANCELLED for record in records) > 10
    assert sum(truth.lost_s > 0.0 for story in stories for truth in story.truths.values()) > 100
    assert sum(story.flaky.failed + story.flaky.bumped for story in stories) > 100


def test_the_command_names_the_seeds_that_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--seeds", "1", "--from", "3", "--policy", "fifo"]) == 0
    monkeypatch.setattr("service.engine.world.World.give", lambda self, job_id, placement, gpu_ids: None)
    assert main(["--seeds", "1", "--from", "3", "--policy", "fifo"]) == 1
    told = capsys.readouterr()
    assert "repeat with: python -m tests.simulation.swarm --from 3 --seeds 1 --policy fifo" in told.err
    assert told.out.endswith("1 seeds, 1 failed\n")
