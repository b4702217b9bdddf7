"""The generator: equal seeds, equal bytes; families recur, most runs are near their median and some are far off."""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue import MODELS
from policies.model.cluster import Cluster, Server
from service.sim.workloads.describe import describe, factors_to_past, rhythm
from service.sim.workloads.generate import Family, generate, make_families
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.population import nominal_iteration_s
from service.sim.workloads.rhythm import WEEK_S, Rhythm
from service.sim.workloads.table import read_workload, write_workload


def test_equal_seeds_give_equal_workloads_and_others_do_not() -> None:
    assert generate(7, 200) == generate(7, 200)
    assert generate(7, 200) != generate(8, 200)
    # Fewer jobs are the same jobs, submitted at another rate; with programs of one's own the rate is the same too.
    few, many = generate(7, 50).jobs, generate(7, 200).jobs[:50]
    assert [replace(job, submit_time_s=0.0) for job in few] == [replace(job, submit_time_s=0.0) for job in many]
    families = make_families(7)
    assert generate(7, 50, families).jobs == generate(7, 200, families).jobs[:50]


def test_a_generated_workload_is_valid_and_labelled_synthetic(tmp_path: Path) -> None:
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


def test_the_offered_load_equals_the_requested_load() -> None:
    family = Family("ada", "vision", "resnet", 4, 1000.0, 0.5)
    jobs = generate(5, 5000, [family], gpus=32, load=0.5).jobs
    between_s = statistics.mean(b.submit_time_s - a.submit_time_s for a, b in itertools.pairwise(jobs))
    assert between_s == pytest.approx(4 * 500.0 / (0.5 * 32), rel=0.05)
    durations_s = defaultdict(list)
    for job in jobs:
        durations_s[job.final_state].append(job.duration_s)
    assert statistics.median(durations_s["succeeded"]) == pytest.approx(500.0, rel=0.05)


SEEDS = st.integers(min_value=0, max_value=2**32)


def _groups(jobs: Sequence[WorkloadJob]) -> Counter[tuple[str, str, str]]:
    return Counter((job.user, job.project, job.name) for job in jobs)


@given(seed=SEEDS)
@settings(max_examples=8, deadline=None)
def test_the_published_facts_hold_for_every_seed(seed: int) -> None:
    workload = generate(seed, 4000, gpus=64, load=0.9)
    numbers = describe(workload, Cluster("c", tuple(Server(f"s{index}", 8) for index in range(8))))
    assert 0.60 <= numbers["recurring_5_jobs_ratio"] <= 0.70
    assert 0.08 <= numbers["repeats_off_2x_ratio"] <= 0.25
    assert numbers["load_ratio"] == pytest.approx(0.9, rel=1e-3)
    # Zipf: the k-th user submits about k^-1.1 as many jobs as the first.
    counts = sorted(Counter(job.user for job in workload.jobs).values(), reverse=True)
    assert counts[0] / counts[3] == pytest.approx(4**1.1, rel=0.3)
    # Two modes: minutes and hours, and a valley between.
    minutes = sum(60 <= job.duration_s < 600 for job in workload.jobs)
    valley = sum(1200 <= job.duration_s < 3600 for job in workload.jobs)
    hours = sum(3600 <= job.duration_s < 36_000 for job in workload.jobs)
    assert valley < 0.5 * min(minutes, hours)
    assert min(minutes, hours) > 0.2 * len(workload.jobs)
    assert max(job.gpus for job in workload.jobs) <= 32


def test_rare_programs_run_at_most_four_times_and_others_have_a_limited_life() -> None:
    jobs = generate(5, 8000).jobs
    groups = _groups(jobs)
    assert {1, 2, 3, 4} <= set(groups.values())
    often = {group for group, runs in groups.items() if runs >= 5}
    halves = [{(job.user, job.project, job.name) for job in part} & often for part in (jobs[:4000], jobs[4000:])]
    assert len(often) > 80, "programs take the places of others"
    assert len(halves[1] - halves[0]) >= 10, "new groups"
    assert len(halves[0] - halves[1]) >= 10, "groups that end"


