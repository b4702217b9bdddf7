"""What ends while the service is away has ended then, and not when the service is back."""

import pytest

from policies.lifecycle import JobState
from policies.model.reasons import Reason
from service.engine.cycle import EngineSettings
from service.engine.events import Report, ReportKind
from service.engine.reports import EXIT_YIELD
from service.sim.executor import ExecutorCosts
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


@pytest.mark.parametrize(
    ("exit_code", "reason", "state"),
    [
        (1, Reason.CRASHED, JobState.FAILED),
        (127, Reason.COMMAND_NOT_FOUND, JobState.FAILED),
        (EXIT_YIELD, None, JobState.FAILED),
        (1, None, JobState.CANCELLED),
    ],
)
def test_however_a_job_ends_meanwhile_it_has_ended_then(exit_code: int, reason: Reason | None, state: JobState) -> None:
    """It fails without a retry left, cannot be retried, yields more often than it may, or has been cancelled."""
    told = cluster("1x4", policy("fifo_backfill"), settings=EngineSettings(yields_max=0))
    told.job("a", gpus=4, runs_s=1000, max_retries=0).until(10)
    if state is JobState.CANCELLED:
        told.wire.cut = True
        told.cancel("a").until(10)
    ended = Report(ReportKind.EXITED, 60.0, told.attempt("a"), exit_code=exit_code, reason=reason)
    told.says(ended).away_until(500).until(500)
    assert told.state("a") is state
    assert (told.record("a").finished_at_s, told.record("a").held_gpu_s) == (60.0, 240.0)


def test_an_attempt_does_not_end_before_it_has_started() -> None:
    told = cluster("1x4", policy("fifo_backfill"), costs=ExecutorCosts(restart_s=0.0, launch_latency_s=20.0))
    told.job("a", runs_s=1000).until(30)
    told.says(Report(ReportKind.EXITED, 5.0, told.attempt("a"), exit_code=0)).away_until(500).until(500)
    assert told.record("a").finished_at_s == 20.0


@pytest.mark.parametrize("wrong_s", [-1e9, -3600.0, 0.0, 1e9])
def test_a_wrong_clock_ends_no_attempt_before_its_begin_or_after_now(wrong_s: float) -> None:
    told = story().job("a", runs_s=1000).until(5).away_until(50).until(100)
    told.says(Report(ReportKind.EXITED, 100.0 + wrong_s, told.attempt("a"), exit_code=0)).until(100)
    assert told.state("a") is JobState.SUCCEEDED
    assert told.record("a").finished_at_s == (0.0 if wrong_s < 0.0 else 100.0)


def test_an_attempt_that_began_after_the_service_ends_when_that_sees_it() -> None:
    """Whatever the clock of its machine says."""
    told = story().away_until(50).job("a", runs_s=1000, at_s=60).until(100)
    told.says(Report(ReportKind.EXITED, -3500.0, told.attempt("a"), exit_code=0)).until(100)
    assert told.record("a").finished_at_s == 100.0
    assert told.record("a").held_gpu_s == 40.0


def test_a_job_that_ended_while_the_database_was_away_has_ended_then() -> None:
    told = story().job("a", gpus=2, runs_s=100).until(10)
    told.clock.advance(100.0)
    told.clock.advance(150.0)
    told.engine.recover()
    told.until(150).finishes("a")
    assert (told.record("a").finished_at_s, told.record("a").held_gpu_s) == (100.0, 200.0)
