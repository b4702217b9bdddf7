"""What the cluster executor does when calls, servers, the engine and the service fail, over any engine.

To conform, subclass :class:`ClusterFaultsContract` and give it two fixtures: ``house``, a
:class:`tests.cluster_house.ClusterHouse` over the engine's driver, and ``controls``, which make the engine fail.
"""

from typing import Protocol

import pytest

from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus
from service.executors.cluster.driver import EngineJobState
from tests.cluster_house import ClusterHouse
from tests.faulty_driver import Fault
from tests.local_executor import launch, wait_for

FIRST = AttemptId("1.1")
_WAITS = "import signal\nwhile True: signal.sigtimedwait([], 0.05)"
_REPORTS = "import os\nopen(os.environ['SOONER_PROGRESS_FILE'], 'a').write('{\"iteration\": 3, \"checkpoint_iteration\": 2}\\n')"
_OBEYS = (
    "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(75))\nprint('ready', flush=True)\n" + _WAITS
)


class Controls(Protocol):
    """Makes the engine and its servers fail."""

    def cancel_behind(self, attempt: str) -> None:
        """An operator of the engine cancels the submissions of an attempt."""

    def lose_node(self, server: str) -> None:
        """A server dies with all its processes."""

    def return_node(self, server: str) -> None:
        """It is back, as new."""

    def restart(self) -> None:
        """The engine restarts, and forgets the submissions that have ended."""


