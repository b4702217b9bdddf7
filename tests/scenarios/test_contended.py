"""Policies on a network that jobs share: delays, moves and ranks work as on the reserved one; only the speeds are others."""

from policies.model.reasons import Reason
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy
from tests.scenarios.test_gate_and_delay import _chatty

ALONE = 1.0 + (1.5e9 / 12.5e9 - 1.5e9 / 120e9) / (0.025 + 1.5e9 / 120e9)
"""Stretch of the chatty job that straddles alone: its ring of 1.5e9 bytes has a whole NIC instead of 120e9 bytes/s."""

NETWORK = "contended:a=0,xi2=0"


def _half_empty(chosen: str, **options: object) -> Story:
    """Two GPUs free on each of two servers: for an hour on the one, for 200 s on the other."""
    story = cluster(
        "2x4", policy(chosen, guard_share=0, **options), costs=ExecutorCosts(restart_s=60.0), network=NETWORK
    )
    story.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    return story.until(5).finishes("x").on("a", 0).on("b", 1)


def test_a_job_waits_for_a_placement_that_keeps_its_traffic_local() -> None:
    story = _chatty(_half_empty("fifo_backfill"), "chatty", 10)
    story.until(10).starts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    story.until(201).finishes("b").starts("chatty").on("chatty", 1)


def test_a_scattered_job_moves_when_a_server_opens() -> None:
    story = _chatty(_half_empty("asrpt", preemption="guided", delay_factor=0), "chatty", 10)
    story.until(10).starts("chatty").on("chatty", 0, 1)
    story.until(201).finishes("b").preempts("chatty").starts("chatty").on("chatty", 1)
    left_s = 1000.0 - (200.2 - 10.0) / ALONE
    story.until(200.2 + 60.0 + left_s - 0.1)
    assert not story.record("chatty").finished
    story.until(200.2 + 60.0 + left_s + 0.1).finishes("chatty")


def test_a_job_straddles_a_server_that_was_added() -> None:
    story = cluster("1x4", policy("fifo_backfill", guard_share=0, delay_factor=0), network=NETWORK)
    story.until(0).add_server(4).until(1)
    story.job("a", gpus=2, runs_s=9000, at_s=2).job("x", gpus=2, runs_s=3, at_s=2).job("b", gpus=2, runs_s=9000, at_s=3)
    story = _chatty(story.until(5).finishes("x").on("a", 0).on("b", 1), "chatty", 10)
    story.until(10).starts("chatty").on("chatty", 0, 1)
    story.until(10 + 1000 * ALONE - 0.1).finishes()
    story.until(10 + 1000 * ALONE + 0.1).finishes("chatty")
