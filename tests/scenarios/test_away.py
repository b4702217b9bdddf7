"""What ends while the service is away has ended then, and not when the service is back."""

import pytest

from policies.lifecycle import JobState
from service.engine.events import Report, ReportKind
from tests.scenarios.dsl import Story, cluster, policy


def story() -> Story:
    return cluster("1x4", policy("fifo_backfill"))


def test_a_job_that_ended_meanwhile_is_charged_until_its_end() -> None:
    told = story().job("a", gpus=4, runs_s=100).job("b", gpus=2, runs_s=50, at_s=5).until(10).away_until(4000)
    told.until(4000).finishes("a").starts("b")
    ended = told.record("a")
    assert (ended.finished_at_s, ended.held_gpu_s, ended.wasted_gpu_s) == (100.0, 400.0, 0.0)
    assert told.log.events[-2].at_s == 4000.0, "the event has the time at which the service learned of it"
    assert told.record("b").first_started_at_s == 4000.0


def test_a_crash_meanwhile_is_retried_and_charged_until_then() -> None:
    told = story().job("a", runs_s=1000).until(0)
    told.clock.schedule(60.0, 0, lambda: told.crash("a"))
    told.away_until(500).until(500).starts("a")
    assert told.record("a").held_gpu_s == 60.0
    assert told.record("a").finished_at_s is None


@pytest.mark.parametrize("said_s", [-1e9, 1e9])
def test_the_clock_of_another_machine_may_be_off(said_s: float) -> None:
    told = story().job("a", runs_s=1000).until(100)
    told.says(Report(ReportKind.EXITED, said_s, told.attempt("a"), exit_code=0)).until(100)
    assert told.state("a") is JobState.SUCCEEDED
    assert told.record("a").finished_at_s == (0.0 if said_s < 0 else 100.0)
