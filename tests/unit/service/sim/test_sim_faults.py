"""Faults by hand and at random: every job ends or is listed, and every second of every GPU is accounted for."""

import statistics
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, ServerIndex
from policies.model.reasons import Reason
from policies.registry import BUILT_IN, make_policy
from service.engine.ports import AttemptStatus
from service.sim.clock import Priority
from service.sim.experiment import SimulationOptions, Simulator, run
from service.sim.faults import FRUITLESS_ATTEMPTS_MAX, FaultPlan, Window, up_s
from service.sim.jobs import prepare
from service.sim.results import Simulation, Unfinished
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("two", (Server("a", 4), Server("b", 4)))
A, B = ServerIndex(0), ServerIndex(1)
Rows = list[tuple[int, int, int]]
"""(submission, GPUs, duration) of each job."""


def table(rows: Rows) -> Workload:
    return Workload("w", tuple(WorkloadJob(f"j{n}", float(at), gpus, float(s)) for n, (at, gpus, s) in enumerate(rows)))


def simulate(rows: Rows, plan: FaultPlan, policy: str = "fifo_backfill", **options: float) -> Simulation:
    given = SimulationOptions(restart_s=0.0, checkpoint_period_s=10.0, faults=plan)
    return run(table(rows), CLUSTER, make_policy(policy), "oracle", replace(given, **options))  # type: ignore[arg-type]


# By hand.


def test_a_drained_server_finishes_its_jobs_and_starts_none() -> None:
    # j0 and j1 take a and b at 0; a is drained from 5 to 100: j0 runs on until 20, j2 starts on a at 100, j3 on b at 30.
    rows = [(0, 4, 20), (0, 4, 30), (6, 4, 10), (7, 4, 90)]
    outcomes = simulate(rows, FaultPlan(drains=(Window(A, 5.0, 100.0),)), "fifo").outcomes
    assert [(o.start_time_s, o.finish_time_s) for o in outcomes] == [(0, 20), (0, 30), (30, 40), (40, 130)]
    for_good = simulate(rows[:3], FaultPlan(drains=(Window(A, 0.0), Window(A, 5.0, 9.0)))).outcomes
    assert [o.start_time_s for o in for_good] == [0, 20, 50]
    assert {o.placement.servers for o in for_good} == {(B,)}


def test_a_window_before_the_first_submission_is_ignored() -> None:
    simulation = simulate([(50, 8, 10)], FaultPlan(drains=(Window(A, 1.0, 50.0),), outages=(Window(B, 0.0, 60.0),)))
    assert [(o.start_time_s, o.finish_time_s) for o in simulation.outcomes] == [(60, 70)]


def test_a_job_that_ends_at_the_instant_of_its_start_ends_once() -> None:
    """It is too short for the floating-point number of its time; the other one still has to end."""
    jobs = (WorkloadJob("short", 1e11, 1, 1e-6), WorkloadJob("long", 1e11, 1, 10.0))
    options = SimulationOptions(faults=FaultPlan(drains=(Window(B, 1.0),)))
    simulation = run(Workload("w", jobs), CLUSTER, make_policy("fifo"), "oracle", options)
    assert [o.jct_s for o in simulation.outcomes] == [0.0, 10.0]


def test_an_outage_loses_work_after_the_checkpoint_and_lasts_until_its_last_cause_ends() -> None:
    # The gang keeps 20 of 27 s; b is back at 50, not at 40, and the last 80 s follow.
    plan = FaultPlan(outages=(Window(B, 27.0, 40.0), Window(B, 30.0, 50.0)))
    simulation = simulate([(0, 8, 100)], plan)
    assert [(o.finish_time_s, o.wasted_s, o.preemptions) for o in simulation.outcomes] == [(130.0, 7.0, 0)]
    assert simulation.faults is not None
    assert simulation.faults.to_dict() == {
        "server_failures": 1,
        "attempts_lost": 1,
        "crashes": 0,
        "jobs_given_up": 0,
        "lost_gpu_s": 56.0,
    }
    assert simulation.result.wasted_gpu_s == 56.0
    # Servers that are down count: 8 GPUs for 130 s.
    assert simulation.result.utilization_ratio == pytest.approx(800 / (8 * 130))


