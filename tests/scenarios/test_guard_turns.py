"""Turns of gangs that are overdue: other jobs keep most of the cluster, and what idles costs them nothing."""

from policies.decision.foresight import _ends_at_s
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy

OPTIONS = {"guard_share": 0.05, "guard_wait_s": 1000.0, "fill": "first_fit"}
"""A turn of 50 s."""


def overloaded() -> Story:
    """Two gangs that nobody would start, since shorter ones of the whole cluster keep coming."""
    story = cluster("1x8", policy("asrpt", **OPTIONS))
    story.job("first", gpus=8, runs_s=90).job("a", gpus=8, runs_s=5000, at_s=1).job("b", gpus=8, runs_s=5000, at_s=2)
    for number in range(60):
        story.job(f"short {number}", gpus=8, runs_s=90, at_s=3.0 + 90 * number)
    return story


def test_overdue_gangs_do_not_take_the_cluster_from_all_others() -> None:
    """Eight GPUs for 50 s, and 0.4 of eight are the share: the next turn begins 1,000 s after this one."""
    story = overloaded().until(1001)
    assert story.record("a").first_started_at_s == 1001.0
    story.until(2000)
    assert story.record("b").first_started_at_s is None
    story.until(2001)
    assert story.record("b").first_started_at_s == 2001.0


def test_a_service_that_starts_again_knows_when_the_next_turn_begins() -> None:
    story = overloaded().until(1500).restart().until(2000)
    assert story.record("b").first_started_at_s is None
    assert story.until(2001).record("b").first_started_at_s == 2001.0


def test_gpus_are_not_reserved_for_a_gang_before_its_turn() -> None:
    """Jobs that cannot checkpoint follow each other, so GPUs are reserved for overdue gangs.

    The first runs from 1,200 s on, of which 50 s are its turn: four GPUs for 50 s are what 0.2 GPUs do in 1,000 s.
    """
    story = cluster("2x2", policy("asrpt", **OPTIONS))
    for number in range(100):
        story.job(f"n{number}", runs_s=200, at_s=50.0 * number, checkpoint_period_s=None, preemption=None)
    story.job("a", gpus=4, runs_s=100, at_s=10).job("b", gpus=4, runs_s=100, at_s=20).until(2199)
    assert story.record("a").first_started_at_s == 1200.0
    assert story.record("b").first_started_at_s is None
    assert story.until(2450).record("b").first_started_at_s is not None


def overdue_gangs_of_five() -> Story:
    """Beside a gang of five three GPUs idle, since all others need eight; five for 50 s are what 0.4 do in 625 s."""
    story = cluster("1x8", policy("asrpt", **OPTIONS))
    story.job("first", gpus=8, runs_s=90).job("a", gpus=5, runs_s=9000, at_s=1).job("b", gpus=5, runs_s=9000, at_s=2)
    for number in range(60):
        story.job(f"short {number}", gpus=8, runs_s=90, at_s=30.0 + 90 * number)
    return story


def test_gpus_that_idle_beside_a_gang_in_its_turn_do_not_count() -> None:
    story = overdue_gangs_of_five().until(1700)
    assert story.record("a").first_started_at_s == 1001.0
    assert story.record("b").first_started_at_s == 1626.0


def test_gpus_that_idle_while_no_job_waits_do_not_count() -> None:
    """Each job starts at once, and is on its way for 50 s."""
    story = cluster("1x8", policy("asrpt", **OPTIONS), costs=ExecutorCosts(launch_latency_s=50.0))
    for number in range(20):
        story.job(f"job {number}", gpus=1, runs_s=10, at_s=100.0 * number)
    assert story.until(2000).engine._state.guard.turns.taken_gpus(8, "V100") == 8.0


def test_preemptions_are_foreseen_until_the_next_turn_begins() -> None:
    story = overdue_gangs_of_five().until(1300)
    assert _ends_at_s(story.policy.options, story.engine.world, story.engine._state) == 1626.0


def test_a_gang_that_uses_what_idles_is_followed_by_the_next_one_at_once() -> None:
    """Three jobs of a GPU always run, so that five GPUs idle; a gang of six takes one GPU from them."""
    story = cluster("1x8", policy("asrpt", **OPTIONS))
    for number in range(3):
        story.job(f"first {number}", gpus=1, runs_s=90)
    story.job("a", gpus=6, runs_s=5000, at_s=1).job("b", gpus=6, runs_s=5000, at_s=2)
    for number in range(100):
        for lane in range(3):
            story.job(f"{lane} {number}", gpus=1, runs_s=90, at_s=3.0 + 90 * number + lane)
    story.until(1001)
    assert story.record("a").first_started_at_s == 1001.0
    story.until(1052)
    assert story.record("b").first_started_at_s == 1051.0
