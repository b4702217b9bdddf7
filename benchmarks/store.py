"""Prints what the database takes: submissions a second, pages, loading at start, and cycles with a long queue.

python -m benchmarks.store [--database-url URL] [--finished 1000000] [--queued 100000] [--clients 16] [--seconds 5]

Without a URL a SQLite file in a folder of its own. The rows are made by copying one, so that a million take seconds; every
measured statement is the service's own. Commits are durable (on PostgreSQL as its server is set up to be).
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import text
from sqlmodel import Session

from benchmarks.calibration import calibrate, line
from benchmarks.filling import fill
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import PredictionRequest
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.registry import make_policy
from predictor.serving import LivePredictor
from service.db import reads
from service.db.backup import back_up
from service.db.check import check
from service.db.group_commit import GroupCommit
from service.db.migrate import upgrade
from service.db.reads import JobFilter
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.engine.ports import CycleBatch, JobWrite
from service.engine.record import JobRecord
from service.engine.world import Costs, world_of
from service.runtime.garbage import made_to_stay

_CLUSTER = Cluster("benchmark", tuple(Server(f"s{number}", 8) for number in range(8)))

PAGE = 51
"""Rows that a page of the default length reads."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", default="", help="an empty database; default: a SQLite file of its own")
    parser.add_argument("--finished", type=int, default=1_000_000, help="ended jobs in the database")
    parser.add_argument("--queued", type=int, default=100_000, help="jobs that wait, for the cycles")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of submissions")
    parser.add_argument("--folder", type=Path, help="where the SQLite file is made; default: the system's for such")
    arguments = parser.parse_args()
    unit_s = calibrate()
    print(line(unit_s))
    with _database(arguments.database_url, arguments.folder) as database:
        print(f"{'what':44}{'p50 ms':>10}{'p99 ms':>10}{'per s':>9}{'units':>9}")
        _flushes(database, unit_s)
        for layers in (0, 50):
            for grouped in (False, True):
                _submissions(database, layers, grouped, arguments.clients, arguments.seconds, unit_s)
        fill(database, arguments.finished, JobState.SUCCEEDED)
        print(f"-- with {arguments.finished:,} ended jobs")
        _submissions(database, 50, True, arguments.clients, arguments.seconds, unit_s)
        _load(database, unit_s, f"{arguments.finished:,} ended jobs")
        _pages(database, unit_s)
        fill(database, arguments.queued, JobState.QUEUED)
        world = _load(database, unit_s, f"and {arguments.queued:,} queued")
        _lead(database, unit_s)
        _note_waiting(world, unit_s)
        _cycles(database, world, unit_s)
        _keep(database, unit_s)


@contextmanager
def _database(url: str, folder: Path | None) -> Iterator[Database]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        chosen = url or f"sqlite:///{own}/sooner.db"
        upgrade(chosen)
        database = open_database(chosen)
        yield database
        database.close()


def _spec(layers: int) -> JobSpec:
    """A graph of so many stages, which is the most that as many layers are stored as."""
    plain = JobSpec("benchmark", "u", 4, command=("true",))
    if not layers:
        return plain
    stages = tuple(Stage(f"layer{index}", 0.004, 0.008, 10_000_000, 1_000_000) for index in range(layers))
    edges = tuple((index, index + 1, 1_000_000) for index in range(layers - 1))
    ones = (1,) * layers
    return replace(plain, gpus=layers, stage_graph=StageGraph(stages, edges), parallelism=ParallelismConfig(ones, ones))


def _print(what: str, times_s: list[float], unit_s: float, per_s: float | None = None) -> None:
    p50_s, p99_s = (float(value) for value in np.percentile(times_s, (50, 99)))
    rate = f"{per_s:9.0f}" if per_s is not None else " " * 9
    print(f"{what:44}{1e3 * p50_s:10.2f}{1e3 * p99_s:10.2f}{rate}{p50_s / unit_s:9.3f}", flush=True)


def _timed(call: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        started_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - started_s)
    return found


def _flushes(database: Database, unit_s: float) -> None:
    """One row a transaction, one after the other: what the disk (and the way to the server) costs."""

    def write() -> None:
        with database.writing() as session:
            session.connection().execute(text("UPDATE properties SET value = value WHERE name = 'none'"))
            session.connection().execute(text("INSERT INTO properties VALUES ('x', 'y')"))
        with database.writing() as session:
            session.connection().execute(text("DELETE FROM properties WHERE name = 'x'"))

    times_s = _timed(write, 100)
    _print("two commits of one row, one client", times_s, unit_s, 2 / float(np.mean(times_s)))


