"""The ablation: every policy can take any free GPUs instead of those that keep a gang's traffic local."""

import pytest

from policies.model.reasons import Reason
from policies.registry import BUILT_IN
from policies.throughput import iteration_times
from tests.scenarios.dsl import Story, cluster, policy
from tests.scenarios.test_gate_and_delay import CHATTY, FOUR


def _gang(story: Story) -> Story:
    """Four GPUs that all exchange much, on a cluster with four free on each of eight servers."""
    times = iteration_times(CHATTY, FOUR, story.cluster, None)
    return story.job("gang", gpus=4, runs_s=1000, stage_graph=CHATTY, parallelism=FOUR, times=times)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_takes_any_free_gpus_if_told_to(name: str) -> None:
    _gang(cluster("8x4", policy(name, delay_factor=0))).until(0).starts("gang").on("gang", 0)
    told = [_gang(cluster("8x4", policy(name, delay_factor=0, placement="random"))).until(0) for _ in range(2)]
    placements = [story.record("gang").placement for story in told]
    assert placements[0] == placements[1]
    assert placements[0] is not None
    assert len(placements[0].servers) > 1


def test_with_the_delay_a_gang_waits_for_a_better_draw() -> None:
    story = _gang(cluster("8x4", policy("sjf", placement="random"))).until(10).starts()
    story.waits("gang", Reason.CONSOLIDATION_DELAY)


def test_the_next_attempt_is_drawn_anew() -> None:
    story = _gang(cluster("8x4", policy("sjf", delay_factor=0, placement="random"))).until(0).starts("gang")
    first = story.record("gang").placement
    story.crash("gang").until(600).starts("gang")
    assert story.record("gang").placement != first


def test_gpus_set_aside_for_the_oldest_are_drawn_too() -> None:
    options = {"placement": "random", "delay_factor": 0, "guard_wait_s": 10}
    story = cluster("4x4", policy("sjf", **options))
    for server in range(4):
        story.job(f"long{server}", gpus=4, runs_s=1000)
    story.until(0).starts(*(f"long{server}" for server in range(4)))
    _gang(story).until(20)
    claimed = story.record("gang").reservation
    assert claimed is not None
    assert len(claimed.servers) > 1
