"""The local executor around its supervisors: recovery, acknowledgement, fencing, progress, tokens and pruning."""

import json
import os
import time
from pathlib import Path

import pytest

from policies.model.ids import AttemptId, JobId
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors.fencing import Fence
from service.executors.gpus import GpuInfo
from service.executors.launch_plan import free_port, ranks_of
from tests.local_executor import House, house, launch, listings, python, stop_all, wait_for

__all__ = ["house"]

SAY = (
    "import os, json\n"
    "def say(**line):\n"
    "    with open(os.environ['SOONER_PROGRESS_FILE'], 'a') as f: f.write(json.dumps(line) + '\\n')\n"
)
UNTIL_GO = "import time\nwhile not os.path.exists(os.environ['SOONER_CHECKPOINT_DIR'] + '/go'): time.sleep(0.01)\n"


def let_go(house: House) -> None:
    """Let a program that runs ``UNTIL_GO`` go on."""
    (house.data_dir / "checkpoints/1/go").touch()


class TestRestart:
    def test_running_attempts_are_found_again(self, house: House) -> None:
        code = (
            SAY
            + "say(iteration=1, checkpoint_iteration=1)\nprint('ready', flush=True)\n"
            + UNTIL_GO
            + "say(iteration=2)"
        )
        house.executor.send([launch(python(code))])
        house.wait_output("ready")
        house.executor.close()
        fresh = house.new_executor()
        fresh.send([launch(python("raise SystemExit(99)"))])
        house.wait_report(ReportKind.STARTED)
        progress = next(report for report in house.reports[::-1] if report.kind is ReportKind.PROGRESS)
        assert (progress.iteration, progress.checkpoint_iteration) == (1.0, 1.0)
        let_go(house)
        end = house.wait_end()
        assert (end.exit_code, end.iteration, end.checkpoint_iteration) == (0, 2.0, 1.0)

    def test_what_ended_meanwhile_is_told(self, house: House) -> None:
        house.executor.send([launch(python("raise SystemExit(75)"))])
        house.executor.close()
        wait_for(house.has_ended, "the end")
        house.new_executor()
        reports = house.executor.poll()
        assert [report.kind for report in reports] == [ReportKind.STARTED, ReportKind.EXITED]
        assert reports[1].exit_code == 75

    def test_an_end_is_repeated_until_acknowledged_and_then_forgotten(self, house: House) -> None:
        end = house.run(python("pass"))
        assert house.executor.poll()[-1] == house.executor.poll()[-1] == end
        assert house.new_executor().poll()[-1] == end
        house.executor.acknowledge([end])
        assert house.executor.poll() == []
        assert house.new_executor().poll() == []
        assert house.executor.observed() == {}

    def test_started_is_told_until_acknowledged(self, house: House) -> None:
        house.executor.send([launch(python("import signal; signal.pause()"))])
        started = house.wait_report(ReportKind.STARTED)
        assert house.poll() == [started]
        house.executor.acknowledge([started])
        assert house.poll() == []

    def test_a_launch_of_what_is_over_tells_its_end_again_and_runs_nothing(self, house: House) -> None:
        command = python("import os; open(os.environ['SOONER_CHECKPOINT_DIR'] + '/runs', 'a').write('x')")
        end = house.run(command)
        house.executor.acknowledge([end])
        for executor in (house.executor, house.new_executor()):
            executor.send([launch(command)])
            assert executor.poll() == [end]
            assert executor.observed() == {"1.1": AttemptStatus.ENDED}
            executor.acknowledge([end])
        assert (house.data_dir / "checkpoints/1/runs").read_text() == "x"

    def test_a_stop_of_what_is_over_changes_nothing(self, house: House) -> None:
        end = house.run(python("raise SystemExit(4)"))
        house.executor.acknowledge([end])
        house.stop()
        assert house.poll() == [end]
        assert not (house.folder() / names.STOP).exists()

    def test_drafts_of_dead_makers_are_swept(self, house: House) -> None:
        drafted, lock = names.draft(house.data_dir / "attempts", "5.1")
        os.utime(drafted, (0, 0))
        house.new_executor()
        assert drafted.exists(), "its maker lives: it holds the lock"
        os.close(lock)
        house.new_executor()
        assert not drafted.exists()
        assert house.executor.observed() == {}


class TestStopBeforeStart:
    def test_it_never_starts(self, house: House) -> None:
        house.stop("3.1")
        end = house.wait_end("3.1")
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, None, True)
        house.executor.send([launch(python("print('ran')"), job=3)])
        house.executor.acknowledge([end])
        house.executor.send([launch(python("print('ran')"), job=3)])
        house.new_executor().send([launch(python("print('ran')"), job=3)])
        assert not (house.folder("3.1") / names.RANKS).exists()

    def test_launch_and_stop_in_one_breath(self, house: House) -> None:
        house.executor.send([launch(python("import signal; signal.pause()"))])
        house.stop()
        end = house.wait_end()
        assert (end.kind, end.stop_signalled) == (ReportKind.EXITED, True)
        assert house.executor.observed() == {"1.1": AttemptStatus.ENDED}


