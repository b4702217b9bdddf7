"""What a job leaves in its folder harms neither readers nor pruning, and no other job."""

import json
import os
import socket
from pathlib import Path

import pytest

from policies.model.ids import JobId
from service.executors import folder as names
from service.executors.files import read_json, rename_over, reserve, write_json
from service.executors.local import LocalExecutor
from service.executors.logs import LogWriter, read_log
from service.executors.progress import Ignored, ProgressFile
from tests.hostile import Trick, dig, each_trick, within
from tests.local_executor import House, house, launch, python

__all__ = ["house"]


class TestLog:
    @each_trick
    def test_only_segments_are_read(self, tmp_path: Path, trick: Trick) -> None:
        writer = LogWriter(tmp_path, 1000)
        writer.write(b"text")
        writer.close()
        trick(tmp_path / "4")
        (tmp_path / "²").touch()
        (tmp_path / ("9" * 200)).touch()
        chunk = within(lambda: read_log(tmp_path, 0, 100))
        assert (chunk.data, chunk.size_bytes) == (b"text", 4)
        assert within(lambda: read_log(tmp_path, 4, 100)).data == b""

    @each_trick
    def test_a_folder_that_is_none_is_an_empty_log(self, tmp_path: Path, trick: Trick) -> None:
        attempt = tmp_path / "1.1"
        attempt.mkdir()
        trick(attempt / "output")
        assert within(lambda: read_log(attempt / "output", 0, 100)).data == b""
        (tmp_path / "2.1").symlink_to(attempt)
        assert within(lambda: read_log(tmp_path / "2.1" / "output", 0, 100)).data == b""

    @each_trick
    def test_the_writer_neither_waits_nor_follows(self, tmp_path: Path, trick: Trick) -> None:
        writer = LogWriter(tmp_path, 100)
        writer.write(b"x" * 50)
        trick(tmp_path / "50")
        within(lambda: writer.write(b"y" * 30))
        writer.close()
        assert within(lambda: read_log(tmp_path, 0, 100)).data == b"x" * 50
        victim = tmp_path / "victim"
        assert not victim.exists() or victim.read_text() == "secret"

    def test_a_writer_keeps_its_folder(self, tmp_path: Path) -> None:
        (tmp_path / "output").mkdir()
        (tmp_path / "elsewhere").mkdir()
        writer = LogWriter(tmp_path / "output", 100)
        (tmp_path / "output").rename(tmp_path / "moved")
        (tmp_path / "output").symlink_to(tmp_path / "elsewhere")
        writer.write(b"text")
        writer.close()
        assert list((tmp_path / "elsewhere").iterdir()) == []
        assert read_log(tmp_path / "moved", 0, 100).data == b"text"


class TestRecords:
    @each_trick
    def test_reading(self, tmp_path: Path, trick: Trick) -> None:
        trick(tmp_path / "exit.json")
        assert within(lambda: read_json(tmp_path / "exit.json")) is None

    @pytest.mark.parametrize(
        "content", [b"", b"[" * 100_000, b"[1]", b"\xff", b"NaN", b'{"a": ' + b"9" * 5000 + b"}", b" " * (1 << 20)]
    )
    def test_content_that_is_no_object(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "exit.json").write_bytes(content)
        assert read_json(tmp_path / "exit.json") is None

    @each_trick
    @pytest.mark.parametrize("with_room", [True, False])
    def test_a_record_is_written_whatever_is_in_its_place(self, tmp_path: Path, trick: Trick, with_room: bool) -> None:
        if with_room:
            reserve(tmp_path / "reserved", 4096)
        else:
            trick(tmp_path / "reserved")
        for name in ("exit.json", f".exit.json.{os.getpid()}", names.ACKNOWLEDGED):
            trick(tmp_path / name)
        within(lambda: write_json(tmp_path / "exit.json", {"a": 1}, reserved=tmp_path / "reserved"))
        assert read_json(tmp_path / "exit.json") == {"a": 1}
        rename_over(tmp_path, "exit.json", names.ACKNOWLEDGED)
        assert read_json(tmp_path / names.ACKNOWLEDGED) == {"a": 1}

    def test_a_bell_that_is_a_file_is_not_written_into(self, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("secret")
        for folder, target in (("link", victim), ("file", None)):
            (tmp_path / folder).mkdir()
            wake = tmp_path / folder / names.WAKE
            wake.write_text("secret") if target is None else wake.symlink_to(target)
            names.ring(tmp_path / folder)
            assert wake.read_text() == "secret"

    def test_the_mark_of_a_signal_does_not_follow_a_link(self, tmp_path: Path) -> None:
        (tmp_path / names.SIGNALLED).symlink_to(tmp_path / "created")
        with pytest.raises(OSError, match="symbolic links"):
            names.mark_signalled(tmp_path)
        assert not (tmp_path / "created").exists()


class TestProgressFile:
    @each_trick
    def test_it_is_counted_and_nothing_else(self, tmp_path: Path, trick: Trick) -> None:
        trick(tmp_path / "progress.jsonl")
        file = ProgressFile(tmp_path / "progress.jsonl", 0.0)
        assert not within(lambda: file.read(1.0))
        assert file.progress.ignored[Ignored.NOT_A_FILE] == 1

    def test_the_folder_may_not_be_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "2.1").mkdir()
        (tmp_path / "2.1" / "progress.jsonl").write_text('{"iteration": 5}\n')
        (tmp_path / "1.1").symlink_to(tmp_path / "2.1")
        file = ProgressFile(tmp_path / "1.1" / "progress.jsonl", 0.0)
        assert not file.read(1.0)


