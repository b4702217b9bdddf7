"""Filling servers: the shortest prefix that fills the cluster, largest gangs first; who watches; what the guard still does."""

import math
import random
from functools import cache
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.decision.server_filling import Contender, Queue, served
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.options import OptionError
from policies.registry import make_policy
from policies.state.gang_mix import GangMix
from policies.state.keys import JobKey
from service.engine.cycle import EngineSettings
from service.engine.record import JobRecord
from service.engine.world import Costs, World
from service.sim.executor import ExecutorCosts
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.model import Workload, WorkloadJob
from tests.scenarios.dsl import Story, cluster, policy, servers

FILLING = {"fill": "server_filling", "guard_share": 0}


def test_the_largest_gang_of_the_prefix_goes_first() -> None:
    # By rank: one (1 GPU, 10 s), eight (8 GPUs, 5 s = 40 GPU-s). One GPU does not fill eight; both together do.
    story = cluster("1x8", policy("asrpt", preemption="always", **FILLING))
    story.job("one", gpus=1, runs_s=10).job("eight", gpus=8, runs_s=5)
    story.until(0).starts("eight").waits("one", Reason.RESOURCES)
    story.until(5).finishes("eight").starts("one")


def before_a_gang(gangs: int) -> Story:
    """A job of a GPU and 20 s, and gangs of the whole cluster and 1,000 s, when the first job ends after 10 s."""
    story = cluster("1x8", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=0.0))
    story.job("first", gpus=8, runs_s=10).job("small", gpus=1, runs_s=20, at_s=1)
    for number in range(gangs):
        story.job(f"gang{number}", gpus=8, runs_s=1000, at_s=1)
    return story


def test_a_short_job_goes_before_a_gang_where_the_gpus_that_idle_cost_less_than_its_wait() -> None:
    """Seven of eight GPUs idle for 20 s: each waiting job ends 17.5 s later, and the gang 20 s. At this load that counts five
    times. The job would wait 1,000 s.
    """
    few = before_a_gang(gangs=9).until(1).starts("first")
    assert few.engine.explain(few.ids["small"]).jobs_ahead == 0
    few.until(10).starts("small").waits("gang0", Reason.RESOURCES).until(30).starts("gang0")
    # 5 x (20 + 17.5 x 11) = 1,062.5 s.
    many = before_a_gang(gangs=10).until(1).starts("first")
    assert many.engine.explain(many.ids["small"]).jobs_ahead == 1
    many.until(10).starts("gang0").waits("small", Reason.RESOURCES)


def a_gang(runs_s: float, restart_s: float = 0.0) -> Story:
    """A gang that takes the whole cluster. So far, more than 0.8 of what the cluster can do has arrived."""
    story = cluster("1x8", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=restart_s))
    return story.job("gang", gpus=8, runs_s=runs_s).until(0).starts("gang")


@pytest.mark.parametrize(("restart_s", "starts_at_s"), [(0.0, 155.0), (5.0, 192.5)])
def test_short_jobs_stop_a_gang_once_they_have_together_waited_as_long_as_that_costs(
    restart_s: float, starts_at_s: float
) -> None:
    """The gang would end 20 s later, and as six of eight GPUs idle for 20 s, each of two waiting jobs 15 s; all three another
    ``restart_s`` later. At this load the 50 or 65 s count five times.
    """
    story = a_gang(2000, restart_s).job("small1", gpus=1, runs_s=20, at_s=20).job("small2", gpus=1, runs_s=20, at_s=40)
    story.until(starts_at_s + 20.01).finishes("small1", "small2")
    for name in ("small1", "small2"):
        assert story.record(name).first_started_at_s == pytest.approx(starts_at_s, abs=0.01)
    assert story.record("gang").preemptions == 1
    story.until(2020.01 + restart_s).finishes("gang")


def test_a_gang_that_ends_sooner_than_its_stop_would_pay_goes_on() -> None:
    """It would pay after 5 x 37.5 s, when the gang has 182.5 s left."""
    story = a_gang(runs_s=390).job("small", gpus=1, runs_s=20, at_s=20)
    story.until(390).finishes("gang").starts("small")


