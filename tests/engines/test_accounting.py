"""The accounting of a real Slurm with a real database: what sacct prints, and what is read from it step by step."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from service.advice.accounting import AccountingError, AccountingStore
from service.domain.source_rows import SkipRow
from service.slurm.accounting import AccountedJob, answered_rows, parse_row, sacct_arguments
from service.slurm.commands import SlurmAway, SlurmCommands
from tests.engines.accounted_cluster import AccountedCluster
from tests.engines.accounted_cluster import missing as database_missing
from tests.engines.run import REQUIRED
from tests.engines.slurm_cluster import SlurmCluster, alone_on_network, missing, wait_for


@pytest.fixture(scope="module")
def accounted() -> Iterator[AccountedCluster]:
    lacking = missing() or database_missing()
    lacking = lacking or ("" if alone_on_network() else "the tests with engines run by make test-engines")
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    cluster = AccountedCluster()
    yield cluster
    cluster.close()


def submit(cluster: SlurmCluster, name: str, script: str, *options: str) -> str:
    """The id of the job that runs the script."""
    text = f"#!/bin/sh\n{script}\n".encode()
    arguments = ("--parsable", "--mem=1000", "--output=/dev/null", f"--job-name={name}", *options)
    return cluster.commands.run("sbatch", *arguments, input=text).strip()


def running(cluster: SlurmCluster, job: str) -> bool:
    return any(each.id == int(job) and each.state == "RUNNING" for each in cluster.slurm.jobs())


def rows_now(cluster: SlurmCluster) -> list[AccountedJob]:
    text = cluster.commands.run("sacct", *sacct_arguments(time.time() - 600.0, time.time() + 5.0))
    folder = os.environ.get("RECORD_ANSWERS")
    if folder:
        (Path(folder) / "sacct-22.05.8.txt").write_text(text)
    return [row for _, cells in answered_rows(text) if (row := _whole(cells)) is not None]


def _whole(cells: Mapping[str, str]) -> AccountedJob | None:
    """The row, or None for one that the database is still writing: it stores a final state just before the end."""
    try:
        return parse_row(cells)
    except SkipRow as reason:
        if str(reason) != "End is not a date and time":
            raise
        return None


def test_every_end_of_a_job_is_read_as_it_was(accounted: AccountedCluster, tmp_path: Path) -> None:
    ok = submit(accounted, "ok", "sleep 1", "--gres=gpu:a100:2", "--time=5")
    bars = submit(accounted, "a|b", "sleep 1; exit 3", "--gres=gpu:1", "--time=1-00:00:00")
    no_gpu = submit(accounted, "no gpu", "sleep 0")
    array = submit(accounted, "sweep", "sleep 1", "--gres=gpu:1", "--array=1-2")
    gang = submit(accounted, "gang", "sleep 600", "--nodes=2", "--nodelist=node2,node3", "--gres=gpu:2")
    again = submit(accounted, "again", "test $SLURM_RESTART_COUNT || sleep 600; sleep 1", "--gres=gpu:4", "--requeue",
                   "--nodelist=node4")  # fmt: skip
    never = submit(accounted, "never", "sleep 1", "--gres=gpu:4", "--nodes=4")
    wait_for(lambda: running(accounted, gang) and running(accounted, again), "gang and again run")
    accounted.commands.run("scancel", never, gang)
    accounted.commands.run("scontrol", "requeue", again)
    finished = wait_for(lambda: _ended(accounted, {ok, bars, no_gpu, f"{array}_1", f"{array}_2", gang, again, never}),
                        "all ends are accounted")  # fmt: skip
    one = finished[ok, "COMPLETED"]
    assert (one.gpus, one.gpu_type, one.nodes, one.time_limit_s, one.user) == (2, "a100", one.nodes, 300.0, "root")
    assert len(one.nodes) == one.node_count == 1
    assert one.start_s is not None
    assert one.end_s is not None
    assert one.run_s == one.end_s - one.start_s
    failed = finished[bars, "FAILED"]
    assert (failed.name, failed.final_state, failed.time_limit_s) == ("a|b", "failed", 86_400.0)
    assert finished[f"{array}_2", "COMPLETED"].name == "sweep"
    assert finished[no_gpu, "COMPLETED"].gpus == 0
    stopped = finished[gang, "CANCELLED"]
    assert (stopped.gpus, stopped.nodes, stopped.final_state) == (4, ("node2", "node3"), "killed")
    waited = finished[never, "CANCELLED"]
    assert (waited.run_s, waited.start_s, waited.nodes) == (0.0, None, ())
    cut, last = finished[again, "REQUEUED"], finished[again, "COMPLETED"]
    assert cut.final_state is None
    assert last.continues(cut)
    assert last.submit_s >= cut.submit_s

    store = AccountingStore(tmp_path / "accounting.db")
    first = store.update(accounted.commands, time.time(), history_s=3600.0)
    read = {job.id: job for job in store.jobs()}
    assert read.keys() == {ok, bars, f"{array}_1", f"{array}_2", gang, again, never}, "only jobs with GPUs"
    assert first.ended == first.new == len(read) + 1, "the requeued job has run twice"
    assert (read[again].state, read[again].submit_s, read[again].run_s) == ("COMPLETED", cut.submit_s, last.run_s)
    later = submit(accounted, "later", "sleep 1", "--gres=gpu:1")
    wait_for(lambda: _ended(accounted, {later}), "the later job has ended")
    assert store.update(accounted.commands, time.time(), history_s=3600.0).new == 1
    assert {job.id for job in store.jobs()} == {*read, later}
    store.close()


def _ended(cluster: SlurmCluster, wanted: set[str]) -> dict[tuple[str, str], AccountedJob] | None:
    """The rows by id and state, once a run of each job has ended for good."""
    rows = {(row.id, row.state): row for row in rows_now(cluster)}
    done = {row.id for row in rows.values() if row.final_state is not None and row.state != "NODE_FAIL"}
    return rows if wanted <= done else None


def test_an_end_while_the_database_was_away_is_read_later(accounted: AccountedCluster, tmp_path: Path) -> None:
    store = AccountingStore(tmp_path / "accounting.db")
    store.update(accounted.commands, time.time(), history_s=3600.0)
    accounted.stop_database()
    with pytest.raises(AccountingError, match="sacct: "):
        store.update(accounted.commands, time.time(), history_s=3600.0)
    with pytest.raises(SlurmAway):
        accounted.commands.run("sacct", *sacct_arguments(time.time() - 600.0, time.time()))
    unseen = submit(accounted, "unseen", "sleep 1", "--gres=gpu:1")
    wait_for(lambda: all(job.ended for job in accounted.slurm.jobs() if job.id == int(unseen)), "it has ended")
    accounted.start_database()

    def seen() -> bool:
        store.update(accounted.commands, time.time(), history_s=3600.0)
        return unseen in {job.id for job in store.jobs()}

    wait_for(seen, "the end that Slurm reported later is read")
    store.close()


def test_slurm_without_a_database_says_so(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    store = AccountingStore(tmp_path / "accounting.db")
    commands: SlurmCommands = slurm_cluster.commands
    with pytest.raises(AccountingError, match="no accounting database"):
        store.update(commands, time.time())
    store.close()