class TestPruning:
    def ended(self, house: House, job: int) -> Path:
        end = house.run(python("pass"), job=job)
        house.executor.acknowledge([end])
        return house.folder(f"{job}.1")

    def test_a_tree_that_is_deeper_than_recursion(self, house: House) -> None:
        folder = self.ended(house, 1)
        dig(folder / "work", 2000)
        dig(house.data_dir / "checkpoints" / "1", 2000)
        assert house.executor.prune([JobId(1)]) == 1
        assert sorted(path.name for path in folder.iterdir()) == ["acknowledged.json", "lock"]
        assert not (house.data_dir / "checkpoints" / "1").exists()
        assert house.executor.jobs_with_files() == set()

    def test_one_folder_holds_up_no_other(
        self, house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folders = [self.ended(house, job) for job in (1, 2, 3)]
        unlink, unlinkable = os.unlink, (folders[1] / names.PROGRESS).stat().st_ino

        def refuse(name: str, *, dir_fd: int) -> None:
            if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino == unlinkable:
                raise PermissionError(1, "not permitted", name)
            unlink(name, dir_fd=dir_fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", refuse)
            jobs = [JobId(job) for job in (1, 2, 3)]
            assert [house.executor.prune(jobs) for _ in range(2)] == [2, 2]
        logged = [record.getMessage() for record in caplog.records]
        assert len(logged) == 1, "once"
        assert str(folders[1]) in logged[0]
        assert house.executor.jobs_with_files() == {JobId(2)}, "they are tried again"
        assert house.executor.prune([JobId(2)]) == 1
        assert house.executor.jobs_with_files() == set()

    def test_numbers_that_no_job_has(self, house: House) -> None:
        attempts = house.data_dir / "attempts"
        for name in ("9" * 40 + ".1", "1." + "9" * 40, "²", "²." + "1"):
            (attempts / name / "output").mkdir(parents=True)
        os.mkfifo(attempts / "8.1")
        (attempts / "9.1").symlink_to(attempts)
        fresh = house.new_executor()
        assert within(fresh.jobs_with_files) == set()
        assert within(fresh.poll) == []
        assert fresh.observed() == {}
        with pytest.raises(KeyError):
            within(lambda: fresh.read_logs(JobId(9), 1))
        with pytest.raises(KeyError):
            within(lambda: fresh.read_logs(JobId(8), 1))


@each_trick
def test_a_job_that_replaces_its_records_ends_with_its_exit_code(house: House, trick: Trick, tmp_path: Path) -> None:
    """The supervisor replaces whatever is in the place of the record of the end."""
    release = tmp_path / "go"
    wait = f"while not os.path.exists({str(release)!r}): time.sleep(0.01)"
    code = f"import os, time\nprint('ready', flush=True)\n{wait}\nraise SystemExit(3)"
    house.executor.send([launch(python(code))])
    house.wait_output("ready")
    trick(house.folder() / names.EXIT)
    trick(house.folder() / names.ACKNOWLEDGED)
    release.touch()
    end = within(house.wait_end, 120.0)
    assert end.exit_code == 3
    house.executor.acknowledge([end])
    assert json.loads((house.folder() / names.ACKNOWLEDGED).read_text())["exit_code"] == 3
    assert house.new_executor().observed() == {}


def test_a_socket_in_the_place_of_the_log(house: House) -> None:
    house.run(python("pass"))
    (house.folder() / "output" / "0").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        old = Path.cwd()
        os.chdir(house.folder() / "output")
        try:
            server.bind("0")
        finally:
            os.chdir(old)
    assert isinstance(house.executor, LocalExecutor)
    assert within(lambda: house.executor.read_logs(JobId(1), 1)).data == b""
