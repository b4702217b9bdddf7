"""Reports that come twice, days late, out of order, or from a server that was given up: none of them costs a job anything."""

from dataclasses import replace

import pytest

from policies.lifecycle import JobState
from policies.model.estimate import Unit
from policies.model.ids import ServerIndex
from service.engine.commands import Launch
from service.engine.events import Report, ReportKind
from tests.scenarios.dsl import Story, cluster, policy
from tests.simulation.trouble import HOUR_S, JumpyClock

DAY_S = 86_400.0


def one() -> Story:
    return cluster("1x4", policy("fifo")).job("a", gpus=4, runs_s=100.0)


def test_an_end_told_twice_is_not_forgotten_with_a_stale_row() -> None:
    """The second telling belongs to nobody any more, but until the first is committed it is all that is left of the end."""
    story = one().until(99)
    story.says(Report(ReportKind.EXITED, 100.0, story.attempt("a"), exit_code=0))
    story.memory.bump(story.ids["a"])
    story.until(101)
    assert story.state("a") is JobState.SUCCEEDED
    assert story.record("a").attempts == 1


@pytest.mark.parametrize("days", [0.01, 3.0])
def test_an_end_that_is_days_late_counts_as_what_it_was(days: float) -> None:
    """Told days later, it is still a success, of the work that was done then."""
    story = one().until(50)
    told, story.wire.inner._report = [], lambda report: told.append(report)  # type: ignore[method-assign,assignment]
    story.until(100 + days * DAY_S)
    assert story.state("a") is JobState.RUNNING
    for report in told:
        story.says(report)
    story.until(100 + days * DAY_S + 1)
    assert story.state("a") is JobState.SUCCEEDED
    record = story.record("a")
    assert (record.service_s, record.attempts) == (pytest.approx(100.0), 1)


def test_a_start_that_comes_after_the_end_starts_nothing() -> None:
    story = one().until(100)
    assert story.state("a") is JobState.SUCCEEDED
    story.says(Report(ReportKind.STARTED, 0.0, story.attempt("a"))).until(200)
    assert story.state("a") is JobState.SUCCEEDED
    assert len([command for command in story.wire.sent if isinstance(command, Launch)]) == 1


def test_a_server_lost_for_ten_minutes_comes_back_with_its_process_alive() -> None:
    """Lost is not dead: while nobody knows what became of the attempt, there is no second one; and then it simply goes on."""
    story = cluster("2x4", policy("fifo")).job("a", gpus=4, runs_s=1000.0).until(100)
    home = story.record("a").placement
    assert home is not None
    story.says(Report(ReportKind.SERVER_DOWN, 100.0, server=ServerIndex(home.servers[0])))
    story.job("other", gpus=4, runs_s=10.0, at_s=100.0).until(100).starts("other").on("other", 1 - home.servers[0])
    story.until(700)
    assert story.state("a") is JobState.RUNNING, "nobody has said that it is dead"
    assert [str(command.attempt) for command in story.wire.sent if isinstance(command, Launch)] == ["1.1", "2.1"]
    story.says(Report(ReportKind.SERVER_UP, 700.0, server=ServerIndex(home.servers[0]))).until(1000)
    assert story.state("a") is JobState.SUCCEEDED
    assert story.record("a").attempts == 1


@pytest.mark.parametrize("wrong_s", [-3600.0, 3600.0])
def test_a_machine_whose_clock_is_wrong_by_an_hour_costs_nobody_walltime(wrong_s: float) -> None:
    """Its start an hour ago would have used the walltime up; its start in an hour would let the job run an hour longer."""
    story = cluster("1x4", policy("fifo")).job("a", gpus=4, runs_s=100.0, walltime_s=200.0)
    said = story.wire.inner._report
    story.wire.inner._report = lambda report: said(replace(report, at_s=report.at_s + wrong_s))  # type: ignore[method-assign]
    story.until(50)
    assert story.engine.world.jobs[story.ids["a"]].done(Unit.SERVICE_S, 50.0) == 50.0
    story.until(101)
    assert story.state("a") is JobState.SUCCEEDED
    assert story.record("a").held_gpu_s == 400.0


def test_a_clock_that_is_set_back_makes_no_time_negative() -> None:
    story = one()
    story.service_clock = jumpy = JumpyClock(story.clock)
    jumpy.offset_s = HOUR_S
    story.engine = story._engine()
    story.until(50)
    jumpy.offset_s = 0.0
    story.until(101)
    record = story.record("a")
    assert record.state is JobState.SUCCEEDED
    assert record.held_gpu_s >= 0.0 and record.service_s >= 0.0 and record.wasted_gpu_s >= 0.0