def _submissions(database: Database, layers: int, grouped: bool, clients: int, seconds: float, unit_s: float) -> None:
    """Single submissions by clients that each wait for theirs."""
    store, group = SqlStore(database), GroupCommit(database)
    spec = _spec(layers)
    times_s: list[float] = []
    until_s = time.perf_counter() + seconds

    def alone() -> None:
        with database.writing() as session:
            store.submit(session, [spec], 1.0)

    def joint(session: Session, effects: Sequence[object]) -> list[JobId | Exception]:
        return list(store.submit(session, [spec] * len(effects), 1.0))

    def together() -> None:
        group.run(lambda session: store.submit(session, [spec], 1.0)[0], joint)

    def client() -> None:
        call = together if grouped else alone
        while time.perf_counter() < until_s:
            times_s.extend(_timed(call, 1))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(times_s) / (time.perf_counter() - started_s)
    how = "shared commits" if grouped else "a commit each"
    _print(f"submit, {layers} stages, {clients} clients, {how}", times_s, unit_s, rate)


def _load(database: Database, unit_s: float, what: str) -> list[JobRecord]:
    """What a service reads before its first cycle."""
    world: list[JobRecord] = []

    def load() -> None:
        world[:] = SqlStore(database).load().jobs

    _print(f"load at start, {what}", _timed(load, 3), unit_s)
    return world


def _lead(database: Database, unit_s: float) -> None:
    """What a new leader computes of what it has loaded, before and in its first cycle: the policy's state and a decision."""
    policy, world = make_policy("asrpt"), world_of(SqlStore(database).load(), _CLUSTER, Costs())
    world.now_s = 1.0
    states: list[Any] = []
    with made_to_stay():
        _print(
            f"policy indexes {len(world.jobs):,} queued",
            _timed(lambda: states.append(policy.rebuild(world)), 3),
            unit_s,
        )
        decide = [_timed(partial(policy.decide, world, [], state), 1)[0] for state in states]
    _print("its first decision", decide, unit_s)


def _note_waiting(world: Sequence[JobRecord], unit_s: float) -> None:
    """What the predictor reads of the jobs that wait, in the background after the first cycle."""
    requests = [PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in world]

    def note() -> None:
        with made_to_stay():
            LivePredictor().warm((), requests)

    _print(f"predictor notes {len(requests):,} queued", _timed(note, 3), unit_s)


def _pages(database: Database, unit_s: float) -> None:
    """The first page and one in the middle, as the API reads them."""
    ended = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    cases: dict[str, JobFilter] = {
        "all": JobFilter(),
        "ended": JobFilter(ended),
        "of one user": JobFilter(user="u7"),
        "of one user, failed (none)": JobFilter((JobState.FAILED,), user="u7"),
        "of one program": JobFilter(name="n7"),
    }
    with database.reading() as session:
        middle = int(session.connection().execute(text("SELECT max(id) FROM jobs")).scalar_one()) // 2
    for name, wanted in cases.items():
        for where, before in (("first", None), ("middle", middle)):

            def page(wanted: JobFilter = wanted, before: int | None = before) -> None:
                with database.reading() as session:
                    reads.jobs(session.connection(), wanted, before, PAGE)

            _print(f"page of jobs, {name}, {where}", _timed(page, 50), unit_s)


def _cycles(database: Database, world: list[JobRecord], unit_s: float) -> None:
    """Commits of cycles that change some of the queue."""
    store = SqlStore(database)
    number = store.load().cycle
    for changed, rounds in ((1, 200), (64, 100), (1000, 20)):
        times_s: list[float] = []
        for at in range(rounds):
            number += 1
            jobs = world[(at * changed) % (len(world) - changed) :][:changed]
            writes: dict[JobId, JobWrite] = {}
            for job in jobs:
                job.version += 1
                writes[job.id] = JobWrite(job, job.version - 1)
            batch = CycleBatch(number, 1.0, (), (), writes=writes)
            started_s = time.perf_counter()
            dropped: Any = store.commit(batch)
            times_s.append(time.perf_counter() - started_s)
            assert not dropped
        _print(f"commit of a cycle that changes {changed} jobs", times_s, unit_s)


def _keep(database: Database, unit_s: float) -> None:
    """What `sooner db backup` and `sooner db check` take, beside a service."""
    url = database.engine.url.render_as_string(hide_password=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "backup.zip"
        rows = 0

        def run() -> None:
            nonlocal rows
            rows = sum(part.rows for part in back_up(url, file).tables.values())

        (took_s,) = _timed(run, 1)
        _print(f"backup of {rows:,} rows, {file.stat().st_size / 1e6:.0f} MB", [took_s], unit_s, rows / took_s)
    _print("check", _timed(lambda: check(url), 1), unit_s)


if __name__ == "__main__":
    main()
