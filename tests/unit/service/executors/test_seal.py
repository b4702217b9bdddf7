"""Records that a program writes in the supervisor's name are not believed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.executors import folder as names
from service.executors.files import read_json
from service.executors.keys import AttemptKeys
from service.executors.seal import Seal
from tests.local_executor import House, house, launch, lives, python, wait_for

__all__ = ["house"]

DONE = names.end_record("exited", 3.0, exit_code=0)
FORGED: dict[str, dict[str, Any]] = {
    "without a seal": DONE,
    "with another seal": DONE | {"seal": "0" * 64},
    "with a number as its seal": DONE | {"seal": 1},
    "with a character that is none": DONE | {"seal": "\ud800"},
    "sealed with another key": Seal("key").sealed(names.EXIT, DONE),
}
FORGE = """
import json, os, signal
os.chdir(os.path.dirname(os.environ["SOONER_PROGRESS_FILE"]))
def write(name, text):
    with open(name, "w") as stream: stream.write(text)
"""
each_forgery = pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())


def supervisors(house: House) -> list[int]:
    """The supervisor and its keeper."""
    record = json.loads((house.folder() / names.SUPERVISOR).read_text())
    return [record["pid"], record["keeper"][0]]


class TestSeal:
    def test_of_a_record_in_its_file(self) -> None:
        seal = Seal("key")
        record = {"at_s": 1.5, "detail": "é", "list": [1, None, True]}
        sealed = json.loads(json.dumps(seal.sealed("exit.json", record)))
        assert seal.opened("exit.json", sealed) == record
        assert seal.opened("started.json", sealed) is None
        assert seal.opened("exit.json", sealed | {"at_s": 2.5}) is None
        assert seal.opened("exit.json", None) is None
        assert Seal("other").opened("exit.json", sealed) is None

    @each_forgery
    def test_that_is_wrong(self, forged: dict[str, Any]) -> None:
        assert Seal("another").opened(names.EXIT, forged) is None

    def test_of_an_older_release(self) -> None:
        old = Seal("key", required=False)
        assert old.opened("exit.json", {"a": 1}) == {"a": 1}
        assert old.opened("exit.json", {"a": 1, "seal": "wrong"}) is None

    def test_differs_for_each_attempt_and_from_its_token(self, tmp_path: Path) -> None:
        (tmp_path / "attempts").mkdir()
        keys = AttemptKeys(tmp_path)
        found = {keys.seal("1.1").key, keys.seal("1.2").key, keys.identity("1.1").token, keys.identity("1.2").token}
        assert len(found) == 4
        assert AttemptKeys(tmp_path).seal("1.1") == keys.seal("1.1")


class TestForgedEnd:
    @each_forgery
    def test_a_job_that_writes_its_own_end_runs_on(self, house: House, forged: dict[str, Any]) -> None:
        text = json.dumps(forged)
        code = f"{FORGE}write('exit.json', {text!r})\nwrite('acknowledged.json', {text!r})\n"
        house.executor.send([launch(python(code + "print('ready', flush=True)\nsignal.pause()"))])
        house.wait_output("ready")
        house.wait_report(ReportKind.STARTED)
        for _ in range(3):
            assert not [report for report in house.poll() if report.kind is not ReportKind.STARTED]
        # Neither does a restarted service believe it, nor is it deleted.
        house.new_executor()
        assert "1.1" in house.executor.observed()
        assert not [report for report in house.poll() if report.kind is not ReportKind.STARTED]
        assert house.executor.observed()["1.1"] == "running"
        house.stop()
        assert house.wait_end().exit_code == 143

    def test_a_right_seal_does_not_end_what_runs(self, house: House) -> None:
        """A job of the service's user can read the key. It cannot take the lock from its supervisor."""
        house.executor.send([launch(python("import signal; print('ready', flush=True); signal.pause()"))])
        house.wait_output("ready")
        house.write_record(names.EXIT, DONE)
        for _ in range(3):
            assert not [report for report in house.poll() if report.kind is not ReportKind.STARTED]
        house.stop()
        assert house.wait_end().exit_code == 143

    @each_forgery
    def test_a_job_that_kills_its_supervisor_is_lost(self, house: House, forged: dict[str, Any]) -> None:
        text = json.dumps(forged)
        code = (
            f"{FORGE}write('exit.json', {text!r})\nwrite('acknowledged.json', {text!r})\n"
            "record = json.load(open('supervisor.json'))\nprint('ready', flush=True)\n"
            "for pid in (record['keeper'][0], record['pid']): os.kill(pid, 9)\nsignal.pause()"
        )
        house.executor.send([launch(python(code))])
        wait_for(lambda: names.has(house.folder(), names.ACKNOWLEDGED), "the forgery")
        end = house.wait_end()
        assert (end.kind, end.reason, house.processes()) == (ReportKind.LOST, Reason.NODE_LOST, [])

    def test_a_forged_acknowledgement_is_not_believed_after_a_restart(self, house: House) -> None:
        house.executor.send([launch(python("import signal; print('ready', flush=True); signal.pause()"))])
        house.wait_output("ready")
        pids = supervisors(house)
        for pid in reversed(pids):
            os.kill(pid, 9)
        wait_for(lambda: not any(lives(pid) for pid in pids), "their end")
        (house.folder() / names.ACKNOWLEDGED).write_text(json.dumps(DONE))
        fresh = house.new_executor()
        assert fresh.observed() == {}
        # The store wants it to run, so the engine asks for it.
        fresh.send([launch(python("print('ran again')"))])
        assert house.wait_end().kind is ReportKind.LOST
        assert house.processes() == []

    def test_an_end_that_is_not_acknowledged_keeps_its_files(self, house: House) -> None:
        end = house.run(python("print('text')"))
        assert house.executor.prune([JobId(1)]) == 0
        house.executor.acknowledge([end])
        assert house.executor.prune([JobId(1)]) == 1