def test_programs_drift() -> None:
    # Two late runs of a program are closer to each other than a late run to an early one.
    runs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for job in generate(4, 20_000).jobs:
        if job.final_state == "succeeded" and job.iterations is not None:
            runs[job.user, job.project, job.name].append(math.log(job.iterations))
    long_lived = [of_one for of_one in runs.values() if len(of_one) >= 60]
    assert len(long_lived) >= 20

    def distance(early: slice, late: slice) -> float:
        return statistics.mean(abs(statistics.median(one[early]) - statistics.median(one[late])) for one in long_lived)

    assert distance(slice(0, 15), slice(-15, None)) > 1.5 * distance(slice(-30, -15), slice(-15, None))


def test_iterations_models_and_gangs_come_from_the_catalogue() -> None:
    jobs = generate(6, 2000, gpus=128).jobs
    assert {job.model for job in jobs} <= set(MODELS)
    assert len({job.model for job in jobs}) >= 6
    for job in jobs[:200]:
        assert job.iterations is not None
        pace_s = job.duration_s / job.iterations
        assert pace_s == pytest.approx(nominal_iteration_s(job.model, job.gpus), rel=0.2)
    assert all(job.gpus >= 4 for job in jobs if job.model == "gpt2_xl")
    plain = generate(6, 2000, gpus=128, communication=False).jobs
    assert plain == tuple(replace(job, model="") for job in jobs)


