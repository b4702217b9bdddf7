"""An overdue gang where nothing is preempted: which GPUs are reserved for it, who may use them until then, and its turn."""

import pytest

from policies.decision.reservations import LENT_PER_CLASS_MAX
from policies.model.ids import ServerIndex
from policies.model.placement import Placement, ServerShare
from policies.throughput import iteration_times
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy
from tests.scenarios.test_gate_and_delay import CHATTY, FOUR

OPTIONS = {"guard_share": 0.05, "guard_wait_s": 1000.0}


def test_overdue_gangs_do_not_take_the_cluster_from_all_others() -> None:
    """Eight GPUs for 579 s, and 0.4 of eight are the share: the next turn begins 11,580 s after this one."""
    story = cluster("1x8", policy("sjf", **OPTIONS))
    story.job("first", gpus=8, runs_s=90).job("a", gpus=8, runs_s=500, at_s=1).job("b", gpus=8, runs_s=500, at_s=2)
    for number in range(300):
        story.job(f"short {number}", gpus=8, runs_s=90, at_s=3.0 + 90 * number)
    story.until(1001)
    assert story.record("a").reservation is not None
    story.until(1500).restart().until(12_580)
    assert story.record("a").finished_at_s == 1580.0
    assert story.record("b").reservation is None
    story.until(12_581)
    assert story.record("b").reservation is not None
    assert story.until(12_650).record("b").first_started_at_s == 12_650.0


def test_gpus_are_reserved_where_jobs_end_first() -> None:
    story = cluster("2x4", policy("sjf", **OPTIONS))
    story.job("long", gpus=4, runs_s=9000).job("gang", gpus=4, runs_s=2000, at_s=1)
    for number in range(200):
        story.job(f"short {number}", runs_s=300, at_s=75.0 * number)
    story.until(1001).on("long", 1)
    assert story.until(1300).on("gang", 0).record("gang").first_started_at_s == 1275.0


def test_of_jobs_without_estimates_those_are_expected_to_end_first_that_have_run_least() -> None:
    story = cluster("2x4", policy("sjf", **OPTIONS))
    story.job("old", gpus=4, runs_s=9000, predicted=None).job("gang", gpus=4, runs_s=10, predicted=None, at_s=1)
    story.job("first", gpus=4, runs_s=500).job("young", gpus=4, runs_s=9000, predicted=None, at_s=2, priority=1)
    story.until(1001)
    assert story.record("gang").reservation == story.record("young").placement


def test_a_gang_of_the_whole_cluster_waits_for_all_others() -> None:
    story = cluster("1x9", policy("sjf", **OPTIONS))
    for number in range(9):
        story.job(f"job {number}", runs_s=1500 + number)
    story.job("gang", gpus=9, runs_s=1000, at_s=1).until(1001)
    assert story.record("gang").reservation is not None


def chatty(story: Story, name: str, at_s: float) -> Story:
    """A job of four GPUs that is slow on several servers."""
    times = iteration_times(CHATTY, FOUR, story.cluster, None)
    return story.job(name, gpus=4, runs_s=1000, at_s=at_s, stage_graph=CHATTY, parallelism=FOUR, times=times)


