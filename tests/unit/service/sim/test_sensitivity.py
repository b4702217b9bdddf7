"""Hidden slowdowns: drawn from the seed and the program alone, and worth knowing."""

from dataclasses import replace
from statistics import median

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.estimate import PredictionRequest
from policies.model.placement import Slowdown
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.jobs import prepare
from service.sim.locating import LocatingPredictor
from service.sim.predictors import TruthPredictor
from service.sim.results import Simulation
from service.sim.sensitivity import ON_FOUR_GPUS, Sensitivity, true_slowdown
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("racks", tuple(Server(f"s{index}", 4, rack=f"r{index // 2}") for index in range(4)))


def row(name: str, gpus: int = 4, job: str = "1", **more: object) -> WorkloadJob:
    return WorkloadJob(job, 0.0, gpus, 100.0, "ann", "nlp", name, **more)  # type: ignore[arg-type]


def simulated(workload: Workload, sensitivity: str, policy: str = "asrpt", cluster: Cluster = CLUSTER) -> Simulation:
    options = SimulationOptions(sensitivity=Sensitivity(sensitivity))
    return run(workload, cluster, make_policy(policy), "oracle", options)


def test_the_slowdown_is_that_of_the_program_and_grows_with_the_gang() -> None:
    slowdowns = [true_slowdown(1, row("a", gpus)) for gpus in (2, 4, 8, 64)]
    assert slowdowns[1] == true_slowdown(1, row("a", job="2"))
    assert slowdowns[1] not in (true_slowdown(2, row("a")), true_slowdown(1, row("b")))
    assert slowdowns == sorted(slowdowns, key=lambda each: each.cluster)
    for each in slowdowns:
        assert 1.0 <= each.rack <= each.cluster
        assert each.rack - 1.0 >= 0.5 * (each.cluster - 1.0)


def test_slowdowns_cover_the_measured_range() -> None:
    drawn = [true_slowdown(0, row(f"p{number}")).cluster for number in range(2000)]
    assert ON_FOUR_GPUS[0] <= min(drawn) < 1.02
    assert ON_FOUR_GPUS[-1] >= max(drawn) > 3.0
    assert median(drawn) == pytest.approx(ON_FOUR_GPUS[5], abs=0.05)


def test_only_gangs_without_a_model_are_slowed_and_measured() -> None:
    table = Workload(
        "w", (row("a"), row("b", 1), row("c", 4, model="bert_large"), row("d", 8), row("e", 8, iterations=7))
    )
    plain, single, modelled, wide, counted = prepare(table, CLUSTER, slowdowns_seed=3).jobs
    assert [each.slowdown is None for each in (plain, single, modelled, wide, counted)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert plain.slowed_times is not None
    assert wide.slowed_times is not None
    assert (plain.slowed_times.min_s, wide.slowed_times.min_s) == (1.0, wide.slowdown and wide.slowdown.rack)
    assert plain.iterations is not None
    assert 100.0 / 5.0 * 0.8 < plain.iterations < 100.0 / 0.05 * 1.2
    assert (single.iterations, counted.iterations) == (None, 7.0)
    without = prepare(table, CLUSTER).jobs
    assert [each.slowdown for each in without] == [None] * 5
    assert without[0].iterations is None


def test_a_scattered_gang_takes_as_much_longer_as_its_program_is_slowed() -> None:
    """Two GPUs are free on each of two servers of one rack."""
    small = [replace(row(f"x{n}", 2, f"x{n}"), submit_time_s=0.0, duration_s=9000.0) for n in range(8)]
    short = [replace(each, duration_s=10.0) if each.job_id in ("x1", "x3") else each for each in small]
    table = Workload("w", (*short, replace(row("a", 4, "a"), submit_time_s=20.0, duration_s=50.0)))
    simulation = simulated(table, "blind", "fifo_backfill")
    (gang,) = (outcome for outcome in simulation.outcomes if outcome.job_id == "a")
    assert len(gang.placement.shares) == 2
    assert gang.finish_time_s - gang.start_time_s == pytest.approx(50.0 * true_slowdown(0, row("a")).rack)


def test_what_is_known_of_the_slowdowns_pays_and_learning_comes_near() -> None:
    cluster = Cluster("racks", tuple(Server(f"s{index}", 8, rack=f"r{index // 4}") for index in range(16)))
    workload = generate(1, 700, gpus=cluster.gpus, load=0.95, communication=False)
    jct_s = {mode: simulated(workload, mode, cluster=cluster).result.mean_jct_s for mode in Sensitivity}
    assert jct_s["none"] < jct_s["known"] < 0.9 * jct_s["blind"]
    assert jct_s["learnt"] < 0.95 * jct_s["blind"]
    assert simulated(workload, "learnt", cluster=cluster).result.mean_jct_s == jct_s["learnt"]


def test_known_estimates_carry_the_truth_and_blind_ones_nothing() -> None:
    jobs = {job.id: job for job in prepare(Workload("w", (row("a"), row("b", 1))), CLUSTER, slowdowns_seed=3).jobs}
    requests = [PredictionRequest(job.id, job.spec, 0.0) for job in jobs.values()]
    found: dict[str, list[Slowdown | None]] = {}
    for mode in (Sensitivity.BLIND, Sensitivity.LEARNT, Sensitivity.KNOWN):
        predictor = LocatingPredictor(TruthPredictor(jobs, lambda job: 1.0, "oracle"), jobs, mode)
        found[mode] = [each and each.estimate.slowdown for each in predictor.predict(0.0, requests)]
    assert found["blind"] == [None, None]
    assert found["known"] == [true_slowdown(3, row("a")), None]
    learnt, single = found["learnt"]
    assert learnt is not None
    assert (learnt.measured, single) == (False, None)
