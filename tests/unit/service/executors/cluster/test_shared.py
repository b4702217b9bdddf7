"""The service's part of the shared folder: its id, the index of live attempts, and what is kept of an attempt."""

import json
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.shared import LAUNCH, AttemptFolder, LaunchRecord, LiveIndex, cluster_id
from service.executors.seal import Seal

RECORD = LaunchRecord(("a", "b"), shared.INBOX, "SIGUSR1", 5.0)


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    shared.make_inbox(tmp_path, "1.1")
    return AttemptFolder(tmp_path / "1.1", Seal("key"))


def test_the_id_is_drawn_once(tmp_path: Path) -> None:
    first = cluster_id(tmp_path)
    assert cluster_id(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["cluster-id"]


def test_a_damaged_id_is_an_error_and_not_another_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster-id").write_text("strange")
    with pytest.raises(OSError, match=r"holds no id .*'strange'"):
        cluster_id(tmp_path)


def test_a_launch_is_read_as_it_was_written(folder: AttemptFolder) -> None:
    assert folder.read_launch() is None
    tried = RECORD.tried()
    folder.write_launch(tried)
    assert folder.read_launch() == tried
    assert (tried.submissions, tried.ids) == ((None,), [])
    submitted = tried.submitted("7").tried().submitted("8").tried()
    folder.write_launch(submitted)
    assert folder.read_launch() == submitted
    assert submitted.ids == ["7", "8"]


def test_a_launch_that_a_job_has_written_counts_as_none(folder: AttemptFolder) -> None:
    folder.write_launch(RECORD)
    record = json.loads((folder.path / LAUNCH).read_text())
    (folder.path / LAUNCH).write_text(json.dumps(record | {"servers": ["c"]}))
    assert folder.read_launch() is None


def test_pruning_keeps_what_keeps_the_attempt_from_running_again(folder: AttemptFolder) -> None:
    folder.write_launch(RECORD)
    folder.write_end(names.end_record("exited", 1.0, exit_code=0))
    folder.settle()
    (folder.path / names.PROGRESS).touch()
    assert folder.has_files()
    folder.prune()
    assert sorted(path.name for path in folder.path.iterdir()) == [names.ACKNOWLEDGED, LAUNCH]
    assert (folder.has_files(), folder.acknowledged(), folder.read_launch()) == (False, True, RECORD)
    folder.reopen()
    end = folder.read_end()
    assert end is not None
    assert (end["exit_code"], folder.acknowledged()) == (0, False)


def test_the_index_names_live_attempts_alone(tmp_path: Path) -> None:
    index = LiveIndex(tmp_path)
    for attempt in ("1.1", "1.1", "22.3"):
        index.add(AttemptId(attempt))
    (tmp_path / "live" / "strange").touch()
    assert sorted(index.attempts()) == ["1.1", "22.3"]
    index.remove(AttemptId("1.1"))
    index.remove(AttemptId("1.1"))
    assert (list(LiveIndex(tmp_path).attempts()), index.has(AttemptId("1.1"))) == (["22.3"], False)
