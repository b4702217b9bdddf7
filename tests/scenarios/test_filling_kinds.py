"""Filling servers where not every job can take every GPU: GPU types, CPUs."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.state.gang_mix import GangMix
from service.engine.world import Costs, World
from service.sim.executor import ExecutorCosts
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.model import Workload, WorkloadJob
from tests.scenarios.dsl import Story, cluster, policy, servers
from tests.scenarios.test_filling import FILLING, arrival, started_s


def two_types() -> Story:
    story = cluster("1x4:A100 1x4:V100", policy("asrpt", **FILLING))
    return story.job("long", gpus=4, runs_s=100_000, gpu_type="A100").until(0).starts("long")


@pytest.mark.parametrize("priority", [0, 5])
def test_gpus_that_a_job_does_not_take_are_no_room_for_it(priority: int) -> None:
    """Four V100s are free. A job of larger priority is not shorter."""
    story = two_types().until(100)
    story.job("next", gpus=4, runs_s=10 if priority == 0 else 200_000, gpu_type="A100", priority=priority)
    story.until(100).preempts("long")


def test_the_largest_gang_of_each_type_goes_first() -> None:
    """The last four jobs fill both servers, so the small ones wait; of the A100s three would idle beside a small one."""
    story = cluster("1x4:A100 1x4:V100", policy("asrpt", preemption="always", **FILLING))
    for name in ("A100", "V100"):
        story.job(f"first {name}", gpus=4, runs_s=10, gpu_type=name)
    story.until(0).starts("first A100", "first V100")
    for name in ("A100", "V100"):
        story.job(f"one {name}", gpus=1, runs_s=60, gpu_type=name, at_s=1)
        story.job(f"four {name}", gpus=4, runs_s=30, gpu_type=name, at_s=1)
    story.until(10).finishes("first A100", "first V100").starts("four A100", "four V100")


def test_a_job_of_any_type_goes_where_gpus_are_free() -> None:
    story = two_types().until(100)
    story.job("any", gpus=4, runs_s=10).until(100).starts("any").on("any", 1)


def test_jobs_of_any_type_fill_all_types() -> None:
    story = two_types().until(100)
    story.job("one", gpus=4, runs_s=10).job("two", gpus=4, runs_s=20).until(100)
    story.preempts("long").starts("one", "two").on("one", 1).on("two", 0)


def test_a_type_that_is_added_is_filled_as_well() -> None:
    story = two_types().add_server(4, "T4").until(10)
    story.job("slow", gpus=4, runs_s=5_000, gpu_type="T4").until(10).starts("slow").on("slow", 2)
    story.job("fast", gpus=4, runs_s=10, gpu_type="T4").until(200).preempts("slow").finishes("fast")


def test_the_wait_for_a_gang_is_compared_with_the_gpus_of_its_type_that_idle() -> None:
    """As in ``test_a_short_job_goes_before_a_gang_where_the_gpus_that_idle_cost_less_than_its_wait``; A100s do not matter."""
    for gangs, first in ((9, "small"), (10, "gang0")):
        story = cluster("1x8:V100 1x8:A100", policy("asrpt", **FILLING))
        story.job("first", gpus=8, runs_s=10, gpu_type="V100").job("small", gpus=1, runs_s=20, at_s=1, gpu_type="V100")
        for number in range(gangs):
            story.job(f"gang{number}", gpus=8, runs_s=1000, at_s=1, gpu_type="V100")
        assert story.until(1).engine.explain(story.ids["small"]).jobs_ahead == gangs - 9
        story.until(10).starts(first)


def test_the_wait_for_a_gang_of_a_type_is_compared_with_what_its_stop_costs_there() -> None:
    """As in ``test_short_jobs_stop_a_gang_once_they_have_together_waited_as_long_as_that_costs``."""
    story = cluster("1x8:V100 1x8:A100", policy("asrpt", **FILLING))
    story.job("gang", gpus=8, runs_s=2000, gpu_type="V100").until(0).starts("gang")
    for number, at_s in ((1, 20), (2, 40)):
        story.job(f"small{number}", gpus=1, runs_s=20, at_s=at_s, gpu_type="V100")
    story.until(175.01).finishes("small1", "small2")
    assert story.record("small1").first_started_at_s == pytest.approx(155.0, abs=0.01)


@pytest.mark.parametrize(("restart_s", "stopped"), [(4.0, ["runner"]), (5.0, [])])
def test_a_restart_delays_the_jobs_that_wait_for_the_type(restart_s: float, stopped: list[str]) -> None:
    """10 + 3 x 7/8 x 10 = 36.25 s are gained; 30 + 4 + 3 x 4/8 = 35.5 s are lost, or 30 + 5 + 3 x 5/8 = 36.9 s."""
    story = cluster("1x8:V100 1x8:A100", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=restart_s))
    story.job("runner", gpus=1, runs_s=12, gpu_type="V100").until(0).starts("runner")
    story.job("gang", gpus=8, runs_s=30, at_s=2, gpu_type="V100")
    for number in (2, 3):
        story.job(f"gang{number}", gpus=8, runs_s=100, at_s=2, gpu_type="V100")
    story.until(2).preempts(*stopped)


def test_a_job_that_finds_no_gpus_it_can_take_displaces_others_as_without_filling() -> None:
    """The GPUs of both servers would be enough, the CPUs of the second are not."""
    machines = [Server("a", 4, cpus=16), Server("b", 4, cpus=2)]
    story = cluster("", policy("asrpt", **FILLING), names=machines)
    story.job("long", gpus=4, cpus=16, runs_s=100_000).until(0).starts("long").on("long", 0)
    story.job("short", gpus=2, cpus=8, runs_s=10, at_s=100).until(100).preempts("long")


def test_two_jobs_that_find_no_gpus_displace_one_job_each() -> None:
    machines = [Server("a", 4, cpus=16), Server("b", 4, cpus=2)]
    story = cluster("", policy("asrpt", **FILLING), names=machines)
    for name in ("long", "longer"):
        story.job(name, gpus=2, cpus=8, runs_s=100_000 if name == "long" else 200_000)
    story.until(0).starts("long", "longer")
    for name in ("short", "other"):
        story.job(name, gpus=2, cpus=8, runs_s=10, at_s=100)
    story.until(100).preempts("longer", "long").starts("short", "other").to_the_end()


def test_half_of_the_gpus_of_its_type_make_a_gang_large() -> None:
    world, mix = World(Cluster("c", servers("1x4:A100 3x8:V100")), Costs()), GangMix()
    jobs = [arrival(number, 2, 10.0) for number in (1, 2, 3)]
    for job, gpu_type in zip(jobs, ("A100", "V100", None), strict=True):
        job.spec = job.spec.__class__("job", "ada", 2, gpu_type=gpu_type)
    mix.count(world, jobs)
    assert mix.share == pytest.approx(1 / 3, rel=0.02), "two of the four A100s"


def mean_jct_s(shape: str, jobs: list[WorkloadJob]) -> float:
    workload, machines = Workload("w", tuple(jobs)), Cluster("c", servers(shape))
    return run(
        workload, machines, policy("asrpt", **FILLING), "oracle", SimulationOptions(restart_s=5.0)
    ).result.mean_jct_s


def test_jobs_of_one_type_run_as_if_the_others_were_not_there() -> None:
    """All jobs name one of two types: as two clusters, but for the load, which is that of both."""
    together_s = apart_s = 0.0
    for seed in range(10):
        dice, jobs = random.Random(seed), []
        for number in range(200):
            gpus, gpu_type = dice.choice((1, 2, 4, 8)), dice.choice(("A100", "V100"))
            runs_s = dice.expovariate(gpus / 720.0) + 1.0
            jobs.append(WorkloadJob(f"j{number}", 50.0 * number, gpus, runs_s, gpu_type=gpu_type))
        together_s += mean_jct_s("1x8:A100 1x8:V100", jobs) * len(jobs)
        for gpu_type in ("A100", "V100"):
            of_type = [job for job in jobs if job.gpu_type == gpu_type]
            apart_s += mean_jct_s(f"1x8:{gpu_type}", of_type) * len(of_type)
    assert together_s == pytest.approx(apart_s, rel=0.03)


def test_of_the_jobs_before_one_those_count_that_take_its_type() -> None:
    """Four gangs of V100s wait as well. Of the A100s two gangs go before the small job."""
    story = cluster("1x4:A100 1x4:V100", policy("asrpt", **FILLING))
    for name in ("A100", "V100"):
        story.job(f"first {name}", gpus=4, runs_s=100, gpu_type=name)
    story.job("small", gpus=1, runs_s=90, gpu_type="A100", at_s=1)
    for name, gangs in (("A100", 2), ("V100", 4)):
        for number in range(gangs):
            story.job(f"{name} {number}", gpus=4, runs_s=100, gpu_type=name, at_s=2)
    story.until(2)
    assert story.engine.explain(story.ids["small"]).jobs_ahead == 2
    story.to_the_end()
    assert started_s(story.record("small")) == 300.0


def some_story(seed: int) -> Story:
    """Servers of two types, some of which state CPUs, and jobs that name a type, CPUs or a priority, or cannot checkpoint."""
    dice = random.Random(seed)
    machines = [
        Server(f"s{index}", dice.choice((2, 4, 8)), dice.choice(("A100", "V100")), cpus=dice.choice((None, 8, 32)))
        for index in range(dice.randint(1, 5))
    ]
    guard = {"guard_share": dice.choice((0, 0.05, 0.3)), "guard_wait_s": dice.choice((300, 3000))}
    filling = policy("asrpt", fill="server_filling", preemption=dice.choice(("guided", "always")), **guard)
    costs = ExecutorCosts(restart_s=dice.choice((0.0, 5.0)), checkpoint_s=dice.choice((0.0, 3.0)))
    story = cluster("", filling, names=machines, costs=costs)
    for number in range(60):
        more: dict[str, object] = {
            "gpu_type": dice.choice((None, "A100", "V100")),
            "cpus": dice.choice((None, 1, 8, 16)),
        }
        more["priority"] = dice.choice((0, 0, 0, 1, 2))
        if dice.random() < 0.15:
            more |= {"checkpoint_period_s": None, "preemption": None}
        runs_s, at_s = dice.choice((10, 60, 300, 3000)) * dice.random() + 1, round(dice.uniform(0.0, 2000.0), 1)
        story.job(f"j{number}", gpus=dice.choice((1, 1, 2, 4, 8)), runs_s=runs_s, at_s=at_s, **more)
    return story


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_no_decision_breaks_a_rule(seed: int) -> None:
    """The story checks each decision: GPUs are given once, and only running jobs are stopped."""
    some_story(seed).until(4000)
