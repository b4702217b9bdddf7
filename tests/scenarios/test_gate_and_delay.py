"""The virtual gate of the non-preemptive form, and waiting for a placement that keeps traffic local."""

from typing import Any

import pytest

from policies.model.graph import Stage, StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.model.reasons import Reason
from policies.throughput import iteration_time_s, iteration_times
from tests.scenarios.dsl import Story, cluster, policy

NEVER = {"preemption": "never", "guard_share": 0}

# One stage of four replicas that exchange a gigabyte each iteration: on one server it is fast, over two it crawls.
CHATTY = StageGraph((Stage("s", 0.05, 0.05, 1_000_000_000),), ())
FOUR = ParallelismConfig((4,), (1,))


def test_a_job_competes_when_the_virtual_machine_has_done_with_it() -> None:
    story = cluster("1x4", policy("asrpt", **NEVER))
    story.job("a", gpus=4, runs_s=100).until(0).starts().waits("a", Reason.VIRTUAL_GATE)
    story.until(99).starts()
    story.until(100).starts("a")
    story.until(200).finishes("a")


def test_a_short_job_overtakes_behind_the_gate() -> None:
    # a: 4 x 100 / 4 = 100 virtual seconds. b comes at 50 with 1 x 8 / 4 = 2: done at 52, a at 102.
    story = cluster("1x4", policy("asrpt", **NEVER))
    story.job("a", gpus=4, runs_s=100).job("b", gpus=1, runs_s=8, at_s=50)
    story.until(51).starts()
    story.until(52).starts("b").waits("a", Reason.VIRTUAL_GATE)
    story.until(102).starts("a")


def test_a_released_job_that_nobody_tried_says_that_others_come_first() -> None:
    story = cluster("1x1", policy("asrpt", queue="skip", **NEVER))
    story.job("a", runs_s=100).until(100).starts("a")
    story.job("b", runs_s=10).job("c", runs_s=20).until(130).waits("b", Reason.RESOURCES).waits("c", Reason.PRIORITY)


def test_nobody_passes_a_wide_gang_unless_told_to() -> None:
    """Virtual seconds: a 50, wide 10, small 15. A GPU is free from 86 on, but the wide gang needs both and comes first."""
    for queue, at_86 in (("auto", ()), ("strict", ()), ("skip", ("small",))):
        story = cluster("1x2", policy("asrpt", queue=queue, **NEVER))
        story.job("a", gpus=1, runs_s=100).until(50).starts("a")
        story.job("wide", gpus=2, runs_s=10, at_s=60).job("small", gpus=1, runs_s=30, at_s=71).until(85).starts()
        story.until(86).starts(*at_86)
        if not at_86:
            story.waits("small", Reason.QUEUE_HEAD_BLOCKED)
            story.until(150).starts("wide").until(160).starts("small")


def test_early_release_uses_idle_gpus_but_released_jobs_come_first() -> None:
    story = cluster("1x2", policy("asrpt", release="early", **NEVER))
    story.job("a", gpus=1, runs_s=100).job("b", gpus=1, runs_s=300).until(0).starts("a", "b")
    story.job("long", gpus=1, runs_s=1000, at_s=1).job("short", gpus=1, runs_s=50, at_s=50).until(99).starts()
    story.until(100).finishes("a").starts("short")


def test_the_order_of_virtual_completion_may_rule_instead_of_work() -> None:
    for order, first in (("virtual", "early"), ("work", "small")):
        story = cluster("1x1", policy("asrpt", order=order, queue="strict", **NEVER))
        story.job("blocker", runs_s=100).until(100).starts("blocker")
        story.job("early", runs_s=20).until(125).job("small", runs_s=5).until(199).starts()
        story.until(200).starts(first)


def test_a_job_that_failed_does_not_pass_the_gate_twice() -> None:
    story = cluster("1x1", policy("asrpt", **NEVER)).job("a", runs_s=100).until(110)
    story.crash("a").until(110).starts("a")


def test_a_new_server_makes_the_virtual_machine_faster() -> None:
    story = cluster("1x4", policy("asrpt", **NEVER)).job("a", gpus=4, runs_s=100).until(50)
    story.add_server(4).until(50)
    story.until(74).starts()
    story.until(75).starts("a")


def _chatty(story: Story, name: str, at_s: float, runs_s: float = 1000.0, **spec: Any) -> Story:
    times = iteration_times(CHATTY, FOUR, story.cluster, None)
    assert times.ceil_s > 1.5 * times.min_s, "the job is communication-heavy"
    return story.job(name, gpus=4, runs_s=runs_s, at_s=at_s, stage_graph=CHATTY, parallelism=FOUR, times=times, **spec)


def _two_half_empty_servers(**options: object) -> Story:
    """Two GPUs free on each of two servers, for an hour on the one, for 200 s on the other."""
    story = cluster("2x4", policy("fifo_backfill", guard_share=0, **options))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=1).job("b", gpus=2, runs_s=200)
    story.job("y", gpus=2, runs_s=1).until(1).finishes("x", "y").on("a", 0).on("b", 1)
    return story


def test_it_waits_for_a_placement_that_keeps_its_traffic_local_and_takes_it() -> None:
    story = _chatty(_two_half_empty_servers(), "chatty", 10)
    story.until(10).starts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    story.until(199).starts()
    story.until(200).starts("chatty").on("chatty", 1)


def test_after_the_delay_it_takes_what_there_is() -> None:
    """At most once its own run time (delay_factor 1): here 60 s of 60 s, counted from the first look."""
    story = _chatty(_two_half_empty_servers(), "chatty", 10, runs_s=60)
    story.until(69.9).starts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    story.until(70).starts("chatty").on("chatty", 0, 1)


def test_the_delay_goes_on_after_a_restart() -> None:
    story = _two_half_empty_servers()
    story.settings.dump_every_s = 0.0
    _chatty(story, "chatty", 10, runs_s=60).until(40)
    story.restart().until(69).starts()
    story.until(70).starts("chatty")


@pytest.mark.parametrize("options", [{"delay_factor": 0}, {"tau": 1000}])
def test_without_delay_it_takes_what_there_is_at_once(options: dict[str, object]) -> None:
    story = _chatty(_two_half_empty_servers(**options), "chatty", 10)
    story.until(10).starts("chatty").on("chatty", 0, 1)


@pytest.mark.parametrize(("reserve", "small_starts"), [(True, False), (False, True)])
def test_a_delayed_job_may_keep_its_gpus_from_those_behind_it(reserve: bool, small_starts: bool) -> None:
    story = _chatty(_two_half_empty_servers(reserve=reserve), "chatty", 10, runs_s=100)
    story.job("small", gpus=1, runs_s=5, at_s=11).until(11)
    assert bool(story.record("small").attempts) is small_starts


def test_a_spread_placement_is_slower_by_its_iteration_time() -> None:
    story = _chatty(_two_half_empty_servers(delay_factor=0), "chatty", 10, runs_s=100).until(10)
    placement = story.record("chatty").placement
    assert placement is not None
    times = iteration_times(CHATTY, FOUR, story.cluster, None)
    stretch = iteration_time_s(CHATTY, FOUR, story.cluster, placement) / times.min_s
    assert stretch > 1.5
    story.until(10 + 100 * stretch - 1).finishes("b")
    story.until(10 + 100 * stretch + 1).finishes("chatty")
