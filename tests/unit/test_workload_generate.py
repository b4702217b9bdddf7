"""The generator: equal seeds, equal bytes; families recur, most runs are near their median and some are far off."""

import itertools
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from service.sim.workloads.describe import describe
from service.sim.workloads.generate import Family, generate, make_families
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload, write_workload


def test_equal_seeds_give_equal_workloads_and_others_do_not(tmp_path: Path) -> None:
    assert generate(7, 200) == generate(7, 200)
    assert generate(7, 200) != generate(8, 200)
    # Nothing depends on how many jobs follow.
    assert generate(7, 50).jobs == generate(7, 200).jobs[:50]


def test_it_is_a_valid_table_labelled_synthetic(tmp_path: Path) -> None:
    workload = generate(3, 300)
    write_workload(workload, tmp_path / "w.csv")
    assert read_workload(tmp_path / "w.csv").jobs == workload.jobs
    assert workload.labels == {"synthetic": "true"}
    assert all(job.job_id.startswith("synthetic-") for job in workload.jobs)


def test_runs_of_a_family_are_near_its_median_and_a_share_is_far_off() -> None:
    families = make_families(1, 20, 5)
    by_name = {family.name: family for family in families}
    jobs = generate(1, 4000, families).jobs
    off = 0
    counts = Counter(job.name for job in jobs)
    for job in jobs:
        family = by_name[job.name]
        assert (job.user, job.project, job.gpus) == (family.user, family.project, family.gpus)
        assert job.iterations is not None
        assert family.walltime_s is None or job.duration_s <= family.walltime_s * 1.001
        off += not 0.5 <= job.iterations / family.iterations_median <= 2.0
    assert 0.08 < off / len(jobs) < 0.20
    # Zipf: the first family alone runs more often than the second half together has families.
    assert counts[families[0].name] > 3 * counts[families[9].name]
    assert len({job.user for job in jobs}) > 1


def test_the_offered_load_is_what_was_asked_for() -> None:
    family = Family("ada", "vision", "resnet", 4, 1000.0, 0.5)
    jobs = generate(5, 5000, [family], gpus=32, load=0.5).jobs
    between_s = statistics.mean(b.submit_time_s - a.submit_time_s for a, b in itertools.pairwise(jobs))
    assert between_s == pytest.approx(4 * 500.0 / (0.5 * 32), rel=0.05)
    durations_s = defaultdict(list)
    for job in jobs:
        durations_s[job.final_state].append(job.duration_s)
    assert statistics.median(durations_s["succeeded"]) == pytest.approx(500.0, rel=0.05)


@pytest.mark.parametrize("arguments", [{"jobs": -1}, {"gpus": 0}, {"load": 0.0}, {"load": 11.0}, {"families": []}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        generate(**({"seed": 0, "jobs": 10} | arguments))  # type: ignore[arg-type]


def test_description_by_hand() -> None:
    jobs = (
        WorkloadJob("1", 0.0, 1, 100.0, user="a", name="x", iterations=5),
        WorkloadJob("2", 10.0, 4, 50.0, user="a", name="x", walltime_s=60.0, final_state="failed"),
        WorkloadJob("3", 20.0, 4, 300.0, user="b", name="y"),
        WorkloadJob("4", 40.0, 1, 10.0),
    )
    numbers = describe(Workload("w", jobs))
    assert numbers["jobs"] == 4
    assert numbers["span_s"] == 40.0
    assert (numbers["users"], numbers["recurrence_keys"], numbers["recurring_jobs_ratio"]) == (2, 2, 0.5)
    assert numbers["jobs_by_gpus"] == {"1": 2, "4": 2}
    assert numbers["gpu_hours"] == pytest.approx((100 + 200 + 1200 + 10) / 3600)
    assert numbers["mean_gpus_busy"] == pytest.approx(1510 / 40)
    assert (numbers["duration_mean_s"], numbers["duration_median_s"]) == (115.0, 75.0)
    assert (numbers["with_iterations"], numbers["with_walltime"]) == (1, 1)
    assert numbers["final_states"] == {"failed": 1, "unknown": 3}
    assert describe(Workload("none", ()))["jobs"] == 0
