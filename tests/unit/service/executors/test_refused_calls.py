"""Calls that the operating system refuses for a while: no other command waits for them, and no end is invented."""

import errno
import os
import sys
from pathlib import Path

import pytest

from service.engine.commands import Stop
from service.engine.events import ReportKind
from service.engine.ports import AttemptStatus
from service.executors import files, local, watched
from service.executors import folder as names
from service.executors.starts import Starter
from tests.local_executor import ENDS, House, house, launch, python, wait_for

__all__ = ["house"]

PAUSE = python("import signal; print('ready', flush=True); signal.pause()")


def refused(number: int = errno.EIO) -> OSError:
    return OSError(number, os.strerror(number))


class TestCommands:
    def test_a_refused_launch_holds_up_no_other_and_is_carried_out_later(
        self, house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        end = house.run(python("pass"))
        house.executor.acknowledge([end])

        def refuse(folder: Path, source: str, target: str) -> None:
            raise refused()

        with monkeypatch.context() as patched:
            patched.setattr(local, "rename_over", refuse)
            for _ in range(2):
                house.executor.send([launch(python("pass")), launch(python("pass"), job=2)])
                assert list(house.executor.observed()) == ["2.1"]
        logged = [record.getMessage() for record in caplog.records]
        assert logged == ["a command for attempt 1.1 cannot be carried out: [Errno 5] Input/output error"]
        house.wait_end("2.1")
        house.executor.send([launch(python("pass"))])
        assert end in house.poll()

    def test_a_refused_stop_holds_up_no_other_and_does_not_count(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house.executor.send([launch(PAUSE), launch(PAUSE, job=2)])
        house.wait_output("ready", 1)
        house.wait_output("ready", 2)
        exists = names.exists

        def refuse(folder: Path) -> bool:
            if folder.name in ("1.1", "3.1"):
                raise refused()
            return exists(folder)

        stops = [Stop(attempt=launch(PAUSE, job=job).attempt, graceful=False, grace_s=5.0) for job in (1, 3, 2)]
        with monkeypatch.context() as patched:
            patched.setattr(names, "exists", refuse)
            house.executor.send(stops)
            assert house.executor.observed() == {"1.1": AttemptStatus.RUNNING, "2.1": AttemptStatus.STOPPING}
        house.wait_end("2.1")
        house.executor.send(stops[:1])
        assert house.wait_end("1.1").stop_signalled


class TestLocks:
    def test_a_lock_that_cannot_be_opened_keeps_no_service_from_starting(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        end = house.run(python("pass"))
        house.executor.acknowledge([end])
        house.run(python("pass"), job=2)

        def refuse(folder: Path) -> bool:
            raise refused(errno.EACCES)

        with monkeypatch.context() as patched:
            patched.setattr(names, "is_supervised", refuse)
            fresh = house.new_executor()
            assert set(fresh.observed()) == {"1.1", "2.1"}
            assert fresh.poll() == [], "nothing is known about them yet"
        house.wait_end("2.1")


class TestEnds:
    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
    def test_an_end_that_cannot_be_read_now_is_reported_later(
        self, house: House, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        house.executor.send([launch(python("pass"))])
        wait_for(house.has_ended, "the end")
        house.new_executor()
        opened = files.open_below

        def refuse(folder: Path, *parts: str) -> int:
            if parts == (names.EXIT,):
                raise refused(number)
            return opened(folder, *parts)

        with monkeypatch.context() as patched:
            patched.setattr(files, "open_below", refuse)
            assert [report.kind for _ in range(3) for report in house.poll() if report.kind in ENDS] == []
        assert house.wait_end().kind is ReportKind.EXITED

    def test_an_end_that_was_acknowledged_and_cannot_be_read_now_is_reported_later(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        end = house.run(python("pass"))
        house.executor.acknowledge([end])

        def refuse(folder: Path, *parts: str) -> int:
            raise refused()

        with monkeypatch.context() as patched:
            patched.setattr(files, "open_below", refuse)
            house.executor.send([launch(python("pass"))])
            assert house.poll() == []
        house.executor.send([launch(python("pass"))])
        assert house.poll() == [end]

    @pytest.mark.parametrize(("number", "ends"), [(errno.EIO, 0), (errno.EMFILE, 0), (errno.ENOSPC, 1)])
    def test_a_loss_is_reported_from_memory_for_a_full_disk_alone(
        self, house: House, monkeypatch: pytest.MonkeyPatch, number: int, ends: int
    ) -> None:
        house.executor.send([launch(python("pass"))])
        wait_for(house.has_ended, "the end")
        (house.folder() / names.EXIT).unlink()
        house.new_executor()

        def refuse(*given: object, **options: object) -> None:
            raise refused(number)

        with monkeypatch.context() as patched:
            patched.setattr(watched, "write_json", refuse)
            assert len([report for report in house.poll() if report.kind in ENDS]) == ends
        assert house.wait_end().kind is ReportKind.LOST

    def test_the_exit_code_of_a_supervisor_is_kept_until_it_is_used(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        children = []

        def start(plans: object) -> Starter:
            children.append(os.posix_spawn(sys.executable, list(python("raise SystemExit(7)")), {}))
            return Starter(children[0])

        def refuse(folder: Path) -> bool:
            raise refused()

        monkeypatch.setattr(local, "start", start)
        house.executor.send([launch(python("pass"))])
        os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOWAIT)
        with monkeypatch.context() as patched:
            patched.setattr(names, "exists", refuse)
            assert house.poll() == []
        [end] = house.poll()
        assert (end.kind, end.detail) == (ReportKind.LAUNCH_FAILED, "its supervisor ended with 7 before it began")