@given(load=st.floats(min_value=0.05, max_value=5.0), gpus=st.integers(1, 512), jobs=st.integers(2, 60))
@settings(max_examples=25, deadline=None)
def test_load_and_gangs_fit_the_cluster(load: float, gpus: int, jobs: int) -> None:
    rows = generate(1, jobs, gpus=gpus, load=load).jobs
    assert max(job.gpus for job in rows) <= max(1, gpus // 2)
    span_s = rows[-1].submit_time_s - rows[0].submit_time_s
    # Times are rounded to milliseconds.
    assert sum(job.gpus * job.duration_s for job in rows) == pytest.approx(load * gpus * span_s, rel=1e-3)


@given(seed=SEEDS)
@settings(max_examples=5, deadline=None)
def test_submissions_follow_days_and_weeks_unless_they_are_steady(seed: int) -> None:
    """Fewer at night than in the afternoon, and fewer at the weekend than on workdays, over a whole number of weeks."""
    for steady in (False, True):
        jobs = generate(seed, 8000, gpus=32, load=0.5, steady=steady).jobs
        weeks = int(jobs[-1].submit_time_s // WEEK_S)
        assert weeks >= 3
        times_s = [job.submit_time_s for job in jobs if job.submit_time_s < weeks * WEEK_S]
        hours = Counter(int(at_s / 3600.0) % 24 for at_s in times_s)
        days = Counter(int(at_s / 86_400.0) % 7 for at_s in times_s)
        afternoon, night = sum(hours[hour] for hour in range(14, 18)), sum(hours[hour] for hour in range(2, 6))
        weekend, workdays = (days[5] + days[6]) / 2.0, sum(days[day] for day in range(5)) / 5.0
        if steady:
            assert afternoon / night == pytest.approx(1.0, rel=0.25)
            assert weekend / workdays == pytest.approx(1.0, rel=0.2)
        else:
            assert 3.5 < afternoon / night < 6.5
            assert weekend / workdays == pytest.approx(0.55, rel=0.2)


def test_time_measured_by_submissions() -> None:
    rhythm = Rhythm()
    week = rhythm.passed(WEEK_S)
    assert week == pytest.approx((5 + 2 * 0.55) * rhythm.passed(86_400.0))
    assert rhythm.passed(3600.0) == pytest.approx(0.5)
    assert rhythm.passed(2.5 * WEEK_S) == pytest.approx(2.0 * week + rhythm.passed(0.5 * WEEK_S))
    # Half of the first hour's 0.5, all of it, and half of the second hour's 0.4.
    assert rhythm.spread([0.0, 0.25, 0.5, 0.7], 5400.0) == pytest.approx([0.0, 1800.0, 3600.0, 5400.0])
    late_s = rhythm.spread([0.0, 1.0, 1e9], 1e12)
    assert late_s == sorted(late_s)
    assert late_s[-1] == 1e12


def test_users_without_an_own_program_submit_jobs() -> None:
    jobs = generate(2, 3000, programs=2, users=6).jobs
    assert len({job.user for job in jobs}) == 6
    assert len(generate(2, 1, programs=1, users=1).jobs) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *({"jobs": -1}, {"gpus": 0}, {"load": 0.0}, {"load": 11.0}, {"families": []}, {"programs": 0}, {"users": 0}),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=rf"^{name} must be .* \(got "):
        generate(**({"seed": 0, "jobs": 10} | arguments))  # type: ignore[arg-type]


def test_a_description_computed_by_hand() -> None:
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
    assert "load_ratio" not in numbers
    assert describe(Workload("none", ()))["jobs"] == 0


def test_rhythms_and_repeats_computed_by_hand() -> None:
    # Three jobs in the first quarter of each of two days, one in the last, and some of a third day that is not over.
    times_s = [day * 86_400.0 + at_s for day in (0, 1) for at_s in (0.0, 10.0, 20.0, 80_000.0)] + [172_800.0, 180_000.0]
    jobs = [WorkloadJob(str(at), at, 1, 10.0) for at in times_s]
    assert rhythm(jobs, 86_400.0, 4) == [3.0, 0.0, 0.0, 1.0]
    assert rhythm(jobs, 7 * 86_400.0, 7) == []
    numbers = describe(Workload("w", tuple(jobs)))
    assert (numbers["busiest_hour_ratio"], numbers["quietest_hour_ratio"]) == (18.0, 0.0)
    assert numbers["busiest_day_ratio"] is None
    assert numbers["jobs_per_day"] == pytest.approx(10 / (180_000 / 86_400))
    runs = [
        WorkloadJob(str(at), at, 1, lasts, name="x") for at, lasts in enumerate([10.0, 20.0, 30.0, 40.0, 50.0, 15.0])
    ]
    assert factors_to_past(runs) == [50.0 / 25.0, 15.0 / 30.0]


def test_load_quantiles_and_recurrence_computed_by_hand() -> None:
    durations_s = [100.0, 100.0, 100.0, 100.0, 90.0, 300.0]
    runs = [WorkloadJob(str(at), 10.0 * at, 2, lasts, user="a", name="x") for at, lasts in enumerate(durations_s)]
    once = WorkloadJob("once", 100.0, 16, 10.0, user="b", name="y")
    numbers = describe(Workload("w", (*runs, once)), Cluster("c", (Server("s1", 8), Server("s2", 4))))
    assert (numbers["cluster"], numbers["cluster_gpus"], numbers["jobs_too_large"]) == ("c", 12, 1)
    assert numbers["load_ratio"] == pytest.approx((2 * 790 + 160) / 100 / 12)
    assert numbers["recurring_5_jobs_ratio"] == pytest.approx(6 / 7)
    # The fifth run is near the median of the four before it, the sixth is three times the median.
    assert numbers["repeats_off_2x_ratio"] == 0.5
    assert (numbers["gpus_mean"], numbers["gpus_median"]) == (4.0, 2.0)
    assert (numbers["duration_p25_s"], numbers["duration_p75_s"]) == (95.0, 100.0)
    assert numbers["top_user_jobs_ratio"] == pytest.approx(6 / 7)
