"""Whole simulations: by hand on a few jobs, and properties of every run."""

import csv
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import ServerIndex
from policies.registry import BUILT_IN, make_policy
from service.sim.clock import Priority
from service.sim.experiment import SimulationOptions, Simulator, run
from service.sim.jobs import bounds_of, prepare
from service.sim.results import Simulation, interval_set, write_simulation
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import generate
from service.sim.workloads.model import SkippedRow, Workload, WorkloadJob

ONE = Cluster("one", (Server("a", 4),))
TWO = Cluster("two", (Server("a", 4), Server("b", 4)))


def _workload(*rows: tuple[float, int, float]) -> Workload:
    return Workload("w", tuple(WorkloadJob(f"j{n}", float(at), gpus, float(s)) for n, (at, gpus, s) in enumerate(rows)))


UNGUARDED = {"guard_share": "0"}
"""Without the starvation guard: it protects the oldest job, which on clusters this small is most of them."""


def _run(
    workload: Workload,
    cluster: Cluster,
    policy: str = "fifo",
    policy_options: Mapping[str, str] | None = None,
    predictor: str = "oracle",
    **options: Any,
) -> Simulation:
    return run(workload, cluster, make_policy(policy, policy_options), predictor, SimulationOptions(**options))


def test_fifo_computed_by_hand() -> None:
    # 4 GPUs: j0 takes all until 100; j1 and j2 share 100-150 and 100-120; j3 (submitted at 130) fits at 130.
    simulation = _run(_workload((0, 4, 100), (10, 2, 50), (20, 2, 20), (130, 1, 8)), ONE)
    result = simulation.result
    assert [(o.start_time_s, o.finish_time_s) for o in simulation.outcomes] == [
        (0, 100),
        (100, 150),
        (100, 120),
        (130, 138),
    ]
    assert [o.jct_s for o in simulation.outcomes] == [100, 140, 100, 8]
    assert (result.jobs, result.finished, result.skipped, result.preemptions) == (4, 4, 0, 0)
    assert result.mean_jct_s == 87.0
    assert result.median_jct_s == 100.0
    assert result.mean_queueing_delay_s == (0 + 90 + 80 + 0) / 4
    assert result.mean_slowdown == pytest.approx((1 + 140 / 50 + 100 / 20 + 8 / 10) / 4), "8 s count as 10"
    assert result.makespan_s == 150.0
    assert result.utilization_ratio == pytest.approx((400 + 100 + 40 + 8) / (4 * 150))
    assert result.wasted_gpu_s == 0.0
    assert result.ratio_to_lower_bound == pytest.approx(87.0 / result.lower_bound_mean_jct_s)
    # 4 arrivals, 4 starts, 4 finishes
    assert result.events == 12


def test_a_preemption_computed_by_hand() -> None:
    # j0 (1000 s) makes way at 100 s for j1 (10 s); its checkpoint holds the GPUs until 130, and it restarts for 60 s.
    workload = _workload((0, 4, 1000), (100, 4, 10))
    simulation = _run(workload, ONE, "srsf", UNGUARDED | {"preemption": "guided"}, checkpoint_s=30.0, restart_s=60.0)
    long, short = simulation.outcomes
    assert (short.start_time_s, short.finish_time_s, short.queueing_delay_s) == (130, 140, 30)
    assert (long.start_time_s, long.finish_time_s) == (0, 140 + 60 + 900)
    assert long.preemptions == 1
    assert long.queueing_delay_s == 10.0
    assert simulation.result.wasted_gpu_s == 4 * (30 + 60)
    assert simulation.result.utilization_ratio == pytest.approx(4 * 1010 / (4 * 1100))
    assert simulation.result.makespan_s == 1100.0


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize("predictor", ["oracle", "noisy:1.5", "adversarial", "none"])
def test_every_policy_finishes_all_jobs_and_is_deterministic(policy: str, predictor: str) -> None:
    workload = generate(11, 60, gpus=8, load=1.2)
    workload = Workload("w", tuple(job for job in workload.jobs if job.gpus <= 8))
    # Without estimates and at no price, every instant is a reason to swap jobs of equal service, and none advances.
    policy_options = {"preemption": "guided"} if policy == "srsf" else {}
    first, second = (_run(workload, TWO, policy, policy_options, predictor, seed=5) for _ in range(2))
    assert first.result.finished == len(workload.jobs)
    assert first.result == second.result
    assert first.outcomes == second.outcomes
    assert first.result.ratio_to_lower_bound is not None
    assert first.result.ratio_to_lower_bound >= 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 40)), min_size=1, max_size=12
    ),
    st.sampled_from(sorted(BUILT_IN)),
    st.sampled_from([(0.0, 0.0), (5.0, 3.0)]),
)
@settings(max_examples=60, deadline=None)
def test_gpu_seconds_are_conserved(rows: list[tuple[int, int, int]], policy: str, costs: tuple[float, float]) -> None:
    workload = _workload(*sorted((float(at), gpus, float(s)) for at, gpus, s in rows))
    simulation = _run(workload, TWO, policy, checkpoint_s=costs[0], restart_s=costs[1])
    result = simulation.result
    assert result.finished == len(rows)
    assert result.ratio_to_lower_bound is not None
    assert result.ratio_to_lower_bound >= 1.0 - 1e-9
    useful_gpu_s = 0.0
    for outcome in simulation.outcomes:
        # All that a job needed it got, and nothing else counts as useful.
        assert outcome.held_s - outcome.wasted_s == pytest.approx(outcome.duration_s)
        assert outcome.wasted_s <= outcome.preemptions * sum(costs) + 1e-6
        assert outcome.jct_s == pytest.approx(outcome.queueing_delay_s + outcome.held_s)
        assert outcome.submit_time_s <= outcome.start_time_s < outcome.finish_time_s
        assert sum(len(ids) for ids in outcome.gpu_ids) == outcome.gpus
        useful_gpu_s += outcome.gpus * outcome.duration_s
    assert result.utilization_ratio == pytest.approx(useful_gpu_s / (8 * result.makespan_s))
    assert result.utilization_ratio <= 1.0 + 1e-9
    # Nobody's GPUs are held by two jobs at once: where no job was preempted, intervals on a GPU never overlap.
    if result.preemptions == 0:
        held: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for outcome in simulation.outcomes:
            for share, ids in zip(outcome.placement.shares, outcome.gpu_ids, strict=True):
                for gpu in ids:
                    held.setdefault((share.server, gpu), []).append((outcome.start_time_s, outcome.finish_time_s))
        for intervals in held.values():
            intervals.sort()
            assert all(left[1] <= right[0] for left, right in itertools.pairwise(intervals))