class TestFencing:
    def test_a_lower_token_than_the_highest_seen_is_refused(self, house: House) -> None:
        house.executor.send([launch(python("pass"), job=1, fencing_token=5)])
        house.executor.send([launch(python("pass"), job=2, fencing_token=4)])
        assert (set(house.executor.observed()), house.executor.refused_commands) == ({"1.1"}, 1)
        stale = house.new_executor()
        stale.send([launch(python("pass"), job=3, fencing_token=4)])
        house.stop("1.1", token=4)
        assert "3.1" not in stale.observed()
        assert stale.refused_commands == 2
        stale.send([launch(python("pass"), job=3, fencing_token=5)])
        assert "3.1" in stale.observed()

    def test_the_highest_token_outlives_its_holder(self, tmp_path: Path) -> None:
        with Fence(tmp_path / "fence").held() as fence:
            assert fence.admits(12)
            assert not fence.admits(11)
        with Fence(tmp_path / "fence").held() as fence:
            assert [fence.admits(token) for token in (11, 12, 100, 99)] == [False, True, True, False]
        with Fence(tmp_path / "fence").held() as fence:
            assert not fence.admits(99)


class TestProgress:
    def test_the_newest_is_told_once(self, house: House) -> None:
        code = SAY + "for i in range(5): say(iteration=i, total_iterations=9)\nprint('ready', flush=True)\n" + UNTIL_GO
        house.executor.send([launch(python(code))])
        house.wait_output("ready")
        let_go(house)
        end = house.wait_end()
        told = [r for r in house.reports if r.kind is ReportKind.PROGRESS]
        assert (told[-1].iteration, told[-1].total_iterations) == (4.0, 9.0)
        assert len({r.iteration for r in told}) == len(told)
        assert end.iteration == 4.0
        order = [r.kind for r in house.reports]
        assert order.index(ReportKind.STARTED) < order.index(ReportKind.PROGRESS) < order.index(ReportKind.EXITED)

    def test_a_program_that_reports_too_fast_ends_with_its_last_line(self, house: House) -> None:
        end = house.run(python(SAY + "for i in range(1001): say(iteration=i)\nraise SystemExit(75)"))
        assert (end.exit_code, end.iteration) == (75, 1000.0)

    @pytest.mark.parametrize("trick", ["os.symlink('/tmp/victim', p)", "os.mkfifo(p)", "os.mkdir(p)"])
    def test_links_and_the_like_are_not_followed(self, house: House, tmp_path: Path, trick: str) -> None:
        victim = tmp_path / "victim"
        victim.write_text('{"iteration": 5}\n')
        code = f"import os; p = os.environ['SOONER_PROGRESS_FILE']; os.unlink(p); {trick}".replace(
            "/tmp/victim", str(victim)
        )
        end = house.run(python(code))
        assert (end.exit_code, end.iteration) == (0, None)

    def test_over_http(self, house: House) -> None:
        code = "import os; print('token', os.environ['SOONER_PROGRESS_TOKEN'], flush=True)\n" + UNTIL_GO
        house.executor.send([launch(python(code))])
        token = house.wait_output("token").split()[1]
        accept, attempt = house.executor.accept_progress, AttemptId("1.1")
        house.poll()
        assert accept(attempt, token, {"iteration": 3, "loss": 0.5, "input_s": 0.25})
        for other, key in ((attempt, "wrong"), (AttemptId("2.1"), token), (AttemptId("../x"), token)):
            with pytest.raises(PermissionError):
                accept(other, key, {"iteration": 4})
        assert not accept(attempt, token, {"iteration": -1})
        assert not accept(attempt, token, {"iteration": 4, "note": "x" * 70000})
        report = house.wait_report(ReportKind.PROGRESS)
        assert (report.iteration, report.loss, report.input_s) == (3.0, 0.5, 0.25)
        house.new_executor()
        let_go(house)
        assert house.wait_end().iteration == 3.0, "it survives a restart"
        with pytest.raises(PermissionError):
            house.executor.accept_progress(attempt, token, {"iteration": 5})

    def test_no_more_than_the_file_may_take_in_a_second(self, house: House) -> None:
        house.executor.send([launch(python("import os, signal; print('ready', flush=True); signal.pause()"))])
        house.wait_output("ready")
        token = house.executor._keys.identity("1.1").token
        began_s = time.monotonic()
        taken = [house.executor.accept_progress(AttemptId("1.1"), token, {"iteration": i}) for i in range(500)]
        assert taken[0]
        # A burst of ten, ten a second, and one on the border.
        assert sum(taken) <= 10 + 10 * (time.monotonic() - began_s) + 1


