"""What the monitor makes of hangs, failures and faults of GPUs: requests to the scheduling loop, each once."""

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from policies.model.ids import ServerIndex
from service.background.health import QUIET_S, HealthMonitor, HealthSink
from service.config.settings import Settings
from service.db.session import Database
from service.db.store import SqlStore
from service.domain.health import Sign
from service.engine.events import Report, ReportKind, RequestKind
from service.engine.ports import Busy
from service.executors.gpu_health import GpuFault, GpuWatch
from tests.scenarios.dsl import Story, cluster, policy


class Loop:
    """A scheduling loop that stands still: gives its engine to readers, and counts how often it is asked for a cycle."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.nudges = 0
        self.busy = False

    def read(self, look: Any) -> Any:
        if self.busy:
            raise Busy("a long cycle")
        return look(self.story.engine)

    def nudge(self) -> None:
        self.nudges += 1


class Ward:
    """A cluster whose engine feeds a monitor; its signs are read from the database."""

    def __init__(self, database: Database, folder: Path, shape: str = "2x4", **settings: Any) -> None:
        chosen = {"health_hang_factor": 10.0, "health_hang_s_min": 60.0, "health_failures_max": 2, **settings}
        self.story = cluster(shape, policy("fifo"))
        self.database = database
        self.counted: list[Sign] = []
        self.faults: list[GpuFault] = []
        watch = GpuWatch([], None)  # type: ignore[arg-type]
        watch.take = self._take  # type: ignore[method-assign]
        self.monitor = HealthMonitor(
            Settings(data_dir=folder, **chosen),
            database,
            lambda: self.story.clock.now_s(),
            self.counted.append,
            (watch, {"GPU-1": ServerIndex(1)}),
        )
        log = self.story.log
        self.story.log = HealthSink(log, self.monitor)  # type: ignore[assignment]
        self.story.engine = self.story._engine()
        self.story.log = log
        self.loop = Loop(self.story)
        self.seen = 0

    def _take(self) -> list[GpuFault]:
        found, self.faults = self.faults, []
        return found

    def run(self) -> list[tuple[int, str, bool]]:
        """One run of the task; the new requests as (server, reason, drain)."""
        self.monitor.run(self.loop)  # type: ignore[arg-type]
        requests = SqlStore(self.database).pending_requests(100)
        new, self.seen = requests[self.seen :], len(requests)
        assert all(request.kind is RequestKind.SERVER_UNHEALTHY for request in new)
        return [(int(request.server or 0), request.note, request.drain) for request in new]

    def progress(self, name: str, *times_s: float, first: int = 0) -> None:
        """Reports of progress, one iteration each."""
        attempt = self.story.attempt(name)
        for number, at_s in enumerate(times_s, start=first):
            self.monitor.progressed([Report(ReportKind.PROGRESS, at_s, attempt, iteration=float(number))])


def test_a_hang_is_a_sign_of_its_server_and_drains_it_if_that_is_wanted(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, health_drain="hang")
    ward.story.job("a", gpus=4, runs_s=1e6).until(1)
    ward.progress("a", 1.0, 11.0, 21.0, 31.0)
    ward.story.until(130)
    assert ward.run() == []
    ward.story.until(140)
    [(server, reason, drain)] = ward.run()
    assert (server, drain, ward.counted, ward.loop.nudges) == (0, True, [Sign.HANG], 1)
    assert reason == "an attempt has been at iteration 3 for 109 s; it usually reports progress every 10 s"
    ward.story.until(1e5)
    assert ward.run() == []


def test_a_hang_on_several_servers_drains_none(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, health_drain="hang")
    ward.story.job("a", gpus=8, runs_s=1e6).until(1)
    ward.progress("a", 1.0, 2.0, 3.0, 4.0)
    ward.story.until(100)
    assert [(server, drain) for server, _, drain in ward.run()] == [(0, False), (1, False)]


def test_a_hang_is_reported_although_the_loop_was_busy(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path)
    ward.story.job("a", gpus=4, runs_s=1e6).until(1)
    ward.progress("a", 1.0, 2.0, 3.0, 4.0)
    ward.story.until(100)
    ward.loop.busy = True
    assert ward.run() == []
    ward.loop.busy = False
    assert [server for server, _, _ in ward.run()] == [0]


def test_a_hang_that_may_drain_does_not_wait_for_one_that_may_not(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, health_drain="hang", health_failures_max=3)
    ward.story.job("wide", gpus=6, runs_s=1e6).job("narrow", gpus=2, runs_s=1e6).until(1)
    ward.progress("wide", 1.0, 2.0, 3.0, 4.0)
    ward.story.until(100)
    assert [(server, drain) for server, _, drain in ward.run()] == [(0, False), (1, False)]
    ward.progress("narrow", 101.0, 102.0, 103.0, 104.0)
    ward.story.until(200)
    assert [drain for _, _, drain in ward.run()] == [True]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_second_hang_of_a_server_is_noted_later_if_it_goes_on(
    database: Database, tmp_path: Path, goes_on: bool
) -> None:
    ward = Ward(database, tmp_path, "1x4", health_failures_max=3)
    ward.story.job("a", gpus=2, runs_s=1e6).job("b", gpus=2, runs_s=1e6).until(1)
    ward.progress("a", 1.0, 2.0, 3.0, 4.0)
    ward.story.until(100)
    assert len(ward.run()) == 1
    ward.progress("b", 101.0, 102.0, 103.0, 104.0)
    ward.story.until(200)
    assert ward.run() == []
    ward.story.until(99 + QUIET_S)
    assert ward.run() == []
    if not goes_on:
        ward.progress("b", 99.0 + QUIET_S, first=4)
    ward.story.until(101 + QUIET_S)
    assert [server for server, _, _ in ward.run()] == ([0] if goes_on else [])
    assert ward.run() == []


def test_a_fault_that_comes_soon_after_another_is_noted_later(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path)
    ward.story.until(1)
    for number in (79, 48, 63):
        ward.faults = [GpuFault("GPU-1", Sign.XID, f"GPU 1: Xid {number}")]
        assert [reason for _, reason, _ in ward.run()] == (["GPU 1: Xid 79"] if number == 79 else [])
    ward.story.until(1 + QUIET_S)
    assert [reason for _, reason, _ in ward.run()] == ["GPU 1: Xid 63"]
    ward.story.until(1 + 2 * QUIET_S)
    assert ward.run() == []


@pytest.mark.parametrize("end", ["ends", "is off"])
def test_no_hang_after_the_end_and_none_where_it_is_off(database: Database, tmp_path: Path, end: str) -> None:
    ward = Ward(database, tmp_path, health_hang_factor=0.0 if end == "is off" else 10.0)
    ward.story.job("a", gpus=4, runs_s=50.0 if end == "ends" else 1e6).until(1)
    ward.progress("a", 1.0, 2.0, 3.0, 4.0)
    ward.story.until(200)
    assert ward.run() == []


def test_progress_that_comes_with_the_end_is_not_watched(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path)
    ward.story.job("a", gpus=4, runs_s=50.0).until(1)
    attempt = ward.story.attempt("a")
    ward.progress("a", 1.0)
    ward.story.until(51)
    # The service passes the last report on after the cycle that it came with.
    ward.monitor.progressed([Report(ReportKind.PROGRESS, 50.0, attempt, iteration=9.0, total_iterations=9.0)])
    assert ward.monitor._hangs._courses == {}


def test_different_programs_that_fail_on_a_server(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, health_drain="failures")
    for name in ("a", "b"):
        ward.story.job(name, gpus=4, runs_s=1e6, max_retries=0, at_s=ward.story.clock.now_s()).until(
            ward.story.clock.now_s() + 1
        )
        ward.story.crash(name).until(ward.story.clock.now_s() + 1)
    [(server, reason, drain)] = ward.run()
    assert (server, drain, ward.counted) == (0, True, [Sign.FAILURES])
    assert reason == "2 programs failed within 3600 s, the last of them: exit code 1, exit code 1"


def test_one_program_that_is_retried_is_no_sign(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path)
    ward.story.job("a", gpus=4, runs_s=1e6, max_retries=10).until(1)
    for at_s in range(2, 8):
        ward.story.crash("a").until(at_s)
    assert ward.run() == []


def test_hangs_count_as_failures(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, "1x4")
    ward.story.job("a", gpus=2, runs_s=1e6).job("b", gpus=2, runs_s=1e6, max_retries=0).until(1)
    ward.progress("a", 1.0, 2.0, 3.0, 4.0)
    ward.story.crash("b").until(100)
    assert sorted(reason.split()[0] for _, reason, _ in ward.run()) == ["2", "an"]


def test_faults_of_gpus_reach_their_server_and_go_on_quietly(database: Database, tmp_path: Path) -> None:
    ward = Ward(database, tmp_path, health_drain="xid, gpu_lost")
    ward.story.until(1)
    xid = GpuFault("GPU-1", Sign.XID, "GPU 1: Xid 79")
    ward.faults = [
        xid,
        GpuFault("GPU-1", Sign.ECC, "GPU 1: 3 errors"),
        GpuFault("GPU-9", Sign.XID, "not in the cluster"),
    ]
    assert ward.run() == [(1, "GPU 1: Xid 79", True), (1, "GPU 1: 3 errors", False)]
    ward.faults = [xid]
    assert ward.run() == []
    ward.story.until(1 + QUIET_S)
    ward.faults = [xid]
    assert ward.run() == [(1, "GPU 1: Xid 79", True)]


def test_a_sign_is_kept_while_the_database_is_away(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward = Ward(database, tmp_path)
    ward.story.until(1)
    ward.faults = [GpuFault("GPU-1", Sign.GPU_LOST, "GPU 1 is lost")]

    def away() -> Any:
        raise OperationalError("INSERT", {}, Exception("away"))

    with monkeypatch.context() as patched:
        patched.setattr(database, "writing", away)
        assert ward.run() == []
        assert ward.counted == []
    assert ward.run() == [(1, "GPU 1 is lost", False)]


def test_two_threads_lose_nothing(database: Database, tmp_path: Path) -> None:
    """The loop feeds while the task runs."""
    ward = Ward(database, tmp_path, "1x4", health_hang_s_min=1.0)
    ward.story.job("a", gpus=4, runs_s=1e6).until(1)
    feeder = threading.Thread(target=lambda: ward.progress("a", *(float(at_s) for at_s in range(1, 3000))))
    feeder.start()
    while feeder.is_alive():
        ward.monitor._hangs.hanging(0.0)
        assert ward.run() == []
    feeder.join()
    ward.story.until(1e5)
    assert len(ward.run()) == 1
