"""What another order would have been worth: causal predictions, a replay that is compared with reality, honest intervals."""

from dataclasses import replace
from typing import Any

import pytest

from policies.model.estimate import Estimate
from service.advice import worth as module
from service.advice.history import GpuTypes, Past, past_of
from service.advice.worth import JOBS_MIN, WorthError, predictions, worth
from service.sim.experiment import SimulationOptions
from service.slurm.accounting import AccountedJob
from tests.unit.service.advice.past_jobs import CLUSTER, past_jobs, slower

TYPES = GpuTypes(CLUSTER, {})
OPTIONS = SimulationOptions(restart_s=60.0)


def past(jobs: list[AccountedJob]) -> Past:
    return past_of(jobs, CLUSTER, TYPES)


@pytest.fixture(scope="module")
def jobs() -> list[AccountedJob]:
    return past_jobs(500)


@pytest.fixture(scope="module")
def estimates(jobs: list[AccountedJob]) -> dict[str, Estimate]:
    """What is predicted of them."""
    return predictions(past(jobs).workload.jobs, 0)


@pytest.fixture(scope="module")
def found(jobs: list[AccountedJob]) -> dict[str, Any]:
    return worth(past(jobs), CLUSTER, OPTIONS)


def test_the_replay_of_a_past_that_followed_slurms_rules_is_exact(found: dict[str, Any]) -> None:
    replay = found["replay"]
    assert replay["verdict"] == "good"
    assert replay["rank_correlation"] == pytest.approx(1.0)
    assert replay["replay_mean_wait_s"] == pytest.approx(replay["real_mean_wait_s"])
    assert found["schedules"]["slurm"]["mean_jct_s"] == pytest.approx(found["schedules"]["real"]["mean_jct_s"])


def test_recurring_jobs_gain_and_the_interval_says_so(found: dict[str, Any]) -> None:
    gain = found["gains"]["asrpt"]
    low, high = gain["interval_90"]
    assert low < gain["mean_jct_change"] < high < -0.05
    schedules = found["schedules"]
    assert schedules["asrpt"]["mean_jct_s"] < schedules["slurm"]["mean_jct_s"]
    assert schedules["asrpt"]["preemptions"] > 0
    assert schedules["asrpt"]["lost_gpu_hours"] > 0.0
    assert schedules["asrpt never"]["preemptions"] == 0
    assert schedules["slurm"]["lost_gpu_hours"] == 0.0
    # The same work is done, and what preemption costs comes on top.
    lost = schedules["asrpt"]["gpu_hours"] - schedules["slurm"]["gpu_hours"]
    assert lost == pytest.approx(schedules["asrpt"]["lost_gpu_hours"])


def test_counts_users_and_sizes_add_up(found: dict[str, Any], jobs: list[AccountedJob]) -> None:
    assert (found["jobs"], found["learnt_from"]) == (375, 125)
    assert (found["servers"], found["gpus"], found["users"]) == (2, 8, 8)
    assert found["from_s"] == jobs[125].submit_s
    assert found["until_s"] == jobs[-1].submit_s
    for measures in found["schedules"].values():
        assert sum(size["jobs"] for size in measures["waits"]) == 375
    users = found["users_changed"]["asrpt"]
    assert users["better"] + users["worse"] + users["alike"] == len(users["changes"]) == 8
    changes = [each["mean_jct_change"] for each in users["changes"]]
    assert changes == sorted(changes)


def test_equal_input_gives_an_equal_answer(jobs: list[AccountedJob], found: dict[str, Any]) -> None:
    assert worth(past(jobs), CLUSTER, OPTIONS) == found


def test_a_prediction_knows_nothing_that_had_not_happened(
    jobs: list[AccountedJob], estimates: dict[str, Estimate]
) -> None:
    rows = past(jobs).workload.jobs
    at = 300
    now_s = jobs[at].submit_s
    # Everything that ends later takes another time, as far as it is not over by then.
    other = [job if job.end_s is not None and job.end_s <= now_s else slower(job, 3.0) for job in jobs]
    assert sum(mine != job for mine, job in zip(other, jobs, strict=True)) > 100
    changed = past(other).workload.jobs
    before, after = estimates, predictions(changed, 0)
    assert len(before) == 375
    known = [row.job_id for row in rows[: at + 1] if row.job_id in before]
    assert len(known) > 150
    assert [before[job] for job in known] == [after[job] for job in known]
    later = [row.job_id for row in rows[at + 50 :]]
    assert [before[job].median for job in later] != [after[job].median for job in later]


def test_predictions_of_recurring_programs_are_near_the_truth(
    jobs: list[AccountedJob], estimates: dict[str, Estimate]
) -> None:
    rows = past(jobs).workload.jobs
    within_2x = [0.5 <= estimates[row.job_id].median / row.duration_s <= 2.0 for row in rows if row.job_id in estimates]
    assert sum(within_2x) / len(within_2x) > 0.9
    assert all(list(each.points) == sorted(each.points) for each in estimates.values())


def test_waits_with_other_causes_are_called_poor(jobs: list[AccountedJob]) -> None:
    """A nightly freeze of half a day, of which the accounting says nothing."""
    frozen = [
        replace(job, start_s=job.start_s + 43_200.0, end_s=job.end_s + 43_200.0)
        if job.start_s is not None and job.end_s is not None and number % 2
        else job
        for number, job in enumerate(jobs)
    ]
    assert worth(past(frozen), CLUSTER, OPTIONS)["replay"]["verdict"] == "poor"


def test_a_few_days_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 250)
    short = past_jobs(300, load=30.0)
    found = worth(past(short), CLUSTER, OPTIONS)
    assert found["gains"]["asrpt"]["interval_90"] is None
    assert found["left_out"] == {"older than the newest 250": 50}


def test_jobs_that_are_all_alike_may_gain_nothing() -> None:
    """With one program of one size no order is better: the interval holds zero, and the text says that it may be chance."""
    alike = [replace(job, user="ann", name="same", gpus=8) for job in past_jobs(300, load=0.2)]
    alike = [replace(job, run_s=600.0, start_s=job.submit_s + 1.0, end_s=job.submit_s + 601.0) for job in alike]
    gain = worth(past(alike), CLUSTER, OPTIONS)["gains"]["asrpt"]
    assert abs(gain["mean_jct_change"]) < 0.02


def test_too_few_jobs_are_refused(jobs: list[AccountedJob]) -> None:
    with pytest.raises(WorthError, match=f"150 jobs with GPUs ran and ended; at least {JOBS_MIN} are needed"):
        worth(past(jobs[:150]), CLUSTER, OPTIONS)