class TestUpkeep:
    def test_prune_leaves_a_tombstone(self, house: House) -> None:
        end = house.run(python("print('x' * 1000)"))
        assert house.executor.prune([JobId(1)]) == 0, "its end has not been acknowledged"
        house.executor.acknowledge([end])
        (house.data_dir / "checkpoints/1").mkdir(exist_ok=True)
        assert house.executor.prune([JobId(1), JobId(2)]) == 1
        assert sorted(path.name for path in house.folder().iterdir()) == ["acknowledged.json", "lock"]
        assert not (house.data_dir / "checkpoints/1").exists()
        house.executor.send([launch(python("print('again')"))])
        assert house.poll() == [end]

    def test_what_is_read_and_pruned_costs_nothing_for_each_attempt_ever_made(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for job, number in ((1, 1), (1, 2), (2, 1)):
            house.executor.acknowledge([house.run(python("print('x')"), job=job, number=number)])
        listed = listings(monkeypatch, house.data_dir / "attempts")
        assert house.executor.read_logs(JobId(1), 2).data == b"x\n"
        assert (house.executor.prune([]), listed) == (0, [])
        assert house.executor.prune([JobId(1), JobId(2), JobId(3)]) == 3
        assert len(listed) == 1, "jobs that are pruned together share one listing"

    def test_logs_of_an_attempt(self, house: House) -> None:
        for number in (1, 2, 10):
            house.run(python(f"print('attempt {number}')"), number=number)
        read = house.executor.read_logs
        assert read(JobId(1), 10).data == b"attempt 10\n"
        assert read(JobId(1), 2).data == b"attempt 2\n"
        assert read(JobId(1), 2, -3).data == b" 2\n"[-3:]
        assert read(JobId(1), 2, 4, 3).data == b"mpt"

    def test_stop_all(self, house: House) -> None:
        for job in (1, 2):
            house.executor.send([launch(python("import signal; signal.pause()"), job=job)])
            house.wait_report(ReportKind.STARTED, attempt=f"{job}.1")
        stop_all(house.executor, grace_s=5.0)
        assert {house.wait_end(f"{job}.1").exit_code for job in (1, 2)} == {143}

    def test_the_folder_is_private(self, house: House) -> None:
        house.run(python("pass"))
        for path in (house.data_dir, house.data_dir / "attempts", house.folder(), house.data_dir / "checkpoints/1"):
            assert path.stat().st_mode & 0o077 == 0, path
        assert (house.data_dir / "executor.key").stat().st_mode & 0o777 == 0o600

    def test_a_supervisor_that_cannot_start(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.executable", "/no/such/python")
        end = house.run(python("pass"))
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.LAUNCH_FAILED)
        monkeypatch.undo()
        house.executor.acknowledge([end])
        house.executor.send([launch(python("print('ran')"))])
        assert house.poll() == [end]
        assert json.loads((house.folder() / names.EXIT).read_text())["outcome"] == "launch_failed"


class TestPlan:
    def test_real_gpus_by_uuid(self) -> None:
        order = launch(("x",), gpus=(2, 1))
        ranks = ranks_of(order, (("GPU-a", "GPU-b"), ("GPU-c",)))
        assert [rank["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["GPU-a,GPU-b", "GPU-c"]

    def test_an_executor_on_real_gpus_hands_out_theirs(self, tmp_path: Path) -> None:
        gpus = [GpuInfo(i, f"GPU-{i}", "Tesla V100-SXM2-16GB", 16 << 30) for i in range(8)]
        made = House(tmp_path / "data")
        made.new_executor(gpus=gpus)
        made.run(python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"), gpus=(0, 2))
        assert made.output() == "GPU-4,GPU-5\n"
        made.close()

    def test_a_launch_on_a_server_that_has_lost_gpus_is_lost_with_it(self, tmp_path: Path) -> None:
        """It was decided before, by a service that ended before it could carry it out. It must not run without GPUs."""
        gpus = [GpuInfo(i, f"GPU-{i}", "Tesla V100-SXM2-16GB", 16 << 30) for i in range(3)]
        made = House(tmp_path / "data")
        made.new_executor(gpus=gpus, own=frozenset({"s0001"}))
        end = made.run(python("print('ran')"))
        assert (end.kind, end.reason, end.server) == (ReportKind.LOST, Reason.NODE_LOST, 0)
        made.executor.acknowledge([end])
        assert (made.executor.observed(), made.output()) == ({}, "")
        made.new_executor(gpus=gpus)
        made.run(python("import os; print([os.environ['CUDA_VISIBLE_DEVICES']])"), number=2)
        assert made.output() == "['']\n", "a pretended server"
        made.close()

    def test_ports_of_attempts_that_start_together_differ(self) -> None:
        taken: set[int] = set()
        for _ in range(20):
            taken.add(free_port(taken, first=7))
        assert len(taken) == 20
        assert all(20000 <= port < 30000 for port in taken)