def test_only_the_wait_for_the_gang_since_it_started_counts() -> None:
    """Released one by one, old jobs do not stop it again and again: 37.5 s count five times."""
    story = a_gang(runs_s=4000)
    for name in ("small1", "small2"):
        story.job(name, gpus=1, runs_s=20, at_s=20, hold=True)
    story.until(1000).release("small1").until(1000).preempts("gang").starts("small1")
    story.until(1020).finishes("small1").starts("gang")
    story.until(1100).release("small2").until(1100).until(1227.51).finishes("small2")
    assert story.record("small2").first_started_at_s == pytest.approx(1207.5, abs=0.01)


def test_a_short_job_takes_the_place_of_the_gang_whose_stop_leaves_fewer_gpus_idle() -> None:
    """Not that of the wider one, which stands behind it: 5 x (20 + 20 x 3 / 12) = 125 s."""
    story = cluster("3x4", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=0.0))
    story.job("wide", gpus=8, runs_s=10_000).job("narrow", gpus=4, runs_s=5_000).until(0).starts("wide", "narrow")
    story.job("small", gpus=1, runs_s=20, at_s=20).until(165.01).finishes("small")
    assert story.record("small").first_started_at_s == pytest.approx(145.0, abs=0.01)
    assert [story.record(name).preemptions for name in ("wide", "narrow")] == [0, 1]


def test_a_short_job_goes_before_a_gang_where_the_next_by_rank_would_not_pay() -> None:
    story = cluster("1x8", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=0.0))
    story.job("first", gpus=8, runs_s=10).until(0).starts("first")
    story.job("small", gpus=1, runs_s=20, at_s=1).job("long", gpus=1, runs_s=5_000, at_s=1)
    for name in ("gang", "gang2", "gang3"):
        story.job(name, gpus=8, runs_s=10_000, at_s=1)
    story.until(10).starts("small", "long").until(30).finishes("small").preempts("long").starts("gang")


@pytest.mark.parametrize(("waiting", "first"), [(100, ["a", "b"]), (150, ["wide1", "a"]), (170, ["wide1", "wide2"])])
def test_so_many_jobs_go_before_gangs_as_save_most(waiting: int, first: list[str]) -> None:
    """By ``a`` each waiting job ends 10 x 1/8 s later, by both 11 x 2/8 s; each saves 1,000 s, and each gang waits for them."""
    wanted = {"a": (3, 10.0), "b": (3, 11.0), "wide1": (4, 1000.0), "wide2": (4, 1000.0)}
    prefix = [
        Contender(JobKey(1, 0, 0, gpus * runs_s / 8, 0.0, JobId(number)), gpus, gpus * runs_s / 8, False, 0.0, math.inf)
        for number, (gpus, runs_s) in enumerate(wanted.values())
    ]
    chosen, _ = served(prefix, 8, Queue(waiting, 8, load=0.8, now_s=0.0))
    assert [list(wanted)[each.key.job] for each in chosen] == first


def test_no_gang_is_stopped_for_a_job_that_nobody_knows() -> None:
    """Its rank, what it has had so far, says nothing of how long it will run."""
    story = a_gang(runs_s=2000)
    story.job("unknown", gpus=1, runs_s=20, at_s=20, predicted=None)
    story.until(2000).finishes("gang").starts("unknown")


def test_by_rank_the_small_one_goes_first_and_the_large_one_waits() -> None:
    story = cluster("1x8", policy("asrpt", preemption="always", fill="first_fit", guard_share=0))
    story.job("one", gpus=1, runs_s=10).job("eight", gpus=8, runs_s=5)
    story.until(0).starts("one").waits("eight", Reason.RESOURCES)


