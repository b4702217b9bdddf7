"""Calls that the operating system refuses for a while: no other command waits for them, and no end is invented."""

import errno
import os
from pathlib import Path

import pytest

from service.engine.commands import Stop
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors import local
from tests.local_executor import House, house, launch, python

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
