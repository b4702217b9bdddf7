"""Jobs that need CPUs and memory beside GPUs: who starts, who is stopped for them, what is said."""

import pytest

from policies.model.cluster import Server
from policies.model.reasons import Reason
from policies.placement import pool
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, policy


def story(name: str, *servers: Server, **options: object) -> Story:
    return Story("", policy(name, **options), names=servers)


def test_a_job_waits_for_cpus_although_gpus_are_free() -> None:
    told = story("fifo_backfill", Server("a", 8, cpus=16))
    told.job("first", gpus=1, cpus=12, runs_s=100).job("second", gpus=1, cpus=8, runs_s=10).job(
        "plain", gpus=6, runs_s=10
    )
    told.until(0).starts("first", "plain").waits("second", Reason.RESOURCES)
    explanation = told.engine.explain(told.ids["second"])
    assert explanation.detail == "Enough GPUs are free, but not beside 8 CPUs."
    told.until(10).finishes("plain")
    told.until(100).finishes("first").starts("second")


def test_the_gang_is_spread_where_one_server_lacks_memory() -> None:
    told = story("fifo", Server("a", 8, memory_gib=32.0), Server("b", 8, memory_gib=64.0))
    told.job("gang", gpus=8, memory_gib=80.0, runs_s=10).until(0).starts("gang")
    shares = told.engine.world.jobs[told.ids["gang"]].placement.shares  # type: ignore[union-attr]
    assert [(share.server, share.gpus) for share in shares] == [(0, 2), (1, 6)]


def test_gpus_of_too_little_memory_are_passed_over() -> None:
    told = story("fifo", Server("a", 8, gpu_memory_gib=16.0), Server("b", 8, gpu_memory_gib=80.0), Server("c", 8))
    told.job("j", gpus=8, gpu_memory_gib=40.0, runs_s=10).job("k", gpus=8, gpu_memory_gib=40.0, runs_s=10)
    told.job("l", gpus=1, gpu_memory_gib=40.0, runs_s=10).until(0)
    placed = [told.engine.world.jobs[told.ids[name]].placement for name in ("j", "k")]
    assert [each.servers for each in placed if each is not None] == [(1,), (2,)]
    assert told.engine.world.jobs[told.ids["l"]].placement is None


@pytest.mark.parametrize("name", ["srtf", "srsf", "asrpt"])
def test_the_job_that_holds_the_cpus_is_stopped_and_no_other(name: str) -> None:
    """GPUs are free all the time; the worst job by rank holds no CPUs, so stopping it would bring nothing."""
    told = (
        story(name, Server("a", 8, cpus=16), guard_share=0) if name == "asrpt" else story(name, Server("a", 8, cpus=16))
    )
    told.job("idle", gpus=1, runs_s=9000).job("busy", gpus=1, cpus=16, runs_s=8000).until(0)
    told.job("short", gpus=1, cpus=8, runs_s=10, at_s=100)
    told.until(100)
    world = told.engine.world
    assert world.jobs[told.ids["idle"]].placement is not None and world.jobs[told.ids["idle"]].attempts == 1
    told.until(115)
    assert told.ids["short"] not in world.jobs or world.jobs[told.ids["short"]].placement is not None
    told.to_the_end()
    assert [event.job for event in told.log.events if event.reason is Reason.PREEMPTED].count(told.ids["busy"]) >= 1
    assert told.ids["idle"] not in {event.job for event in told.log.events if event.reason is Reason.PREEMPTED}


def test_cpus_that_are_being_vacated_for_a_job_are_kept_for_it() -> None:
    told = Story(
        "", policy("srtf"), names=[Server("a", 8, cpus=16)], costs=ExecutorCosts(checkpoint_s=50.0, restart_s=0.0)
    )
    told.job("busy", gpus=1, cpus=16, runs_s=8000).until(0)
    told.job("short", gpus=1, cpus=16, runs_s=100, at_s=100).job("other", gpus=1, cpus=1, runs_s=200, at_s=120)
    told.until(140)
    assert told.record("short").reservation is not None
    assert told.record("other").placement is None
    told.until(150).starts("short").waits("other", Reason.RESOURCES)
    told.until(250).finishes("short")
    told.to_the_end()


@pytest.mark.parametrize("name", ["fifo_backfill", "asrpt"])
def test_many_demands_make_no_view_of_the_pool_each_in_every_cycle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built, view = [], pool._DemandView
    monkeypatch.setattr(pool, "_DemandView", lambda made: (built.append(made), view(made))[1])
    told = story(name, Server("a", 8, memory_gib=512.0))
    for number in range(150):
        told.job(f"j{number}", gpus=1, memory_gib=20.0 + number / 8, runs_s=100.0 + number)
    told.until(400)
    ends = [told.record(f"j{number}").finished_at_s for number in range(150)]
    assert sum(at_s is not None for at_s in ends) >= 8
    assert len(built) < 3 * 150, "each job is looked at a few times, not in every cycle"
