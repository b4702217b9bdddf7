"""Crashes and lost servers at random instants: every job still ends, and every second of every GPU is accounted for."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, ServerIndex
from policies.registry import make_policy
from service.engine.ports import AttemptStatus
from service.sim.clock import Priority
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import SimJob, prepare
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("two", (Server("a", 4), Server("b", 4)))

jobs_of = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4, 8]), st.integers(1, 90)), min_size=1, max_size=8
)
faults_of = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from(["crash", "fail", "repair"]), st.integers(0, 7)), max_size=12
)


def _jobs(rows: list[tuple[int, int, int]], period_s: float) -> list[SimJob]:
    table = tuple(WorkloadJob(f"j{n}", float(at), gpus, float(s)) for n, (at, gpus, s) in enumerate(sorted(rows)))
    jobs = prepare(Workload("w", table), CLUSTER, checkpoint_period_s=period_s).jobs
    # Retries without end: that a job may fail for good is the engine's own test.
    return [replace(job, spec=replace(job.spec, max_retries=10**6)) for job in jobs]


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
def test_nothing_is_lost_and_every_second_is_accounted_for(
    policy: str, rows: list[tuple[int, int, int]], faults: list[tuple[int, str, int]], costs: tuple[float, float, float]
) -> None:
    checkpoint_s, restart_s, latency_s = costs
    options = SimulationOptions(checkpoint_s, restart_s, 10.0, launch_latency_s=latency_s, stop_latency_s=latency_s)
    jobs = _jobs(rows, period_s=10.0)
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
