"""The cluster executor against the contracts, over an engine that runs real node programs on this machine."""

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId
from policies.model.job import PreemptionSignal
from policies.model.reasons import Reason
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, ExecutorUnavailable
from service.executors import fencing
from service.executors import folder as names
from service.executors.cluster import attempt as attempt_module
from service.executors.cluster import calls as calls_module
from service.executors.cluster import folder as shared
from service.executors.cluster.driver import EngineJobState, NodeState
from service.executors.cluster.shared import AttemptFolder, LaunchRecord
from service.executors.fencing import Fence
from tests.cluster_engine import ProcessEngine, processes_of
from tests.cluster_house import GRACE_S, ClusterBench, ClusterHouse, LeasedClusterBench, process_house
from tests.conformance.cluster_suite import ClusterFaultsContract
from tests.conformance.executor_suite import ExecutorContract, Watcher
from tests.conformance.live_executor_suite import (
    AttemptFilesContract,
    AttemptLeasesContract,
    AttemptLogsContract,
    LiveExecutorContract,
    ProgressInputContract,
)
from tests.faulty_driver import Fault
from tests.local_executor import DEADLINE_S, launch, wait_for

_LEASE_S = 15.0


class TestClusterExecutor(
    ExecutorContract, LiveExecutorContract, AttemptLogsContract, AttemptFilesContract, ProgressInputContract
):
    swarm_seeds = 2
    swarm_steps = 20

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[ClusterBench]:
        engine = ProcessEngine()
        house = process_house(tmp_path / "shared", engine)
        yield ClusterBench(house)
        house.close()
        engine.close()


class TestClusterLeases(AttemptLeasesContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LeasedClusterBench]:
        engine = ProcessEngine()
        house = process_house(tmp_path / "shared", engine, lease_s=LeasedClusterBench.lease_s)
        yield LeasedClusterBench(house)
        house.close()
        engine.close()

    @pytest.fixture
    def watcher(self, bench: LeasedClusterBench) -> Watcher:
        return Watcher(bench)


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    """An engine on this machine."""
    engine = ProcessEngine(kill_wait_s=5.0)
    yield engine
    engine.close()


@pytest.fixture
def house(tmp_path: Path, engine: ProcessEngine) -> Iterator[ClusterHouse]:
    """A house over it, whose attempts have a short lease that a busy machine can still renew in time."""
    house = process_house(tmp_path / "shared", engine, lease_s=_LEASE_S)
    yield house
    house.close()


class TestClusterFaults(ClusterFaultsContract):
    @pytest.fixture
    def controls(self, engine: ProcessEngine) -> ProcessEngine:
        return engine


