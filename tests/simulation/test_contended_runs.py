"""Whole simulations on the contended network: what the engine believes, every policy to its end, and equal bytes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Unit
from policies.registry import BUILT_IN, make_policy
from service.engine.events import ReportKind
from service.sim.experiment import SimulationOptions, Simulator, run
from service.sim.faults import FaultPlan
from service.sim.jobs import prepare
from service.sim.network import ContendedNetwork
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from tests.conformance.policy_suite import no_pause_between_refreshes
from tests.scenarios.chance import Watched

CLUSTER = Cluster("c", tuple(Server(f"s{m}", 4, nic_bytes_s=1.25e9) for m in range(6)))
"""Small servers and slow NICs: most gangs of the workload straddle."""

CONTENDED = SimulationOptions(network="contended", skip_invalid=True)

RESERVED = SimulationOptions(skip_invalid=True)

HARSH = replace(
    CONTENDED,
    checkpoint_s=20.0,
    launch_latency_s=5.0,
    stop_latency_s=3.0,
    faults=FaultPlan(mtbf_s=40_000.0, mttr_s=600.0, crash_mtbf_s=50_000.0),
)
"""Latencies, checkpoints, failing servers, crashing programs."""


def crowded(seed: int, jobs: int = 80) -> Workload:
    """A generated workload whose jobs communicate and come so close together that they meet."""
    workload = generate(seed, jobs, gpus=CLUSTER.gpus, load=1.2, communication=True)
    gangs = (3, 2, 3, 6, 5)
    return replace(workload, jobs=tuple(replace(job, gpus=gangs[n % 5]) for n, job in enumerate(workload.jobs)))


def simulator(workload: Workload, policy: str, options: SimulationOptions = CONTENDED) -> Simulator:
    jobs = prepare(workload, CLUSTER, skip_invalid=True).jobs
    return Simulator(jobs, CLUSTER, make_policy(policy, {"delay_factor": "0"}), "oracle", options)


def steps(simulation: Simulator) -> Iterator[None]:
    while simulation.step():
        yield


@pytest.mark.parametrize(("policy", "options"), [("asrpt", CONTENDED), ("las", HARSH), ("sjf", HARSH)])
def test_the_engine_knows_how_far_every_job_is(policy: str, options: SimulationOptions) -> None:
    """After each cycle its extrapolated progress is the truth, and an iteration is ranked by its seconds at the best place."""
    simulation = simulator(crowded(3), policy, options)
    compared = slowed = 0
    for _ in steps(simulation):
        now_s = simulation.clock.now_s()
        for job in simulation.engine.world.jobs.values():
            if job.state is not JobState.RUNNING or job.attempt is None or job.iteration_times is None:
                continue
            run_of_job = simulation.executor._runs[job.attempt.id]
            work_s = run_of_job.truth.done_s + run_of_job.work_s(run_of_job.productive_s(now_s))
            assert job.done(Unit.ITERATIONS, now_s) == pytest.approx(run_of_job.truth.iteration_at(work_s), abs=1e-3)
            assert job.done(Unit.SERVICE_S, now_s) == pytest.approx(
                job.attempt.resume_service_s + run_of_job.productive_s(now_s), abs=1e-3
            )
            assert job.iterations_per_s == pytest.approx(run_of_job.iterations_per_s)
            assert job.measured_s_per_iteration is None
            assert job.seconds_per_iteration() == job.iteration_times.min_s
            compared += 1
            slowed += run_of_job.stretch > 1.5
    assert compared > 500
    assert slowed > 50


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_every_policy_comes_to_its_end(policy: str) -> None:
    result = run(crowded(1, 50), CLUSTER, make_policy(policy), "oracle", CONTENDED).result
    assert result.finished == result.jobs == 50
    assert result.ratio_to_lower_bound is not None
    assert result.ratio_to_lower_bound >= 1.0


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_what_a_policy_knows_of_shared_links_follows_from_the_jobs(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count of jobs on each link is checked after each decision, and a rebuilt state leads to the same decision.

    Not for ``easy``: it keeps the ends that it expected of running jobs, at the speeds of that time.
    """
    no_pause_between_refreshes(monkeypatch)
    watched = Watched(make_policy(policy), rebuilt=policy != "easy")
    assert run(crowded(6, 40), CLUSTER, watched, "oracle", HARSH).result.jobs == 40
    assert len(watched.decisions) > 80


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_on_the_reserved_network_there_is_nothing_to_foresee(policy: str) -> None:
    stories = {
        repr(run(crowded(1, 50), CLUSTER, make_policy(policy, {"contention": name}), "oracle", RESERVED).outcomes)
        for name in ("foresee", "ignore")
    }
    assert len(stories) == 1


def test_a_gang_waits_for_an_idle_server_rather_than_join_a_crowd() -> None:
    """To ignore contention is to start on crowded links at once."""
    means = [
        run(crowded(seed), CLUSTER, make_policy("sjf", {"contention": name}), "oracle", CONTENDED).result.mean_jct_s
        for name in ("foresee", "ignore")
        for seed in range(4)
    ]
    assert sum(means[:4]) < sum(means[4:])


def test_what_nobody_disturbs_is_at_least_as_fast() -> None:
    """First in first out decides by arrivals and ends alone: with xi1 = 0 each attempt is as fast as alone."""
    crowd, lone = (
        run(
            crowded(1),
            CLUSTER,
            make_policy("fifo", {"delay_factor": "0"}),
            "oracle",
            replace(CONTENDED, network=network),
        )
        for network in ("contended", "contended:xi1=0")
    )
    assert crowd.result.mean_jct_s > 1.05 * lone.result.mean_jct_s
    for slow, fast in zip(crowd.outcomes, lone.outcomes, strict=True):
        assert slow.held_s >= fast.held_s - 1e-6 or slow.placement != fast.placement


def test_jobs_without_networks_know_no_difference() -> None:
    """Without stage graphs there is no traffic: both networks tell one story, byte for byte."""
    workload = generate(5, 80, gpus=CLUSTER.gpus, load=1.0, communication=False)
    stories = {
        repr(run(workload, CLUSTER, make_policy("asrpt"), "oracle", replace(CONTENDED, network=network)).outcomes)
        for network in ("reserved", "contended")
    }
    assert len(stories) == 1


def test_equal_input_equal_bytes() -> None:
    stories = {repr(run(crowded(2), CLUSTER, make_policy("asrpt"), "noisy:0.5", CONTENDED).outcomes) for _ in range(2)}
    assert len(stories) == 1


def test_all_costs_and_faults_at_once() -> None:
    """The run ends, and nobody is left on a link."""
    simulation = simulator(crowded(4), "asrpt", HARSH)
    simulation.run()
    network = simulation.executor._network
    assert isinstance(network, ContendedNetwork)
    assert not any(network._flows.values())
    assert len(simulation.outcomes()) == 80


def test_reports_of_speed_cost_as_much_as_there_are_affected() -> None:
    """Every report of progress stands for one flow whose crowd changed: nobody else is told anything."""
    simulation = simulator(crowded(3), "sjf")
    told = 0
    poll = simulation.executor.poll

    for _ in steps(simulation):
        told += sum(report.kind is ReportKind.PROGRESS for report in poll())
    network = simulation.executor._network
    assert network is not None
    assert told <= network.ratings