def test_who_stands_better_is_stopped_only_if_those_who_wait_gain_more_than_it_loses() -> None:
    # The runner has 10 s left and stands first; 7 of 8 GPUs would idle so long for each waiting job. The gang runs 30 s.
    # One waits: 10 + 1 x 7/8 x 10 < 30. Three wait: 10 + 3 x 7/8 x 10 > 30.
    story = cluster("1x8", policy("asrpt", **FILLING))
    story.job("runner", gpus=1, runs_s=12).until(0).starts("runner")
    story.job("gang", gpus=8, runs_s=30, at_s=2).until(2).waits("gang", Reason.RESOURCES)
    for number in (2, 3):
        story.job(f"gang{number}", gpus=8, runs_s=100, at_s=2)
    story.until(2).preempts("runner").starts("gang")


@pytest.mark.parametrize(("restart_s", "stopped"), [(3.0, ["runner"]), (6.0, [])])
def test_a_restart_counts_where_a_job_is_stopped_to_fill_the_cluster(restart_s: float, stopped: list[str]) -> None:
    """10 + 3 x 7/8 x 10 = 36.25 s are gained; 30 + 3 + 3 x 3/8 = 34.1 s are lost, or 30 + 6 + 3 x 6/8 = 38.25 s."""
    story = cluster("1x8", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=restart_s))
    story.job("runner", gpus=1, runs_s=12).until(0).starts("runner").job("gang", gpus=8, runs_s=30, at_s=2)
    for number in (2, 3):
        story.job(f"gang{number}", gpus=8, runs_s=100, at_s=2)
    story.until(2).preempts(*stopped)


def test_gpus_that_other_waiting_jobs_would_take_do_not_idle() -> None:
    """Without these jobs the gang would stop the runner: 10 + 8 x 7/8 x 10 > 30."""
    story = cluster("1x8", policy("asrpt", **FILLING))
    narrow = [f"narrow{number}" for number in range(7)]
    story.job("runner", gpus=1, runs_s=12).until(0).starts("runner").job("gang", gpus=8, runs_s=30, at_s=2)
    for name in narrow:
        story.job(name, gpus=1, runs_s=1_000, at_s=2)
    story.until(2).starts(*narrow).preempts()


def test_the_wait_for_a_job_that_stands_behind_does_not_count() -> None:
    """The gang waits for the runner: 10 + 1 x 7/8 x 10 < 2 x 30. It may stop the long job as soon as that suffices."""
    story = cluster("1x8", policy("asrpt", **FILLING))
    story.job("runner", gpus=1, runs_s=12).job("long", gpus=1, runs_s=1_000).until(0).starts("runner", "long")
    story.job("gang", gpus=8, runs_s=30, at_s=2).until(2).preempts()
    story.until(12).finishes("runner").preempts("long").starts("gang")


def test_all_restarts_that_a_gang_causes_count() -> None:
    """One of 7.5 virtual seconds would leave the gang before the narrow jobs: 90 < 0.8 x 125 - 7.5. Eight do not."""
    story = cluster("1x8", policy("asrpt", **FILLING), costs=ExecutorCosts(restart_s=60.0))
    narrow = [f"narrow{number}" for number in range(8)]
    for name in narrow:
        story.job(name, gpus=1, runs_s=1_010)
    story.until(0).starts(*narrow).job("gang", gpus=8, runs_s=90, at_s=10)
    story.until(1_010).finishes(*narrow).starts("gang")


def test_a_gang_that_is_no_power_of_two_leaves_a_remainder_to_the_next_ones() -> None:
    story = cluster("1x8", policy("asrpt", preemption="always", **FILLING))
    story.job("three", gpus=3, runs_s=10).job("six", gpus=6, runs_s=20).job("two", gpus=2, runs_s=400)
    story.until(0).starts("six", "two").waits("three", Reason.RESOURCES)


def test_larger_priorities_fill_first() -> None:
    story = cluster("1x8", policy("asrpt", preemption="always", **FILLING))
    story.job("one", gpus=1, runs_s=10, priority=1).job("eight", gpus=8, runs_s=5)
    story.until(0).starts("one").waits("eight", Reason.RESOURCES)


