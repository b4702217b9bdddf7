"""Gangs without a stage graph whose slowdown by span is known: they are placed, delayed and moved like those with one."""

from dataclasses import replace

import pytest

from policies.model.cluster import Server
from policies.model.placement import Slowdown, SpanSeconds
from policies.model.reasons import Reason
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy

GUIDED = {"preemption": "guided", "guard_share": 0}
TWICE = Slowdown(2.0, 2.0)


def _two_half_empty_servers(**options: object) -> Story:
    """Two GPUs free on each of two servers, for an hour on the one, for 200 s on the other."""
    story = cluster("2x4", policy("fifo_backfill", guard_share=0, **options))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=1).job("b", gpus=2, runs_s=200)
    story.job("y", gpus=2, runs_s=1).until(1).finishes("x", "y").on("a", 0).on("b", 1)
    return story


def test_it_waits_for_one_server_and_takes_it() -> None:
    story = _two_half_empty_servers().job("slowed", gpus=4, runs_s=1000, at_s=10, slowdown=TWICE)
    story.until(10).starts().waits("slowed", Reason.CONSOLIDATION_DELAY)
    story.until(199).starts()
    story.until(200).starts("slowed").on("slowed", 1)
    story.until(1199).finishes()
    story.until(1200).finishes("slowed")


@pytest.mark.parametrize("slowdown", [None, Slowdown(1.4, 1.4)], ids=["unknown", "little"])
def test_without_a_known_slowdown_or_with_little_it_starts_at_once(slowdown: Slowdown | None) -> None:
    story = _two_half_empty_servers().job("gang", gpus=4, runs_s=1000, at_s=10, slowdown=slowdown)
    story.until(10).starts("gang").on("gang", 0, 1)


def test_it_waits_no_longer_than_the_placement_costs() -> None:
    """Twice the time at the scattered placement: 60 s more for 60 s of work. Then it takes what there is, at half the speed."""
    story = _two_half_empty_servers().job("slowed", gpus=4, runs_s=60, at_s=10, slowdown=TWICE)
    story.until(69).starts()
    story.until(70).starts("slowed").on("slowed", 0, 1)
    story.until(189).finishes()
    story.until(190).finishes("slowed")


def test_it_waits_for_one_rack_where_only_racks_differ() -> None:
    names = [Server(f"s{index}", 4, rack=f"r{index // 2}") for index in range(4)]
    story = cluster("", policy("fifo_backfill", guard_share=0), names=names)
    story.job("a", gpus=4, runs_s=3600).job("b", gpus=4, runs_s=200).job("c", gpus=4, runs_s=3600)
    story.until(1).starts("a", "b", "c").on("b", 1)
    story.job("x", gpus=4, runs_s=50, at_s=2).until(2).starts("x")
    story.job("gang", gpus=8, runs_s=1000, at_s=10, slowdown=Slowdown(1.1, 3.0))
    story.until(52).finishes("x")
    story.until(200).finishes("b").waits("gang", Reason.CONSOLIDATION_DELAY)
    story.until(1199).starts()
    story.until(1200).starts("gang").on("gang", 1, 3)


def test_a_small_job_moves_so_that_it_stays_on_one_server() -> None:
    story = cluster("2x4", policy("asrpt", **GUIDED), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=900).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=900, at_s=0.2)
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    story.job("slowed", gpus=4, runs_s=1000, at_s=10, slowdown=TWICE)
    story.until(10).preempts("a").starts("a", "slowed").on("slowed", 0).on("a", 1)


def test_a_scattered_one_moves_when_a_server_opens() -> None:
    story = cluster("2x4", policy("asrpt", **GUIDED, delay_factor=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    story.job("slowed", gpus=4, runs_s=1000, at_s=10, slowdown=TWICE).until(10).starts("slowed").on("slowed", 0, 1)
    story.until(201).finishes("b").preempts("slowed").starts("slowed").on("slowed", 1)
    story.to_the_end()
    assert story.record("slowed").preemptions == 1


def test_others_are_displaced_by_shape_for_it() -> None:
    """The worst two by rank, b and d, lie on two servers; it takes the GPUs of one."""
    story = cluster("2x4", policy("asrpt", **GUIDED), costs=ExecutorCosts(restart_s=0.0))
    story.job("a", gpus=2, runs_s=5000).job("b", gpus=2, runs_s=9000, at_s=0.1)
    story.job("c", gpus=2, runs_s=8000, at_s=0.2).job("d", gpus=2, runs_s=9100, at_s=0.3)
    story.until(1).starts("a", "b", "c", "d").on("a", 0).on("b", 0).on("c", 1).on("d", 1)
    story.job("slowed", gpus=4, runs_s=100, at_s=10, slowdown=TWICE)
    story.until(10).preempts("d", "c").starts("slowed").on("slowed", 1)


def test_a_slowdown_of_other_programs_delays_it_ten_minutes_at_most() -> None:
    story = cluster("2x4", policy("fifo_backfill", guard_share=0))
    story.job("a", gpus=2, runs_s=9000).job("x", gpus=2, runs_s=1).job("b", gpus=2, runs_s=9000)
    story.job("y", gpus=2, runs_s=1).until(1).finishes("x", "y").on("a", 0).on("b", 1)
    story.job("guessed", gpus=4, runs_s=2000, at_s=10, slowdown=replace(TWICE, measured=False))
    story.until(609).starts()
    story.until(610).starts("guessed").on("guessed", 0, 1)


def test_no_job_moves_for_the_slowdown_of_other_programs() -> None:
    story = cluster("2x4", policy("asrpt", **GUIDED, delay_factor=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    story.job("guessed", gpus=4, runs_s=1000, at_s=10, slowdown=replace(TWICE, measured=False))
    story.until(10).starts("guessed").on("guessed", 0, 1)
    story.until(201).finishes("b").preempts()


def test_a_running_gang_moves_once_its_own_speed_has_shown_the_slowdown() -> None:
    """Before, its slowdown was that of other programs. The speed is measured again after the move, at another span."""
    story = cluster("2x4", policy("asrpt", **GUIDED, delay_factor=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    story.job("gang", gpus=4, runs_s=1000, at_s=10, iterations=1000, slowdown=replace(TWICE, measured=False))
    gang = story.ids["gang"]
    story.told.slowdowns_measured[gang] = TWICE
    story.until(10).starts("gang").on("gang", 0, 1)
    assert story.record("gang").slowdown == TWICE
    story.until(201).finishes("b").preempts("gang").starts("gang").on("gang", 1)
    story.until(1000)
    assert story.told.spans == [
        (gang, SpanSeconds("V100", rack=2.0)),
        (gang, SpanSeconds("V100", server=1.0, rack=2.0)),
    ]


def test_a_gang_that_turns_out_not_to_be_slowed_stays() -> None:
    story = cluster("2x4", policy("asrpt", **GUIDED, delay_factor=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    story.job("gang", gpus=4, runs_s=1000, at_s=10, iterations=1000, slowdown=TWICE)
    story.told.slowdowns_measured[story.ids["gang"]] = Slowdown(1.01, 1.01)
    story.until(10).starts("gang").on("gang", 0, 1)
    story.until(201).finishes("b").preempts()