def two_by_two(ends_s: tuple[float, float, float, float]) -> Story:
    """Two GPUs of each server are held until each of these times."""
    story = cluster("2x4", policy("sjf", **OPTIONS))
    for number, runs_s in enumerate(ends_s):
        story.job(f"holder {number}", gpus=2, runs_s=runs_s).until(0).on(f"holder {number}", number // 2)
    return story


def test_gpus_are_reserved_where_the_traffic_of_the_gang_stays_local() -> None:
    """After 2,000 s two GPUs are free on each server, after 5,000 s one server."""
    story = chatty(two_by_two((2000, 5000, 2000, 9000)), "gang", 1).job("other", gpus=2, runs_s=900, at_s=2).until(1001)
    assert story.record("gang").reservation == Placement((ServerShare(ServerIndex(0), 4, (4,)),))


def drained(name: str = "sjf", predicted: str | None = "truth") -> Story:
    """Of four GPUs one is held until 3,000 s; jobs of 300 s keep coming for the others, and a gang of four waits."""
    story = cluster("1x4", policy(name, **OPTIONS))
    story.job("holder", runs_s=3000, predicted=predicted).job("gang", gpus=4, runs_s=3500, at_s=1)
    for number in range(60):
        story.job(f"short {number}", runs_s=300, at_s=100.0 * number)
    return story


@pytest.mark.parametrize("name", ["sjf", "swf", "fifo_backfill"])
def test_until_they_are_complete_reserved_gpus_are_lent_to_jobs_that_end_before(name: str) -> None:
    story = drained(name).job("too long", runs_s=2000, at_s=1050).until(2999)
    started = [story.record(f"short {number}").first_started_at_s for number in range(30)]
    late = [at_s for at_s in started if at_s is not None and at_s > 1001.0]
    assert len(late) >= 15
    assert max(late) <= 2700.0
    assert story.record("too long").first_started_at_s is None
    assert story.until(3000).record("gang").first_started_at_s == 3000.0


def test_gpus_that_wait_for_a_job_of_unknown_duration_are_not_lent() -> None:
    story = drained(predicted=None).until(2999)
    started = [story.record(f"short {number}").first_started_at_s for number in range(30)]
    assert max(at_s for at_s in started if at_s is not None) <= 1001.0
    assert story.until(3000).record("gang").first_started_at_s == 3000.0


def test_a_job_that_outlives_what_was_lent_to_it_does_not_lend_them_on() -> None:
    story = drained().job("liar", runs_s=8000, predicted=200, at_s=1002).until(9000)
    began_s = story.record("liar").first_started_at_s
    assert began_s is not None
    assert 1002.0 <= began_s < 2800.0
    started = [story.record(f"short {number}").first_started_at_s for number in range(60)]
    assert not [at_s for at_s in started if at_s is not None and 2700.0 < at_s < began_s + 8000.0]
    assert story.until(began_s + 8000.0).record("gang").first_started_at_s == began_s + 8000.0


def test_gpus_are_lent_until_enough_jobs_have_ended_for_the_reservation() -> None:
    """Two of the four GPUs are reserved, and complete at 3,000 s."""
    story = cluster("1x4", policy("sjf", **OPTIONS)).job("a", runs_s=2000).job("b", runs_s=3000)
    story.job("c", runs_s=9000).job("d", runs_s=9000).job("gang", gpus=2, runs_s=9500, at_s=1)
    story.job("fits", runs_s=900, at_s=2).job("too long", runs_s=2500, at_s=3).until(2999)
    assert story.record("fits").first_started_at_s == 2000.0
    assert story.record("too long").first_started_at_s is None
    assert story.until(3000).record("gang").first_started_at_s == 3000.0


def test_gpus_are_not_lent_while_too_few_jobs_are_known_to_end() -> None:
    """Three of the four GPUs are reserved. They may be complete before 3,000 s, if both of unknown duration end."""
    story = cluster("1x4", policy("sjf", **OPTIONS)).job("a", runs_s=1200).job("b", runs_s=3000)
    story.job("c", runs_s=9000, predicted=None).job("d", runs_s=9000, predicted=None)
    story.job("gang", gpus=3, runs_s=9500, at_s=1).job("fits", runs_s=900, at_s=2).until(2999)
    assert story.record("fits").first_started_at_s is None


def test_while_a_cancelled_holder_ends_nothing_is_lent() -> None:
    story = cluster("1x2", policy("sjf", **OPTIONS), costs=ExecutorCosts(restart_s=0.0, stop_latency_s=400.0))
    story.job("holder", runs_s=9000).job("gang", gpus=2, runs_s=9500, at_s=1)
    for number in range(60):
        story.job(f"short {number}", runs_s=300, at_s=100.0 * number)
    story.until(1550).cancel("holder").until(1550)
    assert story.until(2000).record("gang").first_started_at_s == 1950.0


def test_a_job_that_would_be_slow_on_lent_gpus_waits_as_long_as_it_would_for_others() -> None:
    story = two_by_two((9000, 1500, 9000, 1500)).job("gang", gpus=8, runs_s=9500, at_s=1)
    chatty(story, "chatty", 1600).until(2599.9)
    assert story.record("chatty").first_started_at_s is None
    assert story.until(2700).record("chatty").first_started_at_s == 2600.0


@pytest.mark.parametrize("others", [LENT_PER_CLASS_MAX - 1, LENT_PER_CLASS_MAX])
def test_a_cycle_looks_at_so_many_jobs_of_a_class_for_lent_gpus(others: int) -> None:
    story = cluster("1x2", policy("fifo_backfill", **OPTIONS))
    story.job("holder", runs_s=5000).job("first", runs_s=1200).job("gang", gpus=2, runs_s=10, at_s=1)
    for number in range(others):
        story.job(f"too long {number}", runs_s=4500, at_s=2)
    story.job("short", runs_s=100, at_s=3).until(1200)
    assert bool(story.record("short").attempts) == (others < LENT_PER_CLASS_MAX)


def test_where_unsaved_jobs_alone_are_waited_for_gpus_are_reserved_where_these_end_first() -> None:
    """With preemption. Both servers are held by a job that cannot checkpoint and by one that may be stopped."""
    unsaved = {"checkpoint_period_s": None, "preemption": None}
    story = cluster("2x2", policy("asrpt", **OPTIONS), costs=ExecutorCosts(restart_s=0.0))
    story.job("keeps", runs_s=2000, **unsaved).job("long", runs_s=9000).until(0)
    story.job("keeps longer", runs_s=3000, **unsaved).job("shorter", runs_s=2500).until(0)
    story.job("gang", gpus=3, runs_s=50_000, at_s=1).until(1001).on("keeps", 0)
    assert story.record("gang").reservation == Placement(
        (ServerShare(ServerIndex(0), 2), ServerShare(ServerIndex(1), 1))
    )


@pytest.mark.parametrize(
    ("others", "named"), [(5, "jobs 1, 2, 3, 4, 5 and 6 have ended"), (6, "jobs 1, 2, 3, 4, 5 and 2 more have ended")]
)
def test_the_explanation_names_a_few_of_the_jobs_that_are_waited_for(others: int, named: str) -> None:
    story = cluster("1x8", policy("sjf", **OPTIONS))
    for number in range(others + 1):
        story.job(f"job {number}", runs_s=5000)
    story.job("gang", gpus=8, runs_s=6000, at_s=1).until(1001)
    told = story.engine.explain(story.ids["gang"])
    assert told.sentence.endswith(f"GPUs are set aside for it; it starts when {named}.")
    assert told.waiting_for == tuple(range(1, others + 2))