@pytest.mark.parametrize("name", ["asrpt", "promise"])
def test_without_preemption_servers_cannot_be_filled(name: str) -> None:
    with pytest.raises(OptionError, match="'server_filling' is not possible with preemption=never"):
        make_policy(name, {"preemption": "never", "fill": "server_filling"})
    assert make_policy(name, {"preemption": "never", "fill": "auto"}).name == name


def arrival(number: int, gpus: int, seconds: float | None) -> JobRecord:
    record = JobRecord(JobId(number), JobSpec("j", "u", gpus), 0.0)
    if seconds is not None:
        record.estimate = Estimate((seconds,), Unit.SERVICE_S, "test")
    return record


def mix_of(*arrivals: tuple[int, float | None]) -> GangMix:
    world, mix = World(Cluster("c", servers("1x8")), Costs()), GangMix()
    mix.count(world, [arrival(number, *each) for number, each in enumerate(arrivals, start=1)])
    return mix


def test_the_share_of_work_in_gangs_of_half_the_cluster() -> None:
    assert mix_of((4, 10.0), (1, 40.0)).share == pytest.approx(1 / 2, rel=0.01)
    assert mix_of((3, 10.0), (2, 40.0)).share == 0.0
    # Nobody knows the second job: it counts as long as the first.
    assert mix_of((1, 60.0), (8, None)).share == pytest.approx(8 / 9, rel=0.01)


def test_the_load_is_the_work_that_arrives_over_what_the_cluster_does_meanwhile() -> None:
    """40 GPU-seconds each ten seconds, for eight GPUs."""
    world, mix = World(Cluster("c", servers("1x8")), Costs()), GangMix()
    assert mix.load(8) == 1.0
    for number in range(1, 1000):
        record = arrival(number, 2, 20.0)
        record.submitted_at_s = 10.0 * number
        mix.count(world, [record])
    assert mix.load(8) == pytest.approx(0.5, rel=0.01)


def test_it_takes_a_larger_share_to_begin_than_to_go_on() -> None:
    world, mix, number = World(Cluster("c", servers("1x8")), Costs()), GangMix(), 0
    seen: list[tuple[bool, float]] = []
    for large_in_ten in (2, 4, 2, 0):
        for step in range(1000):
            number += 1
            gpus = 8 if step % 10 >= 10 - large_in_ten else 1
            mix.count(world, [arrival(number, gpus, 80.0 / gpus)])
        seen.append((mix.filling, round(mix.share, 1)))
    assert seen == [(False, 0.2), (True, 0.4), (True, 0.2), (False, 0.0)]


def test_a_job_counts_once_and_the_dump_keeps_the_count() -> None:
    world, mix = World(Cluster("c", servers("1x8")), Costs()), GangMix()
    jobs = [arrival(1, 8, 10.0), arrival(2, 1, 10.0)]
    mix.count(world, list(reversed(jobs)))
    before = mix.dump()
    mix.count(world, jobs)
    assert mix.dump() == before
    assert GangMix(**before) == mix


@pytest.mark.parametrize("name", ["asrpt", "promise"])
def test_a_gang_that_waited_for_another_job_counts_when_it_may_start(name: str) -> None:
    story = cluster("4x4", policy(name, fill="auto"), settings=EngineSettings(dump_every_s=0.0))
    for number in range(40):
        at_s = number * 20.0
        story.job(f"prepares {number}", runs_s=1, at_s=at_s).job(f"small {number}", runs_s=10, at_s=at_s)
        story.job(f"trains {number}", gpus=16, runs_s=10, at_s=at_s, after=[f"prepares {number}"])
    story.until(800)
    assert story.engine._state.mix.filling
    before = story.engine._state.mix.dump()
    assert story.restart().engine._state.mix.dump() == before