class ClusterFaultsContract:
    """A launch runs at most once, every end is reported, and no GPU stays taken."""

    def launch(
        self, house: ClusterHouse, code: str = _WAITS, gpus: tuple[int, ...] = (1,), **options: object
    ) -> Launch:
        """A launch that notes each of its runs."""
        return launch(house.command_of_runs(code), gpus=gpus, **options)  # type: ignore[arg-type]

    def submissions(self, house: ClusterHouse, *, alive: bool = False) -> list[str]:
        """The submissions that the engine has."""
        driver = house.make_driver()
        try:
            return [job.id for job in driver.jobs() if not alive or job.state is not EngineJobState.ENDED]
        finally:
            driver.close()

    def until_free(self, house: ClusterHouse) -> None:
        """Wait until the engine has nothing left."""
        house.until(lambda: not self.submissions(house, alive=True), "all GPUs to be free")

    def finish(self, house: ClusterHouse) -> Report:
        """Stop the first attempt; it has run once in all, and nothing of it is left."""
        house.stop()
        end = house.wait_end()
        house.executor.acknowledge([end])
        self.until_free(house)
        assert FIRST not in house.executor.observed()
        return end

    # An attempt on several servers.

    def test_a_gang_runs_once_on_each_server(self, house: ClusterHouse) -> None:
        code = "import os; print('rank', os.environ['NODE_RANK'], os.environ['MASTER_ADDR'], flush=True)"
        house.executor.send([self.launch(house, code, gpus=(2, 2))])
        started = house.wait_started()
        end = house.wait_end()
        assert (end.kind, end.exit_code, house.runs()) == (ReportKind.EXITED, 0, 2)
        assert started.gpu_ids is not None
        assert [len(set(gpus)) for gpus in started.gpu_ids] == [2, 2]
        assert [house.output(node=node).split()[:2] for node in (0, 1)] == [["rank", "0"], ["rank", "1"]]
        with pytest.raises(KeyError):
            house.executor.read_logs(1, 1, 0, 100, 2)  # type: ignore[arg-type]

    def test_a_rank_that_fails_ends_the_others(self, house: ClusterHouse) -> None:
        code = f"import os, sys\nif os.environ['NODE_RANK'] == '1': sys.exit(7)\n{_WAITS}"
        end = house.run(house.command_of_runs(code), gpus=(1, 1))
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 7, False)
        assert "node 1" in end.detail
        self.until_free(house)

    def test_a_graceful_stop_reaches_all_servers(self, house: ClusterHouse) -> None:
        house.executor.send([self.launch(house, _OBEYS, gpus=(1, 1))])
        house.wait_started()
        house.until(lambda: all("ready" in house.output(node=node) for node in (0, 1)), "both programs to be ready")
        house.stop(warning="SIGUSR1", grace_s=30.0)
        end = house.wait_end()
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 75, True)
        self.until_free(house)

    # Calls.

    @pytest.mark.parametrize("fault", [Fault.TIMES_OUT, Fault.ANSWER_LOST, Fault.TWICE])
    def test_a_submit_without_an_answer_runs_the_attempt_once(self, house: ClusterHouse, fault: Fault) -> None:
        house.faults.next("submit", fault)
        house.executor.send([self.launch(house)])
        house.wait_started()
        house.until(house.runs, "the program to run")
        self.finish(house)
        assert house.runs() == 1

    @pytest.mark.parametrize("gpus", [1, 4])
    def test_a_submit_that_succeeds_late_runs_nothing_twice(self, house: ClusterHouse, gpus: int) -> None:
        """Two submissions fit on the server at once, or the second one waits for the first in the engine."""
        house.faults.next("submit", Fault.LATE)
        house.executor.send([self.launch(house, gpus=(gpus,))])
        house.wait_started()
        house.faults.catch_up()
        house.until(lambda: len(self.submissions(house, alive=True)) == 1, "the second submission to end")
        assert house.executor.observed() == {FIRST: AttemptStatus.RUNNING}
        house.until(house.runs, "the program to run")
        self.finish(house)
        assert house.runs() == 1

    def test_a_submit_that_succeeds_after_the_end_runs_nothing(self, house: ClusterHouse) -> None:
        house.faults.next("submit", *[Fault.LATE] * 2, *[Fault.TIMES_OUT] * 20)
        house.executor.send([self.launch(house)])
        house.until(lambda: (house.path() / "launch.json").exists(), "the first try")
        end = self.finish(house)
        assert (end.kind, end.stop_signalled, end.exit_code) == (ReportKind.EXITED, True, None)
        house.faults.catch_up()
        self.until_free(house)
        assert house.runs() == 0
        assert house.executor.observed() == {}

    def test_a_refused_submit_is_a_failed_launch(self, house: ClusterHouse) -> None:
        house.faults.next("submit", Fault.REFUSED)
        house.executor.send([self.launch(house)])
        end = house.wait_end()
        assert (end.kind, end.reason, end.detail) == (
            ReportKind.LAUNCH_FAILED,
            Reason.LAUNCH_FAILED,
            "submit is refused",
        )
        assert house.runs() == 0

    def test_a_submit_that_is_refused_for_now_is_repeated(self, house: ClusterHouse) -> None:
        house.faults.next("submit", Fault.NOT_NOW, Fault.NOT_NOW)
        house.executor.send([self.launch(house, "")])
        assert (house.wait_end().exit_code, house.runs()) == (0, 1)
        record = house.executor._files.folder(FIRST).read_launch()
        assert record is not None and len(record.submissions) == 1, "the others were taken back"

    def test_a_call_that_hangs_holds_up_no_other_attempt(self, house: ClusterHouse) -> None:
        house.faults.next("submit", Fault.HANGS)
        house.executor.send([self.launch(house)])
        house.until(house.faults.hangs, "the call to hang")
        house.executor.send([self.launch(house, "", job=2)])
        assert house.wait_end("2.1").exit_code == 0
        house.stop()
        house.until(lambda: house.executor.observed()[FIRST] is AttemptStatus.STOPPING)
        assert not [report for report in house.poll() if report.attempt == FIRST], "it may still be submitted"
        house.faults.release()
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled, house.runs()) == (None, True, 1)
        self.until_free(house)

    def test_attempts_run_on_while_the_engine_is_silent(self, house: ClusterHouse) -> None:
        house.executor.send([self.launch(house), self.launch(house, "", job=2)])
        house.wait_started()
        house.wait_end("2.1")
        house.faults.silent = True
        house.stop()
        house.until((house.inbox() / "node-0" / "exit.json").exists, "the end of its processes")
        house.poll()
        assert house.executor.observed()[FIRST] is AttemptStatus.STOPPING, "its GPUs may be taken"
        house.faults.silent = False
        assert house.wait_end().stop_signalled

    @pytest.mark.parametrize("fault", [Fault.TIMES_OUT, Fault.ANSWER_LOST])
    def test_a_cancel_without_an_answer_is_repeated(self, house: ClusterHouse, fault: Fault) -> None:
        holder = self.launch(house, _WAITS, gpus=(4,), job=2)
        house.executor.send([holder])
        house.wait_started("2.1")
        house.until(lambda: house.runs() == 1, "the command of the first to begin")
        house.executor.send([self.launch(house)])
        house.until(lambda: len(self.submissions(house, alive=True)) == 2, "the second to wait in the engine")
        house.faults.next("cancel", fault)
        house.stop()
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled, house.runs()) == (None, True, 1)
        house.until(lambda: len(self.submissions(house, alive=True)) == 1, "the first to be gone")

    # The engine and its servers.

    def test_a_running_attempt_cancelled_by_an_operator_says_so(self, house: ClusterHouse, controls: Controls) -> None:
        house.executor.send([self.launch(house)])
        house.wait_started()
        controls.cancel_behind(FIRST)
        end = house.wait_end()
        assert end.kind in (ReportKind.EXITED, ReportKind.LOST)
        assert end.exit_code not in (0, 75)
        assert "not by this service" in end.detail
        self.until_free(house)

    def test_a_waiting_attempt_cancelled_by_an_operator_is_a_failed_launch(
        self, house: ClusterHouse, controls: Controls
    ) -> None:
        house.executor.send([self.launch(house, _WAITS, gpus=(4,), job=2)])
        house.wait_started("2.1")
        house.until(lambda: house.runs() == 1, "the command of the first to begin")
        house.executor.send([self.launch(house)])
        house.until(lambda: len(self.submissions(house, alive=True)) == 2, "the second to wait in the engine")
        controls.cancel_behind(FIRST)
        end = house.wait_end()
        assert (end.kind, house.runs()) == (ReportKind.LAUNCH_FAILED, 1)
        assert "not by this service" in end.detail

    def test_a_lost_server_ends_its_attempts_alone(self, house: ClusterHouse, controls: Controls) -> None:
        lost, kept = house.cluster.servers[1].name, self.launch(house, _WAITS, gpus=(1,), job=2)
        house.executor.send([self.launch(house, _WAITS, gpus=(1, 1)), kept])
        house.wait_started()
        house.wait_started("2.1")
        controls.lose_node(lost)
        down = house.wait_report(ReportKind.SERVER_DOWN, attempt=None)
        assert down.server == 1
        end = house.wait_end()
        assert (end.kind, end.server, end.reason) == (ReportKind.LOST, 1, Reason.NODE_LOST)
        assert lost in end.detail
        assert house.executor.observed()[AttemptId("2.1")] is AttemptStatus.RUNNING
        house.executor.acknowledge([down, end])
        controls.return_node(lost)
        assert house.wait_report(ReportKind.SERVER_UP, attempt=None).server == 1

    def test_an_engine_that_forgets_an_end_does_not_lose_it(self, house: ClusterHouse, controls: Controls) -> None:
        house.executor.send([self.launch(house, "import time; time.sleep(0.5)")])
        house.wait_started()
        house.executor.close()
        wait_for((house.inbox() / "node-0" / "exit.json").exists, "the end of its processes")
        wait_for(lambda: not self.submissions(house, alive=True), "the end in the engine")
        controls.restart()
        house.restart()
        end = house.wait_end()
        assert (end.kind, end.exit_code, house.runs()) == (ReportKind.EXITED, 0, 1)

    # The service.

    @pytest.mark.parametrize("when", ["waiting", "running", "stopping", "ended"])
    def test_a_restarted_service_continues_with_every_attempt(self, house: ClusterHouse, when: str) -> None:
        order = self.launch(house, _REPORTS if when == "ended" else _OBEYS)
        holder = self.launch(house, _WAITS, gpus=(4,), job=2)
        if when == "waiting":
            house.executor.send([holder])
            house.wait_started("2.1")
        house.executor.send([order])
        if when == "waiting":
            house.until(lambda: len(self.submissions(house, alive=True)) == 2, "it to wait in the engine")
        elif when == "ended":
            end = house.wait_end()
            assert (end.exit_code, end.iteration, end.checkpoint_iteration) == (0, 3.0, 2.0)
        else:
            house.wait_report(ReportKind.STARTED)
            house.until(lambda: "ready" in house.output(), "the program to be ready")
        if when == "stopping":
            house.stop(warning="SIGUSR1", grace_s=30.0)
            house.until((house.inbox() / "stop.json").exists, "the stop to be written")
        house.restart()
        assert FIRST in house.executor.observed()
        if when == "waiting":
            house.stop("2.1")
        if when in ("waiting", "running"):
            house.wait_started()
            house.until(lambda: "ready" in house.output(), "the program to be ready")
            assert self.finish(house).stop_signalled
        elif when == "ended":
            house.wait_started()
            assert house.wait_end() == end
        else:
            assert house.wait_end().exit_code == 75
        assert house.runs() == 1 + (when == "waiting")

    def test_a_service_that_ends_before_the_answer_starts_nothing_twice(self, house: ClusterHouse) -> None:
        house.faults.next("submit", Fault.HANGS)
        order = self.launch(house)
        house.executor.send([order])
        house.until(house.faults.hangs, "the call to hang")
        house.executor.close()
        house.new_executor()
        house.until(lambda: (house.statuses() or {}).get(FIRST) is None, "it to be unknown to the engine")
        house.executor.send([order])  # as reconciliation does
        house.faults.release()  # the call of the former service succeeds after all
        house.wait_started()
        house.until(lambda: len(self.submissions(house, alive=True)) == 1, "the second submission to end")
        house.until(house.runs, "the program to run")
        self.finish(house)
        assert house.runs() == 1

    def test_a_former_leader_changes_nothing(self, house: ClusterHouse) -> None:
        former = house.executor
        house.executor.send([self.launch(house, fencing_token=1)])
        house.wait_started()
        house.new_executor()
        house.settle_servers()
        house.executor.send([self.launch(house, "", job=2, fencing_token=2)])
        house.wait_end("2.1")
        former.send([Stop(FIRST, False, None, 1.0, 1), self.launch(house, "", job=3, fencing_token=1)])
        wait_for(lambda: former.refused_commands == 2, "both commands to be refused")
        house.poll()
        assert house.executor.observed()[FIRST] is AttemptStatus.RUNNING
        assert AttemptId("3.1") not in house.executor.observed()

    def test_a_new_leader_in_mid_launch_starts_it_once(self, house: ClusterHouse) -> None:
        former = house.executor
        house.faults.next("submit", Fault.HANGS)
        former.send([self.launch(house, fencing_token=1)])
        house.until(house.faults.hangs, "the call to hang")
        house.new_executor()
        house.until(lambda: (house.statuses() or {}).get(FIRST) is None, "it to be unknown to the engine")
        house.executor.send([self.launch(house, fencing_token=2)])
        house.wait_started()
        house.faults.release()
        house.until(lambda: len(self.submissions(house, alive=True)) == 1, "the second submission to end")
        house.until(house.runs, "the program to run")
        house.executor.send([Stop(FIRST, False, None, 5.0, 2)])
        assert house.wait_end().stop_signalled
        self.until_free(house)
        assert house.runs() == 1