def test_a_launch_on_a_server_that_fails_is_repeated_on_another() -> None:
    simulation = simulate([(0, 4, 10)], FaultPlan(outages=(Window(A, 2.0, 90.0),)), launch_latency_s=3.0)
    (job,) = simulation.outcomes
    assert (job.start_time_s, job.finish_time_s, job.placement.servers) == (5.0, 15.0, (B,))


def test_crashes_are_retried_until_the_job_is_done() -> None:
    plan = FaultPlan(crash_mtbf_s=25.0)
    simulation = simulate([(0, 4, 200), (0, 1, 3)], plan)
    assert simulation.faults is not None
    assert simulation.faults.crashes > 2  # the default of max_retries would have ended it
    assert simulation.result.finished == 2
    assert simulation.result.wasted_gpu_s == pytest.approx(simulation.faults.lost_gpu_s)
    again = simulate([(0, 4, 200), (0, 1, 3)], plan)
    assert (again.outcomes, again.faults) == (simulation.outcomes, simulation.faults)
    assert simulate([(0, 4, 200)], plan, seed=1).outcomes[0].finish_time_s != simulation.outcomes[0].finish_time_s


# What the faults depend on.


@pytest.mark.parametrize(("shape", "variation"), [(1.0, 1.0), (0.7, 1.462), (2.0, 0.523)])
def test_times_to_failure_have_the_configured_mean_and_shape(shape: float, variation: float) -> None:
    times_s = [up_s(FaultPlan(mtbf_s=1000.0, shape=shape), 1, f"s{n}", k) for n in range(100) for k in range(1, 101)]
    mean_s = statistics.fmean(times_s)
    assert mean_s == pytest.approx(1000.0, rel=0.05)
    assert statistics.pstdev(times_s) / mean_s == pytest.approx(variation, rel=0.05)


class Noted(Simulator):
    """Notes when which server fails and is back."""

    def noted(self) -> list[tuple[float, str, str]]:
        told: list[tuple[float, str, str]] = []
        for kind in ("fail_server", "repair_server"):
            original = getattr(self.executor, kind)

            def spy(server: ServerIndex, *, kind: str = kind, original: partial[None] = original) -> None:
                told.append((self.clock.now_s(), kind, self.engine.world.cluster.servers[server].name))
                original(server)

            setattr(self.executor, kind, spy)
        self.run()
        return told


def failures(policy: str, cluster: Cluster, seed: int = 3) -> list[tuple[float, str, str]]:
    options = SimulationOptions(seed=seed, faults=FaultPlan(mtbf_s=3000.0, mttr_s=500.0, shape=0.8))
    jobs = prepare(generate(5, 40, gpus=8, load=1.5), cluster, skip_invalid=True).jobs
    return Noted(jobs, cluster, make_policy(policy), "oracle", options).noted()


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_all_policies_get_the_same_failures(policy: str) -> None:
    theirs, ours = failures("fifo_backfill", CLUSTER), failures(policy, CLUSTER)
    common = min(len(theirs), len(ours))
    assert common > 20
    assert theirs[:common] == ours[:common]


def test_failures_of_a_server_do_not_depend_on_other_servers() -> None:
    larger = Cluster("three", (Server("c", 4), *CLUSTER.servers))
    of_a, of_a_among_more = ([each for each in failures("sjf", c) if each[2] == "a"] for c in (CLUSTER, larger))
    common = min(len(of_a), len(of_a_among_more))
    assert common > 5
    assert of_a[:common] == of_a_among_more[:common]
    assert failures("sjf", CLUSTER, seed=4)[:5] != failures("sjf", CLUSTER)[:5]


# The end.


def test_a_simulation_ends_and_names_a_gang_that_no_longer_fits() -> None:
    plan = FaultPlan(mtbf_s=1000.0, mttr_s=10.0, drains=(Window(A, 5.0),))
    simulation = simulate([(0, 4, 20), (6, 8, 10), (7, 2, 30)], plan)
    assert simulation.result.finished == 2
    assert simulation.unfinished == [Unfinished("j1", Reason.NO_SUCH_SERVERS)]
    assert simulation.result.ratio_to_lower_bound is None


def test_without_repairs_the_unfinished_jobs_are_named() -> None:
    simulation = simulate([(0, 4, 1000), (0, 4, 20)], FaultPlan(outages=(Window(A, 10.0), Window(B, 30.0))))
    assert simulation.result.finished == 1
    assert simulation.unfinished == [Unfinished("j0", Reason.NO_SUCH_SERVERS)]