def multiserver(shape: str, load: float, jobs: int, seed: int, unit_s: float) -> tuple[Workload, Cluster]:
    """Gangs of 1/8, 1/4, 1/2 and all of the cluster, Poisson arrivals, each class with equal exponential work.

    The case of the literature: a gang of n servers runs for 1/n on average, so that a job is one server-second.
    """
    dice = random.Random(seed)
    count, gpus = (int(number) for number in shape.split("x"))
    total, at_s, rows = count * gpus, 0.0, []
    for number in range(jobs):
        need = dice.choice((1, 2, 4, 8))
        rows.append(WorkloadJob(f"j{number}", at_s, need * total // 8, dice.expovariate(need) * unit_s))
        at_s += dice.expovariate(8 * load) * unit_s
    return Workload("multiserver", tuple(rows)), Cluster("c", tuple(Server(f"s{n}", gpus) for n in range(count)))


@cache
def mean_response(
    shape: str, load: float, fill: str, *, jobs: int = 4000, unit_s: float = 1.0, restart_s: float = 0.0
) -> float:
    workload, machines = multiserver(shape, load, jobs, 1, unit_s)
    options = SimulationOptions(restart_s=restart_s)
    return run(workload, machines, make_policy("asrpt", {"fill": fill}), "oracle", options).result.mean_jct_s / unit_s


@pytest.mark.compiled
@pytest.mark.slow
def test_the_published_mean_response_time() -> None:
    """8 servers at load 0.6: 0.623 in the literature, and 1.157 for first fit, whose queue grows without bound from 0.7."""
    filled = mean_response("8x1", 0.6, "server_filling")
    assert filled == pytest.approx(0.623, rel=0.05)
    assert mean_response("8x1", 0.6, "first_fit") > 1.4 * filled


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("load", [0.6, 0.8])
@pytest.mark.parametrize("shape", ["8x1", "1x8", "8x8"])
def test_auto_is_as_good_where_gangs_are_as_large_as_the_cluster(shape: str, load: float) -> None:
    filled = mean_response(shape, load, "server_filling")
    assert mean_response(shape, load, "auto") <= 1.05 * filled
    assert filled < {0.6: 0.70, 0.8: 0.95}[load], "the queue does not grow"


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("load", [0.6, 0.85])
def test_jobs_of_hours_with_a_guard_and_restarts_do_not_pile_up_either(load: float) -> None:
    """A gang of the whole cluster runs 2 h, one of an eighth 16 h: many wait longer than ``guard_wait_s``."""
    assert mean_response("8x8", load, "auto", unit_s=57_600.0, restart_s=60.0) < {0.6: 0.75, 0.85: 1.3}[load]


@cache
def beside_gangs(fill: str) -> tuple[float, float]:
    """Mean JCT of gangs of an hour that need 60% of the cluster, and of a job of one GPU and two minutes each minute."""
    dice, rows, at_s = random.Random(1), [], 0.0
    for number in range(40):
        at_s += dice.expovariate(0.6 / 3_600)
        rows.append(WorkloadJob(f"gang{number}", at_s, 8, dice.expovariate(1 / 3_600) + 1.0))
    small_at_s, until_s = 0.0, at_s
    while (small_at_s := small_at_s + dice.expovariate(1 / 60)) < until_s:
        rows.append(WorkloadJob(f"small{len(rows)}", small_at_s, 1, dice.expovariate(1 / 120) + 1.0))
    workload = Workload("w", tuple(sorted(rows, key=lambda job: job.submit_time_s)))
    machines, chosen = Cluster("c", servers("1x8")), make_policy("asrpt", {"fill": fill})
    ended = run(workload, machines, chosen, "oracle", SimulationOptions(restart_s=5.0)).outcomes
    gangs, small = (
        [job.finish_time_s - job.submit_time_s for job in ended if job.job_id.startswith(kind)]
        for kind in ("gang", "small")
    )
    return fmean(gangs), fmean(small)


@pytest.mark.slow
def test_a_stream_of_short_jobs_goes_before_gangs_only_as_far_as_both_gain() -> None:
    """First fit lets each of them pass, so that gangs wait for hours, and then the short ones for overdue gangs."""
    filled, first_fit = beside_gangs("auto"), beside_gangs("first_fit")
    assert filled[0] < 0.4 * first_fit[0]
    assert filled[1] < 0.5 * first_fit[1]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["guided", "always"]), st.sampled_from(["1x8", "2x4", "3x2", "2x5"]))