def test_crashes_and_a_lost_server_cost_time_but_no_job() -> None:
    options = SimulationOptions(restart_s=10.0, checkpoint_period_s=50.0)
    jobs = prepare(_workload((0, 8, 400), (310, 1, 500)), TWO, checkpoint_period_s=50.0).jobs
    simulator = Simulator(jobs, TWO, make_policy("fifo"), "oracle", options)
    simulator.clock.schedule(170.0, Priority.FAULT, lambda: simulator.executor.fail_server(ServerIndex(1)))
    simulator.clock.schedule(300.0, Priority.FAULT, lambda: simulator.executor.repair_server(ServerIndex(1)))
    simulator.run()
    gang, single = simulator.outcomes()
    # The gang keeps 150 s of its 170, waits for the server until 300, restarts for 10 s and needs 250 s more.
    assert (gang.finish_time_s, gang.preemptions) == (300.0 + 10.0 + 250.0, 0)
    assert gang.wasted_s == pytest.approx(20.0 + 10.0)
    assert (single.start_time_s, single.finish_time_s) == (560.0, 1060.0)


def test_the_predictor_affects_only_the_order_of_jobs() -> None:
    workload = _workload((0, 4, 10), (1, 4, 300), (2, 4, 20))
    told = _run(workload, ONE, "sjf", UNGUARDED)
    assert [outcome.finish_time_s for outcome in told.outcomes] == [10, 330, 30]
    untold = _run(workload, ONE, "sjf", UNGUARDED, "none")
    assert [outcome.finish_time_s for outcome in untold.outcomes] == [10, 310, 330]


def test_rows_that_no_server_can_hold_are_named_or_skipped() -> None:
    workload = Workload("w.csv", (*_workload((0, 9, 10), (0, 2, 10)).jobs,), (SkippedRow(4, "gpus: bad"),))
    with pytest.raises(WorkloadError, match=r"w\.csv: job 'j0' needs 9 GPUs, but cluster 'two' has 8"):
        _run(workload, TWO)
    simulation = _run(workload, TWO, skip_invalid=True)
    assert (simulation.result.jobs, simulation.result.finished, simulation.result.skipped) == (1, 1, 2)


def test_a_gang_does_not_mix_gpu_types_and_a_requested_type_must_exist() -> None:
    mixed = Cluster("mixed", (Server("a", 4, "V100"), Server("b", 4, "A100")))
    with pytest.raises(WorkloadError, match="has 4 of one type"):
        _run(_workload((0, 5, 10)), mixed)
    for gpu_type, message in (("A100", "needs 5 GPUs.*has 4 A100"), ("H100", "has 0 H100")):
        with pytest.raises(WorkloadError, match=message):
            _run(Workload("w", (WorkloadJob("x", 0.0, 5, 1.0, gpu_type=gpu_type),)), mixed)


def test_a_row_may_spell_a_gpu_type_in_another_way_than_the_cluster() -> None:
    mixed = Cluster("mixed", (Server("a", 4, "V100"), Server("b", 4, "NVIDIA A100-SXM4-80GB")))
    rows = [
        WorkloadJob(f"{n}", 0.0, 4, 10.0, gpu_type="a100_80gb", model=model) for n, model in enumerate(("", "vgg19"))
    ]
    result = _run(Workload("w", tuple(rows)), mixed).result
    assert (result.finished, result.makespan_s) == (2, pytest.approx(20.0, rel=0.01))


