"""Promotion: the replay of the tested jobs, and the decision by its completion times."""

from dataclasses import replace
from typing import Any

import pytest

from policies.base import Policy
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Unit
from policies.registry import make_policy
from predictor.replay_sheet import SheetJob
from predictor.rows import EndedRow, Submission
from service.background.promotion import decide
from service.sim.experiment import SimulationOptions
from service.sim.promotion import rehearse

ONE_GPU = Cluster("one", (Server("s0", 1),))
FREE = SimulationOptions(restart_s=0.0)


def _job(job: int, service_s: float, said: dict[str, float], unit: Unit = Unit.SERVICE_S, gpus: int = 1) -> SheetJob:
    submission = Submission(job, "ada", "", "p", gpus, submitted_at_s=1000.0)
    iterations = service_s * 2.0 if unit is Unit.ITERATIONS else None
    row = EndedRow(submission, 5000.0, iterations, service_s)
    return SheetJob(row, unit, {arm: [point] * 32 for arm, point in said.items()})


@pytest.mark.parametrize("unit", [Unit.SERVICE_S, Unit.ITERATIONS])
def test_each_arm_uses_its_own_predictions(unit: Unit) -> None:
    """One GPU, three jobs at once. Right: 1, 1 + 5, 1 + 5 + 10 s. Upside down: 10, 10 + 5, 10 + 5 + 1 s."""
    scale = 2.0 if unit is Unit.ITERATIONS else 1.0
    sheet = [
        _job(number, service_s, {"right": service_s * scale, "wrong": scale * 100.0 / service_s}, unit)
        for number, service_s in enumerate((10.0, 5.0, 1.0))
    ]
    found = rehearse(sheet, ONE_GPU, lambda: make_policy("sjf", {}), FREE)
    assert found.mean_jct_s == pytest.approx({"right": 23.0 / 3.0, "wrong": 41.0 / 3.0})
    assert (found.jobs, found.skipped, found.policy) == (3, 0, "sjf")
    assert found.to_json()["mean_jct_s"] == {"right": 7.667, "wrong": 13.667}


def test_jobs_that_do_not_fit_the_present_cluster_are_left_out() -> None:
    sheet = [_job(1, 10.0, {"a": 10.0}), _job(2, 10.0, {"a": 10.0}, gpus=8)]
    found = rehearse(sheet, ONE_GPU, lambda: make_policy("fifo", {}), FREE)
    assert (found.jobs, found.skipped, found.mean_jct_s) == (1, 1, {"a": 10.0})
    with pytest.raises(ValueError, match="no job of the replay fits"):
        rehearse(sheet[1:], ONE_GPU, lambda: make_policy("fifo", {}), FREE)
    with pytest.raises(ValueError, match="no jobs to replay"):
        rehearse([], ONE_GPU, lambda: make_policy("fifo", {}), FREE)


def test_the_best_arm_is_replayed_with_the_other_over_run_rules() -> None:
    """Both were said to take 10 s. When the short one comes at 12 s, the long one is taken to end by 20 s or by 24 s."""
    jobs = [_job(1, 100.0, {"a": 10.0}), _job(2, 9.0, {"a": 9.0})]
    later = replace(jobs[1].row, submission=replace(jobs[1].row.submission, submitted_at_s=1012.0))
    sheet = [jobs[0], replace(jobs[1], row=later)]

    def make(rule: str) -> Policy[Any]:
        return make_policy("srtf", {"over_run": rule})

    found = rehearse(
        sheet,
        ONE_GPU,
        lambda: make("double"),
        FREE,
        {"attained": lambda: make("attained"), "double": lambda: make("double")},
    )
    # Doubled, it has 8 s left, less than 9: the short one waits until it looks long again, at 20 s, and ends at 29 s.
    assert found.mean_jct_s == {"a": pytest.approx((109.0 + 17.0) / 2)}
    # By what it has had, it has as much left: past its grace of a quarter, at 12.5 s, the short one goes first.
    assert found.over_run_mean_jct_s["attained"] == pytest.approx((109.0 + 9.5) / 2)
    assert found.over_run_mean_jct_s["double"] == found.mean_jct_s["a"]
    assert found.to_json()["over_run_mean_jct_s"] == {"attained": 59.25, "double": 63.0}


@pytest.mark.parametrize(
    ("others", "promoted"),
    [
        ({"baselines": 1400.0}, True),
        ({"baselines": 1190.0}, True),  # one percent is chance
        ({"baselines": 1180.0}, False),
        ({"baselines": 1400.0, "champion": 1190.0}, True),
        ({"baselines": 1400.0, "champion": 1180.0}, False),
        ({"baselines": 1180.0, "champion": 1400.0}, False),
    ],
)
def test_the_completion_time_decides(others: dict[str, float], promoted: bool) -> None:
    assert decide({"jobs": 2000, "mean_jct_s": {"new": 1200.0, **others}}).promoted is promoted


def test_the_decision_contains_its_numbers() -> None:
    decision = decide({"jobs": 2000, "mean_jct_s": {"baselines": 1400.0, "champion": 1300.0, "new": 1234.4}})
    assert decision.detail == (
        "JCT 1,234 s against 1,300 s of the champion and 1,400 s of the baselines alone, replaying 2,000 jobs"
    )


@pytest.mark.parametrize(
    ("attained_s", "advice"), [(1200.0, ""), (1221.0, ""), (1180.0, "over_run=attained would have")]
)
def test_the_decision_names_a_better_over_run_rule(attained_s: float, advice: str) -> None:
    jct_s = {"baselines": 1400.0, "new": 1200.0}
    detail = decide({"jobs": 9, "mean_jct_s": jct_s, "over_run_mean_jct_s": {"attained": attained_s}}).detail
    assert ("over_run" in detail) == bool(advice)
    assert advice in detail