@pytest.mark.parametrize("name", [names.STARTED, names.SUPERVISOR, names.RANKS, names.STOP])
def test_other_records_without_a_seal_are_absent(house: House, name: str) -> None:
    house.executor.send([launch(python("import signal; print('ready', flush=True); signal.pause()"))])
    house.wait_output("ready")
    forged = {"at_s": 1.0, "pid": 1, "start_ticks": 1, "boot_id": "another", "ranks": [[1, 1]], "grace_s": 1.0}
    (house.folder() / name).write_text(json.dumps(forged))
    seal = house.seal()
    assert names.read_record(house.folder(), name, seal) is None
    house.new_executor()
    reports = house.poll()
    assert house.executor.observed()["1.1"] in ("running", "pending"), "nothing was stopped"
    assert all(report.kind is ReportKind.STARTED and report.at_s > 1.0 for report in reports)
    house.stop()
    assert house.wait_end().kind is ReportKind.EXITED


def test_a_job_that_replaces_its_lock_is_ended_before_it_is_lost(house: House) -> None:
    # What it prints after the trick may be too late: its supervisor sees it at once.
    code = f"{FORGE}print('ready', flush=True)\nos.unlink('lock'); open('lock', 'w').close()\nsignal.pause()"
    house.executor.send([launch(python(code))])
    wait_for(lambda: "ready" in house.output(), "the program")
    end = house.wait_end()
    assert (end.kind, house.processes()) == (ReportKind.LOST, [])


class TestOlderRelease:
    def test_what_it_left_is_believed_without_a_seal(self, house: House) -> None:
        """Jobs continue during an upgrade; their supervisors are of the old release."""
        (house.data_dir / "unsealed").unlink()
        for attempt in ("1.1", "2.1"):
            names.write_tombstone(house.data_dir / "attempts", attempt, DONE, house.seal(attempt))
            (house.folder(attempt) / names.EXIT).write_text(json.dumps(DONE))
        house.new_executor()
        assert house.wait_end("1.1").exit_code == house.wait_end("2.1").exit_code == 0
        # What comes later is not.
        names.write_tombstone(house.data_dir / "attempts", "3.1", DONE, house.seal("3.1"))
        (house.folder("3.1") / names.EXIT).write_text(json.dumps(DONE))
        house.new_executor()
        assert house.wait_end("3.1").kind is ReportKind.LOST
        assert house.wait_end("1.1").exit_code == 0

    def test_a_note_that_cannot_be_read_is_an_error(self, house: House) -> None:
        """Else the ends of the attempts in it would count as forged."""
        note = house.data_dir / "unsealed"
        note.unlink()
        os.mkfifo(note)
        with pytest.raises(OSError, match="not a regular file") as refused:
            AttemptKeys(house.data_dir)
        assert refused.value.filename == str(note)
        note.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user than root, who may trace everything")
def test_other_programs_of_the_user_cannot_read_a_supervisor() -> None:
    code = (
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(Path(names.__file__).parents[2])!r})\n"
        "from service.runtime import processes\n"
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "pid, (reading, writing) = os.getpid(), os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.read(reading, 1)\n"
        "    found = []\n"
        "    for name in ('mem', 'environ', 'fd/0', 'maps'):\n"
        "        try: open(f'/proc/{pid}/{name}', 'rb').close(); found.append(name)\n"
        "        except PermissionError: pass\n"
        "    print(found, flush=True); os._exit(0)\n"
        "processes.allow_tracing()\n"
        "if sys.argv[1] == 'forbid': processes.forbid_tracing()\n"
        "os.write(writing, b'!'); os.waitpid(child, 0)\n"
    )
    found = {
        word: subprocess.run(
            [sys.executable, "-c", code, word], stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        for word in ("allow", "forbid")
    }
    assert found["forbid"].stdout == b"[]\n"
    assert found["allow"].stdout == b"['mem', 'environ', 'fd/0', 'maps']\n"


def test_records_carry_seals(house: House) -> None:
    house.run(python("pass"))
    for name in (names.SUPERVISOR, names.RANKS, names.STARTED, names.EXIT):
        raw = read_json(house.folder() / name)
        assert raw is not None
        assert house.seal().opened(name, raw) is not None, name