def test_an_empty_workload_has_an_empty_result() -> None:
    result = _run(Workload("w", ()), ONE).result
    assert (result.jobs, result.mean_jct_s, result.ratio_to_lower_bound, result.events) == (0, 0.0, None, 0)


def test_bounds_count_the_whole_cluster() -> None:
    jobs = prepare(_workload((0, 4, 10), (0, 4, 10)), TWO).jobs
    assert bounds_of(jobs, TWO).lower_bound_mean_jct_s == 10.0
    assert bounds_of(jobs, ONE).lower_bound_mean_jct_s == 15.0


def test_no_cell_of_a_run_is_a_formula(tmp_path: Path) -> None:
    cluster = Cluster("c", (Server("=HYPERLINK(1)", 4),))
    simulation = _run(Workload("w", (WorkloadJob("@x", 0.0, 1, 1.0), WorkloadJob("-y", 0.0, 1, 1.0))), cluster)
    write_simulation(simulation, tmp_path, "=w")
    for name in ("jobs.csv", "batsim_jobs.csv"):
        with (tmp_path / name).open(newline="") as stream:
            words = [word for row in csv.reader(stream) for word in row]
        assert not [word for word in words if word.startswith(("=", "+", "@", "\t", "\r", "-y"))], name
        assert {"'@x", "'-y"} <= set(words)


def test_the_files_of_a_run(tmp_path: Path) -> None:
    workload = _workload((0, 4, 1000), (100, 6, 10), (101, 1, 5))
    simulation = _run(workload, TWO, "srsf", UNGUARDED | {"preemption": "guided"})
    write_simulation(simulation, tmp_path / "out", "w")
    with (tmp_path / "out" / "jobs.csv").open() as stream:
        jobs = list(csv.DictReader(stream))
    assert list(jobs[0]) == [
        *("job_id", "submit_time_s", "start_time_s", "finish_time_s", "jct_s"),
        *("queueing_delay_s", "preemptions", "gpus", "servers", "promised_end_s"),
    ]
    assert [job["job_id"] for job in jobs] == ["j0", "j1", "j2"]
    assert jobs[1] | {"servers": ""} == {
        "job_id": "j1",
        "submit_time_s": "100.0",
        "start_time_s": "100.0",
        "finish_time_s": "110.0",
        "jct_s": "10.0",
        "queueing_delay_s": "0.0",
        "preemptions": "0",
        "gpus": "6",
        "servers": "",
        "promised_end_s": "",
    }
    assert jobs[1]["servers"] == "a b"
    with (tmp_path / "out" / "batsim_jobs.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    # The columns and their order are Batsim's ("Jobs" in its documentation).
    assert list(rows[0]) == [
        *("job_id", "workload_name", "profile", "submission_time", "requested_number_of_resources", "requested_time"),
        *("success", "final_state", "starting_time", "execution_time", "finish_time", "waiting_time"),
        *("turnaround_time", "stretch", "consumed_energy", "allocated_resources", "metadata"),
    ]
    wanted = ("profile", "requested_number_of_resources", "waiting_time", "stretch", "success", "final_state")
    assert [rows[1][column] for column in wanted] == ["j1", "6", "0.0", "1.0", "1", "COMPLETED_SUCCESSFULLY"]
    resources = {
        number
        for part in rows[1]["allocated_resources"].split()
        for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }
    assert len(resources) == 6
    assert resources < set(range(8))


def test_interval_sets() -> None:
    assert interval_set([]) == ""
    assert interval_set([3]) == "3"
    assert interval_set([0, 1, 2, 3, 7, 9, 10]) == "0-3 7 9-10"


def test_a_catalogue_model_sets_traffic_iterations_and_floor() -> None:
    slow = Cluster("slow", (Server("a", 4, nic_bytes_s=1e9), Server("b", 4, nic_bytes_s=1e9)))
    rows = (
        WorkloadJob("vgg", 0.0, 8, 1000.0, model="vgg19"),
        WorkloadJob("small", 0.0, 2, 1000.0, model="vgg19", iterations=4000),
    )
    jobs = prepare(Workload("w", rows), slow).jobs
    spread, local = jobs
    assert spread.times is not None
    assert local.times is not None
    assert spread.iterations == round(1000.0 / spread.times.min_s)
    assert local.iterations == 4000
    # Eight GPUs must straddle the two servers, which costs what no imaginary single server would; two need not.
    assert spread.floor_duration_s < 900.0
    assert local.floor_duration_s == pytest.approx(1000.0)
    result = _run(Workload("w", rows[:1]), slow).result
    assert result.mean_jct_s == pytest.approx(1000.0, rel=0.02)
    assert result.lower_bound_mean_jct_s == pytest.approx(spread.floor_duration_s)


def test_an_unknown_model_is_named_by_its_job() -> None:
    with pytest.raises(WorkloadError, match=r"job 'x' .*'resnet51'.*catalogue"):
        prepare(Workload("w", (WorkloadJob("x", 0.0, 1, 1.0, model="resnet51"),)), ONE)
