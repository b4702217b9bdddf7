"""The bounds on the non-preemptive gated schedule, as properties of random instances on pooled servers.

For one server (servers pooled, rho = 1) and jobs in virtual order, each released at its virtual completion, the head
blocking: a job starts as soon as those before it in virtual order leave it room, so it waits at most G / (G - g_max + 1)
times the work before it, which the virtual machine has done by its completion.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.registry import make_policy
from policies.relaxation import VirtualMachine
from service.sim.draws import normal
from service.sim.experiment import SimulationOptions, run
from service.sim.jobs import prepare
from service.sim.workloads.model import Workload, WorkloadJob

GPUS = 8
PAPERS_SHAPE = {
    "preemption": "never",
    "order": "virtual",
    "queue": "strict",
    "release": "virtual",
    "guard_share": "0",
    "delay_factor": "0",
}
INSTANCES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, GPUS), st.integers(1, 100)), min_size=1, max_size=15
).map(sorted)


def virtual_sum_s(rows: list[tuple[int, int, int]]) -> float:
    """Sum of SRPT completions with the true run times: a lower bound on any schedule's sum."""
    machine, total_s = VirtualMachine(float(rows[0][0])), 0.0
    for number, (at_s, gpus, seconds) in enumerate(rows, start=1):
        total_s += sum(done.at_s for done in machine.advance(float(at_s)))
        machine.add(JobId(number), gpus * seconds / GPUS, float(at_s))
    return total_s + sum(done.at_s for done in machine.advance(1e9))


def real_sum_s(rows: list[tuple[int, int, int]], predictor: str, seed: int = 0) -> float:
    """Sum of completions of the gated schedule."""
    workload = Workload("w", tuple(WorkloadJob(f"j{n}", at, gpus, s) for n, (at, gpus, s) in enumerate(rows)))
    cluster = Cluster("pool", (Server("pool", GPUS),))
    options = SimulationOptions(restart_s=0.0, seed=seed)
    outcomes = run(workload, cluster, make_policy("asrpt", PAPERS_SHAPE), predictor, options).outcomes
    assert len(outcomes) == len(rows)
    return sum(outcome.finish_time_s for outcome in outcomes)


def packing(rows: list[tuple[int, int, int]]) -> float:
    """G / (G - g_max + 1): while a head of at most g_max GPUs is blocked, more than G - g_max are busy."""
    return GPUS / (GPUS - max(gpus for _, gpus, _ in rows) + 1)


@settings(max_examples=80, deadline=None)
@given(INSTANCES)
def test_with_the_truth(rows: list[tuple[int, int, int]]) -> None:
    longest = sum(seconds for _, _, seconds in rows)
    assert real_sum_s(rows, "oracle") <= (1 + packing(rows)) * virtual_sum_s(rows) + longest + 1e-6


@settings(max_examples=60, deadline=None)
@given(INSTANCES, st.integers(0, 1000), st.sampled_from([0.2, 1.0]))
def test_with_estimates_that_are_off_by_bounded_factors(
    rows: list[tuple[int, int, int]], seed: int, sigma: float
) -> None:
    factors = [math.exp(sigma * normal(seed, f"j{number}", "noisy")) for number in range(len(rows))]
    under, over = max(1.0, 1 / min(factors)), max(1.0, *factors)
    bound = over * (1 + under * packing(rows)) * virtual_sum_s(rows) + sum(seconds for _, _, seconds in rows)
    assert real_sum_s(rows, f"noisy:{sigma}", seed) <= bound + 1e-6


def test_the_gate_by_hand() -> None:
    # On 8 GPUs: A 8 x 10 s (work 10), B 4 x 4 s (work 2), C 1 x 8 s (work 1), all at 0. Virtual order C 1, B 3, A 13.
    # C runs 1-9; B runs 3-7; A is released at 13, and everything has ended by then: 13-23.
    rows = [(0, 1, 8), (0, 4, 4), (0, 8, 10)]
    assert virtual_sum_s(rows) == 1 + 3 + 13
    assert real_sum_s(rows, "oracle") == 9 + 7 + 23


@pytest.mark.parametrize("gpus", [1, GPUS])
def test_a_single_job_waits_for_its_virtual_completion(gpus: int) -> None:
    assert real_sum_s([(0, gpus, 80)], "oracle") == gpus * 10 + 80


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, GPUS), st.integers(1, 100)), min_size=1, max_size=12).map(
        sorted
    ),
    st.sampled_from([1e8, 1e9, 12.5e9]),
)
def test_with_communication(rows: list[tuple[int, int, int]], nic_bytes_s: float) -> None:
    """rho > 1 on servers of two GPUs. Works are at alpha_min, which is what the policy knows: too long by mu2 at most."""
    jobs = tuple(WorkloadJob(f"j{n}", at, gpus, s, model="resnet50") for n, (at, gpus, s) in enumerate(rows))
    cluster = Cluster("c", tuple(Server(f"s{n}", 2, "V100", "", nic_bytes_s, 120e9) for n in range(GPUS // 2)))
    prepared = prepare(Workload("w", jobs), cluster).jobs
    times = [job.times for job in prepared if job.times is not None]
    assert len(times) == len(rows)
    rho = max(each.ceil_s / each.floor_s for each in times)
    over = max(each.min_s / each.floor_s for each in times)
    machine, optimum_s = VirtualMachine(float(rows[0][0])), 0.0
    for job in prepared:
        optimum_s += sum(done.at_s for done in machine.advance(job.row.submit_time_s))
        machine.add(job.id, job.row.gpus * job.floor_duration_s / GPUS, job.row.submit_time_s)
    optimum_s += sum(done.at_s for done in machine.advance(1e9))
    optimum_s = max(optimum_s, sum(job.row.submit_time_s + job.floor_duration_s for job in prepared))
    outcomes = run(Workload("w", jobs), cluster, make_policy("asrpt", PAPERS_SHAPE), "oracle").outcomes
    assert len(outcomes) == len(rows)
    assert sum(each.finish_time_s for each in outcomes) <= (over * (1 + rho * packing(rows)) + rho) * optimum_s + 1e-6