def test_everybody_ends_whatever_the_gangs(seed: int, preemption: str, shape: str) -> None:
    dice, machines = random.Random(seed), servers(shape)
    total = sum(server.gpus for server in machines)
    rows = tuple(
        WorkloadJob(f"j{n}", 10.0 * (n // 2), dice.randint(1, total), float(dice.randint(1, 200))) for n in range(25)
    )
    chosen = make_policy("asrpt", {"fill": "server_filling", "preemption": preemption})
    result = run(Workload("w", rows), Cluster("c", machines), chosen, dice.choice(("oracle", "none", "noisy:1"))).result
    assert result.finished == len(rows)


def passed_over(**options: object) -> Story:
    """One job of a GPU, and gangs of the whole cluster that follow each other for 6,000 s."""
    story = cluster("1x8", policy("asrpt", fill="server_filling", **options), costs=ExecutorCosts(restart_s=0.0))
    story.job("first", gpus=8, runs_s=100).job("small", gpus=1, runs_s=50, at_s=10)
    for number in range(60):
        story.job(f"gang{number}", gpus=8, runs_s=100, at_s=20.0 + 97 * number)
    return story


def test_gangs_that_fill_the_cluster_pass_a_small_job_only_until_it_is_overdue() -> None:
    story = passed_over(guard_wait_s=1000, guard_share=0.05).until(1009)
    assert story.state("small") is JobState.QUEUED
    story.until(1010).starts("small")
    assert story.record("small").preemptions == 0
    story.until(1060).finishes("small").to_the_end()


def test_no_gang_displaces_a_guarded_job_to_fill_the_cluster() -> None:
    """The oldest job fits the guarded share. Without a guard the gangs that wait would gain more than it loses."""
    for share, preempted in ((0.2, []), (0.0, ["old"])):
        story = cluster("1x8", policy("asrpt", fill="server_filling", guard_share=share))
        story.job("old", gpus=1, runs_s=12).until(0).starts("old")
        for number in range(3):
            story.job(f"gang{number}", gpus=8, runs_s=30, at_s=2)
        story.until(2).preempts(*preempted)


def test_gpus_are_reserved_for_an_overdue_gang_while_servers_are_filled() -> None:
    """Jobs that cannot checkpoint follow each other on both servers. Without a reservation the gang would never start."""
    told = cluster("2x2", policy("asrpt", fill="server_filling", guard_wait_s=1000), costs=ExecutorCosts(restart_s=0.0))
    for number in range(100):
        told.job(f"n{number}", runs_s=200, at_s=50.0 * number, checkpoint_period_s=None, preemption=None)
    told.job("wide", gpus=4, runs_s=100, at_s=10).until(1200)
    assert told.record("wide").first_started_at_s == 1200.0, "when the last of those that ran at 1,010 s has ended"


def crowd_of_gangs(dice: random.Random, total: int) -> Workload:
    """Mostly gangs of the whole cluster or half of it that nearly keep it busy, and a few small jobs."""
    at_s, rows = 0.0, []
    for number in range(150):
        small = dice.random() < 0.1
        gpus = dice.choice((1, 1, 2)) if small else dice.choice((total // 2, total, total))
        runs_s = dice.uniform(5.0, 100.0) if small else dice.uniform(50.0, 150.0)
        rows.append(WorkloadJob(f"j{number}", at_s, gpus, runs_s))
        at_s += dice.expovariate(total / (gpus * runs_s))
    return Workload("w", tuple(rows))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["1x8", "2x4", "3x4"]),
    st.sampled_from(["guided", "always"]),
    st.sampled_from([0.05, 0.25]),
)
def test_no_job_waits_longer_than_the_guard_allows(seed: int, shape: str, preemption: str, share: float) -> None:
    """``guard_wait_s``, as long again for the turn before, the longest attempt, and the turns of the older jobs that have not
    ended by then, at the guarded share.

    Restarts are free here: where they cost time, a job that has just restarted is protected from guarded jobs as well.
    """
    dice, machines = random.Random(seed), servers(shape)
    workload, wait_s = crowd_of_gangs(dice, sum(server.gpus for server in machines)), dice.choice((300.0, 1000.0))
    options = {"fill": "server_filling", "preemption": preemption, "guard_share": share, "guard_wait_s": wait_s}
    predictor, costs = dice.choice(("oracle", "noisy:0.5", "none")), SimulationOptions(restart_s=0.0)
    ended = run(workload, Cluster("c", machines), policy("asrpt", **options), predictor, costs).outcomes
    assert len(ended) == len(workload.jobs)
    for job in ended:
        overdue_at_s = job.submit_time_s + wait_s
        older = [each for each in ended if each.submit_time_s < job.submit_time_s and each.finish_time_s > overdue_at_s]
        turns_s = wait_s + sum(each.duration_s for each in older) / share
        assert job.start_time_s <= overdue_at_s + max(each.duration_s for each in ended) + turns_s, job


def test_a_narrow_job_is_told_that_wide_gangs_go_before_it() -> None:
    story = cluster("1x8", policy("asrpt", fill="server_filling"))
    story.job("first", gpus=8, runs_s=100).job("small", gpus=1, runs_s=50, at_s=1)
    for number in range(4):
        story.job(f"gang{number}", gpus=8, runs_s=100, at_s=2)
    story.until(1)
    told = story.engine.explain(story.ids["small"])
    assert (told.jobs_ahead, told.detail) == (0, ""), "it would be next"
    for at_s, ahead in ((2, 4), (100, 3), (200, 2), (300, 1)):
        told = story.until(at_s).engine.explain(story.ids["small"])
        assert told.reason is Reason.RESOURCES
        assert told.jobs_ahead == ahead
        assert told.sentence.endswith(
            "precedes it. " * (ahead == 1)
            + "precede it. " * (ahead > 1)
            + "Wide gangs that fill the servers go before it, whatever their ranks; the job starts when they leave enough GPUs "
            "free, or comes first when it is overdue."
        )
    assert story.until(400).engine.explain(story.ids["small"]).jobs_ahead == 0
    story.until(500).finishes("gang3").starts("small")


def test_the_guard_is_not_mentioned_where_there_is_none() -> None:
    story = cluster("1x8", policy("asrpt", **FILLING))
    story.job("first", gpus=8, runs_s=100).job("small", gpus=1, runs_s=50, at_s=1).job(
        "gang", gpus=8, runs_s=100, at_s=1
    )
    told = story.until(1).engine.explain(story.ids["small"])
    assert told.detail.endswith("the job starts when they leave enough GPUs free.")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_so_many_jobs_go_before_one_as_are_told(seed: int) -> None:
    """Jobs of equal run times, so that whole clusters of them start and end together; ranks are drawn. None is so much shorter by
    its prediction than a gang that it would go first and leave GPUs idle.
    """
    dice = random.Random(seed)
    story = cluster("1x8", policy("asrpt", fill="server_filling", guard_share=0), costs=ExecutorCosts(restart_s=0.0))
    story.job("first", gpus=8, runs_s=100, checkpoint_period_s=None, preemption=None)
    for number in range(dice.randint(2, 20)):
        gpus = dice.choice((1, 1, 2, 4, 8))
        story.job(f"j{number}", gpus=gpus, runs_s=100, at_s=1, predicted=dice.uniform(1000.0, 1100.0) / gpus)
    story.until(1)
    ahead = {name: story.engine.explain(job).jobs_ahead for name, job in story.ids.items() if name != "first"}
    story.to_the_end()
    for name, told in ahead.items():
        job, others = story.record(name), [story.record(other) for other in ahead if other != name]
        assert told is not None
        earlier = [each for each in others if started_s(each) < started_s(job)]
        beside = [each for each in others if started_s(each) == started_s(job)]
        wider = [each for each in beside if each.spec.gpus > job.spec.gpus]
        assert len(earlier) + len(wider) <= told <= len(earlier) + len(beside), name


def started_s(record: JobRecord) -> float:
    assert record.first_started_at_s is not None
    return record.first_started_at_s
