"""What a poll asks of a Slurm with many jobs. ``benchmarks.slurm_poll`` measures what it costs."""

import pytest

from benchmarks.slurm_poll import submit_many
from service.executors.cluster.driver import EngineEnd, EngineJobState
from tests.engines.slurm_cluster import SlurmCluster, wait_for

JOBS = 100
POLLS = 10
_RUNNING = 8
"""Every second job lasts, so they are on every second node."""


def test_a_poll_asks_for_the_list_alone_while_one_job_changes(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = submit_many(slurm_cluster, JOBS)

    def in_state(state: EngineJobState) -> list[str]:
        return [job.id for job in driver.jobs() if job.state is state]

    wait_for(lambda: len(in_state(EngineJobState.RUNNING)) == _RUNNING, "the nodes are full")
    wait_for(lambda: driver.jobs() is driver.jobs(), "nothing changes")
    waiting = in_state(EngineJobState.PENDING)
    assert len(waiting) == JOBS // 2 - _RUNNING
    asked: list[tuple[str, ...]] = []
    run = slurm_cluster.commands.run

    def noted(command: str, *arguments: str, **named: object) -> str:
        asked.append((command, *arguments))
        return run(command, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(slurm_cluster.commands, "run", noted)
    for _ in range(POLLS):
        cancelled = waiting.pop()
        run("scancel", cancelled)
        assert next(job.end for job in driver.jobs() if job.id == cancelled) is EngineEnd.CANCELLED
    assert asked == [("squeue", "--all", "--noheader", "--states=all")] * POLLS
