"""Keeping traffic inside servers on a busy cluster: making room, moving scattered jobs, not displacing others for scatter."""

from policies.model.reasons import Reason
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy
from tests.scenarios.test_gate_and_delay import _chatty

GUIDED = {"preemption": "guided", "guard_share": 0}


def _half_empty(first_s: float, second_s: float, **options: object) -> Story:
    """Two GPUs free on each of two servers; what runs there has so many seconds in all. A restart costs 60 s."""
    story = cluster("2x4", policy("asrpt", **{**GUIDED, **options}), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", gpus=2, runs_s=first_s).job("x", gpus=2, runs_s=3, at_s=0.1).job(
        "b", gpus=2, runs_s=second_s, at_s=0.2
    )
    story.until(5).finishes("x").on("a", 0).on("b", 1)
    return story


def test_a_small_job_moves_so_that_a_gang_stays_on_one_server() -> None:
    """It is the better one by rank, and yet it moves: it loses a restart, the gang would lose hours."""
    story = _chatty(_half_empty(900, 900), "chatty", 10)
    story.until(10).preempts("a").starts("a", "chatty").on("chatty", 0).on("a", 1)


def test_nobody_moves_where_the_gang_gains_less_than_the_restart_costs() -> None:
    story = _chatty(_half_empty(20, 20), "chatty", 10, runs_s=5)
    story.until(10).preempts().starts().waits("chatty", Reason.CONSOLIDATION_DELAY)


def test_nobody_moves_for_a_job_of_smaller_priority() -> None:
    story = _half_empty(900, 900)
    story.prioritise("a", 5).prioritise("b", 5)
    _chatty(story, "chatty", 10).until(10).preempts().starts().waits("chatty", Reason.CONSOLIDATION_DELAY)


def test_without_preemption_nobody_moves() -> None:
    story = _chatty(_half_empty(900, 900, preemption="never", release="early"), "chatty", 10)
    story.until(600).preempts()


def test_a_scattered_job_moves_when_a_server_opens() -> None:
    story = _chatty(_half_empty(3600, 200, delay_factor=0), "chatty", 10)
    story.until(10).starts("chatty").on("chatty", 0, 1)
    story.until(201).finishes("b").preempts("chatty").starts("chatty").on("chatty", 1)
    story.to_the_end()
    assert story.record("chatty").preemptions == 1


def test_a_scattered_job_stays_when_little_of_it_is_left() -> None:
    """At 200 s it has some 15 s left at the best placement: less than a restart takes."""
    story = _chatty(_half_empty(3600, 200, delay_factor=0), "chatty", 10, runs_s=50)
    story.until(10).starts("chatty")
    story.until(201).finishes("b").preempts()


def test_others_are_not_displaced_at_once_for_a_scattered_placement() -> None:
    """Only two GPUs a server can be had. The gang waits its bounded time, and then displaces."""
    story = cluster("2x4", policy("asrpt", **GUIDED), costs=ExecutorCosts(restart_s=0.0))
    for at_s, (name, priority) in enumerate((("p", 5), ("u", 0), ("q", 5), ("v", 0))):
        story.job(name, gpus=2, runs_s=10_000, at_s=at_s, priority=priority)
    story.until(5).on("p", 0).on("u", 0).on("q", 1).on("v", 1)
    _chatty(story, "chatty", 10, runs_s=100)
    story.until(109).preempts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    story.until(110).preempts("v", "u").starts("chatty").on("chatty", 0, 1)