class TestFaultsThatNoRealEngineCanBeGiven:
    """What needs an engine whose every step the test decides."""

    waits = "import signal\nwhile True: signal.sigtimedwait([], 0.05)"

    def test_processes_that_the_engine_does_not_see_end_before_the_end_is_reported(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        house.executor.send([launch(house.command_of_runs(self.waits), gpus=(1, 1))])
        house.wait_started()
        engine.lose_node("node2", alive=True)
        house.until(lambda: engine.states("1.1") == [EngineJobState.ENDED], "the end in the engine")
        end = house.wait_end()
        assert processes_of(str(house.folder)) == []
        assert (end.kind, end.server) == (ReportKind.LOST, 1)

    def test_a_server_that_hangs_holds_its_attempt_until_the_lease_is_over(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        house.executor.send(
            [launch(house.command_of_runs(self.waits)), launch(house.command_of_runs(), job=2, gpus=(0, 1))]
        )
        house.wait_started()
        assert house.wait_end("2.1").exit_code == 0
        engine.suspend("node1")
        engine.lose_node("node1", alive=True)
        end = house.wait_end()
        stopped_s = (house.inbox() / "stop.json").stat().st_mtime
        assert (end.kind, end.server) == (ReportKind.LOST, 0)
        assert end.at_s - stopped_s > _LEASE_S + 2 * GRACE_S, "only the lease proves that it has ended"
        engine.suspend("node1", resume=True)
        wait_for(lambda: processes_of(str(house.folder)) == [], "its processes to end when it goes on")

    def test_a_running_attempt_that_the_engine_has_forgotten_is_stopped(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        house.executor.send([launch(house.command_of_runs(self.waits))])
        house.wait_started()
        engine.restart(forget="all")
        end = house.wait_end()
        assert (end.kind, processes_of(str(house.folder)), house.runs()) == (ReportKind.LOST, [], 1)
        assert "forgotten" in end.detail

    def test_a_waiting_attempt_that_the_engine_has_forgotten_is_a_failed_launch(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        engine.nodes["node1"] = NodeState.DRAINED
        house.executor.send([launch(house.command_of_runs(self.waits))])
        house.until(lambda: engine.states("1.1") == [EngineJobState.PENDING], "it to wait")
        engine.restart(forget="all")
        end = house.wait_end()
        assert (end.kind, house.runs()) == (ReportKind.LAUNCH_FAILED, 0)
        engine.nodes["node1"] = NodeState.UP

    def test_what_the_engine_does_not_start_is_given_up(
        self, house: ClusterHouse, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attempt_module, "START_S", 0.5)
        engine.nodes["node1"] = NodeState.DRAINED
        house.executor.send([launch(house.command_of_runs())])
        end = house.wait_end()
        assert (end.kind, end.reason, end.server) == (ReportKind.LOST, Reason.NODE_LOST, 0), "it uses up no retry"
        assert "has not started it for 0.5 s" in end.detail
        assert engine.states("1.1") == [EngineJobState.ENDED]

    def test_an_engine_that_takes_no_submission_frees_the_gpus(
        self, house: ClusterHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls_module, "_PAUSE_MAX_S", 0.01)
        house.faults.next("submit", *[Fault.TIMES_OUT] * calls_module.TRIES_MAX)
        house.executor.send([launch(house.command_of_runs())])
        end = house.wait_end()
        assert (end.kind, end.reason, end.server) == (ReportKind.LOST, Reason.NODE_LOST, 0), "it uses up no retry"
        assert end.detail == "10 submits in a row failed; the last: may not have been submitted: submit timed out"
        assert (house.runs(), house.faults.effects["submit"]) == (0, 0)

    def test_an_engine_that_refuses_for_now_again_and_again_frees_the_gpus(
        self, house: ClusterHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls_module, "_PAUSE_MAX_S", 0.01)
        house.faults.next("submit", *[Fault.NOT_NOW] * calls_module.TRIES_MAX)
        house.executor.send([launch(house.command_of_runs())])
        end = house.wait_end()
        assert (end.kind, end.reason, end.server) == (ReportKind.LOST, Reason.NODE_LOST, 0), "it uses up no retry"
        why = "cannot be submitted now: submit is refused for now"
        assert end.detail == f"10 submits in a row failed; the last: {why}"
        assert (house.runs(), house.faults.effects["submit"]) == (0, 0)

    def test_a_few_submits_that_fail_end_no_attempt(self, house: ClusterHouse, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls_module, "_PAUSE_MAX_S", 0.01)
        house.faults.next("submit", *[Fault.TIMES_OUT] * (calls_module.TRIES_MAX - 1))
        assert (house.run(house.command_of_runs()).exit_code, house.runs()) == (0, 1)

    @pytest.mark.parametrize(("fault", "reason"), [(errno.EDQUOT, Reason.DISK_FULL), (errno.EIO, Reason.LAUNCH_FAILED)])
    def test_a_submission_that_cannot_be_noted_frees_the_gpus(
        self, house: ClusterHouse, monkeypatch: pytest.MonkeyPatch, fault: int, reason: Reason
    ) -> None:
        real = AttemptFolder.write_launch

        def write(folder: AttemptFolder, record: LaunchRecord) -> None:
            if record.submissions:
                raise OSError(fault, os.strerror(fault))
            real(folder, record)

        monkeypatch.setattr(AttemptFolder, "write_launch", write)
        monkeypatch.setattr(calls_module, "_PAUSE_MAX_S", 0.01)
        house.executor.send([launch(house.command_of_runs())])
        end = house.wait_end()
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, reason)
        assert os.strerror(fault) in end.detail
        assert (house.runs(), house.faults.effects["submit"]) == (0, 0)

    def test_a_folder_that_hangs_blinds_no_other_attempt(
        self, house: ClusterHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, real = threading.Event(), names.has

        def hangs(folder: Path, name: str) -> bool:
            if folder.parent.parent.name == "1.1":
                assert gate.wait(DEADLINE_S)
            return real(folder, name)

        house.executor.send([launch(house.command_of_runs(self.waits))])
        house.wait_started()
        monkeypatch.setattr(names, "has", hangs)
        for job in range(2, 8):
            assert house.run(house.command_of_runs(), job=job).exit_code == 0
        assert house.executor.observed()[AttemptId("1.1")] is AttemptStatus.RUNNING
        gate.set()

    def test_the_lease_is_renewed_whatever_hangs(self, house: ClusterHouse) -> None:
        house.faults.next("jobs", Fault.HANGS)
        house.faults.next("nodes", Fault.HANGS)
        house.faults.next("submit", *[Fault.HANGS] * 10)
        house.executor.send([launch(house.command_of_runs(), job=job) for job in range(1, 11)])
        wait_for(lambda: house.faults.hanging == 10, "eight submits and both polls to hang")
        lease = house.folder / "lease"
        before = lease.stat().st_mtime_ns
        house.executor.renew_leases()
        wait_for(lambda: lease.stat().st_mtime_ns > before, "the lease to be renewed")
        house.faults.release()

    def test_a_leader_that_hangs_with_the_fence_holds_up_nothing_that_runs(self, house: ClusterHouse) -> None:
        go = house.folder / "go"
        house.executor.send(
            [launch(house.command_of_runs(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"))]
        )
        house.wait_started()
        jobs = range(2, 14)  # more than there are threads
        with Fence(house.folder / "fence").held():
            house.executor.send([launch(house.command_of_runs(), job=job) for job in jobs])
            go.touch()
            assert (house.wait_end().exit_code, house.runs()) == (0, 1)
        assert [house.wait_end(f"{job}.1").exit_code for job in jobs] == [0] * len(jobs)

    def test_the_engine_is_told_how_long_an_attempt_takes_at_most(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        """Its walltime, its grace period, and a quarter of an hour for what comes before and after."""
        warned = PreemptionSignal(grace_s=40.0)
        house.executor.send(
            [
                launch(house.command_of_runs(), walltime_s=600.0, preemption=warned),
                launch(house.command_of_runs(), job=2),
            ]
        )
        assert [house.wait_end(attempt).exit_code for attempt in ("1.1", "2.1")] == [0, 0]
        assert (engine.limits_s("1.1"), engine.limits_s("2.1")) == ([1540.0], [None])

    def test_a_launch_that_a_former_leader_is_still_preparing_never_runs_after_its_stop(
        self, tmp_path: Path, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = process_house(tmp_path / "apart", engine, lease_s=_LEASE_S, run_as_users={"tester": "nobody"})
        entered, gate = self.hold_first(monkeypatch, shared, "make_inbox")
        waiting = self.count_calls_under_way(monkeypatch)
        former = house.executor
        former.send([launch(house.command_of_runs(self.waits), fencing_token=1)])
        assert entered.wait(DEADLINE_S)
        house.faults.next("submit", Fault.HANGS)
        house.new_executor()
        house.settle_servers()
        house.stop(token=2)
        house.until(lambda: waiting() or house.reports, "the stop to wait for the former leader, or to be carried out")
        gate.set()
        house.until(lambda: house.faults.hangs() or former.refused_commands, "the former leader to submit or give up")
        end = house.wait_end()
        house.faults.release()
        house.until(
            lambda: house.faults.effects["submit"] or former.refused_commands, "the submission, if there is one"
        )
        house.until(lambda: set(engine.states("1.1")) <= {EngineJobState.ENDED}, "the end of the submission")
        assert (end.kind, end.detail, house.runs()) == (ReportKind.EXITED, names.STOPPED_FIRST, 0)
        house.close()

    def test_no_user_can_make_the_checkpoint_folder_of_another_ones_job(
        self, tmp_path: Path, engine: ProcessEngine
    ) -> None:
        house = process_house(tmp_path / "apart", engine, lease_s=_LEASE_S, run_as_users={"tester": "nobody"})
        checkpoints = house.folder / "checkpoints"
        (checkpoints / "1").mkdir()  # a name that can be guessed
        if os.geteuid() == 0:
            os.chown(checkpoints / "1", 1, 1)
        keep = "import os; open(os.environ['SOONER_CHECKPOINT_DIR'] + '/kept', 'a').write('x')"
        for number in (1, 2):
            house.executor.send([launch(house.command_of_runs(keep), number=number)])
            end = house.wait_end(f"1.{number}")
            assert (end.kind, end.exit_code) == (ReportKind.EXITED, 0)
            house.executor.acknowledge([end])
        (kept,) = checkpoints.glob("*/kept")
        assert (kept.read_text(), stat.S_IMODE(kept.parent.stat().st_mode)) == ("xx", 0o700)
        assert re.fullmatch("1-[0-9a-f]{32}", kept.parent.name)
        assert stat.S_IMODE(checkpoints.stat().st_mode) == 0o1733, "others cannot list the names"
        assert house.executor.prune([JobId(1)]) == 2
        assert not kept.parent.exists()
        house.close()

    @staticmethod
    def hold_first(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> tuple[Event, Event]:
        """Hold the first call of a function; returns what is set when it has begun, and what lets it go on."""
        entered, gate, real = Event(), Event(), getattr(module, name)

        def held(*args: Any) -> Any:
            if not entered.is_set():
                entered.set()
                assert gate.wait(DEADLINE_S)
            return real(*args)

        monkeypatch.setattr(module, name, held)
        return entered, gate

    @staticmethod
    def count_calls_under_way(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
        """How many threads wait for the fence."""
        under_way: list[int] = []
        real = fcntl.flock

        def flock(descriptor: int, how: int) -> None:
            under_way.append(descriptor)
            real(descriptor, how)  # one that waits tries again, and fails until it has the fence
            under_way.remove(descriptor)

        monkeypatch.setattr(fencing.fcntl, "flock", flock)
        return lambda: len(under_way)

    def test_changes_of_servers_are_reported_until_acknowledged(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        engine.nodes["node2"] = NodeState.DRAINED
        engine.nodes["node3"] = NodeState.DOWN
        engine.nodes["node9"] = NodeState.UP
        found: dict[ReportKind, Report] = {}
        house.until(lambda: found.update({r.kind: r for r in house.reports if r.attempt is None}) or len(found) == 3)
        assert (found[ReportKind.SERVER_DRAINED].server, found[ReportKind.SERVER_DOWN].server) == (1, 2)
        assert found[ReportKind.SERVER_DRAINED].detail == "node2 is drained"
        added = found[ReportKind.SERVER_ADDED].server_spec
        assert added is not None
        assert (added.name, added.gpus) == ("node9", 4)
        assert {report.kind for report in house.poll()} == set(found), "repeated until acknowledged"
        house.executor.acknowledge(list(found.values()))
        assert house.poll() == []
        engine.nodes["node2"] = NodeState.UP
        assert house.wait_report(ReportKind.SERVER_RETURNED, attempt=None).server == 1
        del engine.nodes["node1"]
        gone = house.wait_report(ReportKind.SERVER_DOWN, attempt=None)
        house.until(lambda: any(r.server == 0 and r.kind is ReportKind.SERVER_DOWN for r in house.reports))
        assert "no such server" in next(r.detail for r in house.reports if r.server == 0)
        assert gone.kind is ReportKind.SERVER_DOWN

    def test_added_servers_are_used_after_the_cluster_has_them(
        self, house: ClusterHouse, engine: ProcessEngine
    ) -> None:
        engine.nodes["node9"] = NodeState.UP
        added = house.wait_report(ReportKind.SERVER_ADDED, attempt=None)
        assert added.server_spec is not None
        larger = Cluster("larger", (*house.cluster.servers, added.server_spec))
        house.executor.use_cluster(larger)
        house.executor.acknowledge([added])
        end = house.run(house.command_of_runs("import os; print(os.environ['NODE_RANK'])"), gpus=(0, 0, 0, 0, 2))
        assert (end.exit_code, house.runs()) == (0, 1)

    def test_an_idle_service_asks_the_engine_nothing_and_knows_all_when_it_leads(self, house: ClusterHouse) -> None:
        former = house.executor
        house.executor.send([launch(house.command_of_runs(self.waits))])
        house.wait_started()
        other = house.new_executor()
        asked = house.faults.effects["jobs"]
        former.close()
        other.renew_leases()
        assert house.faults.effects["jobs"] - asked <= 1, "the one that does not lead asks nothing"
        with pytest.raises(ExecutorUnavailable):
            other.observed()
        house.settle_servers()
        assert set(other.observed()) == {"1.1"}