def test_only_a_job_that_never_saves_progress_is_given_up() -> None:
    # The gang would have to last 10 s on both servers; each fails every second. Small jobs of a second get through.
    plan = FaultPlan(mtbf_s=1.0, mttr_s=0.1)
    simulation = simulate([(0, 8, 100), (1, 1, 1), (2, 1, 1)], plan)
    assert simulation.faults is not None
    assert simulation.unfinished == [Unfinished("j0", Reason.NODE_LOST)]
    assert simulation.faults.jobs_given_up == 1
    assert simulation.faults.attempts_lost >= FRUITLESS_ATTEMPTS_MAX
    crashing = simulate([(0, 1, 1000)], FaultPlan(crash_mtbf_s=1.0))
    assert crashing.unfinished == [Unfinished("j0", Reason.CRASHED)]


def test_a_job_that_sometimes_saves_progress_is_not_given_up() -> None:
    simulation = simulate([(0, 1, 4000)], FaultPlan(crash_mtbf_s=12.0))
    assert simulation.faults is not None
    assert simulation.faults.crashes > FRUITLESS_ATTEMPTS_MAX
    assert simulation.unfinished == []


def test_faults_of_other_jobs_do_not_count_against_a_long_job() -> None:
    # b fails many times while j0 runs on a; nothing waits, and nothing else is to come.
    outages = tuple(Window(B, 10.0 * n, 10.0 * n + 5.0) for n in range(1, 1500))
    simulation = simulate([(0, 4, 20_000)], FaultPlan(outages=outages))
    assert [o.finish_time_s for o in simulation.outcomes] == [20_000.0]
    idle = simulate([(0, 4, 10), (40_000, 4, 10)], FaultPlan(mtbf_s=20.0, mttr_s=5.0))
    assert idle.result.finished == 2, "what is still to come is waited for, however many faults come before it"


# At random.

jobs_of = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4, 8]), st.integers(1, 90)), min_size=1, max_size=8
).map(sorted)
faults_of = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from(["crash", "fail", "repair"]), st.integers(0, 7)), max_size=12
)


def _inject(simulator: Simulator, kind: str, number: int) -> None:
    executor = simulator.executor
    server = ServerIndex(number % 2)
    if kind == "fail":
        executor.fail_server(server)
    elif kind == "repair":
        executor.repair_server(server)
    else:
        attempts: list[AttemptId] = sorted(
            attempt for attempt, status in executor.observed().items() if status is not AttemptStatus.ENDED
        )
        if attempts:
            executor.crash(attempts[number % len(attempts)])


@pytest.mark.parametrize("policy", ["asrpt", "fifo_backfill", "las"])
@given(rows=jobs_of, faults=faults_of, costs=st.sampled_from([(0.0, 0.0, 0.0), (4.0, 7.0, 1.5)]))
@settings(max_examples=40, deadline=None)
def test_under_faults_no_job_is_lost_and_held_time_is_useful_or_wasted(
    policy: str, rows: Rows, faults: list[tuple[int, str, int]], costs: tuple[float, float, float]
) -> None:
    checkpoint_s, restart_s, latency_s = costs
    options = SimulationOptions(checkpoint_s, restart_s, 10.0, launch_latency_s=latency_s, stop_latency_s=latency_s)
    jobs = prepare(table(rows), CLUSTER, checkpoint_period_s=10.0).jobs
    simulator = Simulator(jobs, CLUSTER, make_policy(policy), "oracle", options)
    # In the end both servers work, or the largest gang would wait for ever.
    repairs = [(400, "repair", 0), (400, "repair", 1)]
    for at, kind, number in [*faults, *repairs]:
        if at >= simulator.clock.now_s():
            simulator.clock.schedule(float(at), Priority.FAULT, partial(_inject, simulator, kind, number))
    simulator.run()
    outcomes = simulator.outcomes()
    assert [outcome.job_id for outcome in outcomes] == [job.row.job_id for job in jobs]
    for outcome in outcomes:
        assert outcome.succeeded
        assert outcome.held_s - outcome.wasted_s == pytest.approx(outcome.duration_s, abs=1e-6)
        assert outcome.jct_s >= outcome.duration_s - 1e-9
    assert simulator.engine.violations == ()
    assert dict(simulator.executor.observed()) == {}
    assert list(simulator.engine.world.holding()) == []
