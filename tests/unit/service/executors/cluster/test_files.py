"""Deletion of the files of ended jobs from a shared folder."""

from pathlib import Path

import pytest

from policies.model.ids import AttemptId, JobId
from service.executors.cluster import files as files_module
from service.executors.cluster import folder as shared
from service.executors.cluster.files import ClusterFiles
from service.executors.folder import end_record
from service.executors.keys import AttemptKeys
from tests.local_executor import WallClock, listings


@pytest.mark.parametrize(
    ("error", "pruned"), [(PermissionError(1, "not permitted"), [1, 0]), (OSError(5, "I/O"), [0, 0])]
)
def test_attempts_are_pruned_although_the_checkpoints_of_another_user_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OSError,
    pruned: list[int],
) -> None:
    attempts, checkpoints = tmp_path / "attempts", tmp_path / "checkpoints"
    (checkpoints / "1").mkdir(parents=True)
    shared.make_inbox(attempts, "1.1")
    files = ClusterFiles(attempts, checkpoints, AttemptKeys(tmp_path), WallClock())
    folder = files.folder(AttemptId("1.1"))
    folder.write_end(end_record("exited", 1.0, exit_code=0))
    folder.settle()

    def refuse(path: Path) -> None:
        raise error

    monkeypatch.setattr(files_module, "delete_path", refuse)
    assert [files.prune(files.jobs_with_files()) for _ in range(2)] == pruned
    assert files.jobs_with_files() == (set() if pruned[0] else {JobId(1)}), "an error that may pass is tried again"
    assert (checkpoints / "1").is_dir()
    assert sum(str(checkpoints / "1") in record.getMessage() for record in caplog.records) == 1


def test_jobs_that_are_pruned_together_share_one_listing_of_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    files = ClusterFiles(attempts, tmp_path / "checkpoints", AttemptKeys(tmp_path), WallClock())
    for name in ("1.1", "1.2", "2.1", "4.1"):
        shared.make_inbox(attempts, name)
        folder = files.folder(AttemptId(name))
        folder.write_end(end_record("exited", 1.0, exit_code=0))
        folder.settle()
    listed = listings(monkeypatch, attempts)
    assert (files.prune([JobId(1), JobId(2), JobId(3)]), len(listed)) == (3, 1)
    assert (files.prune([]), len(listed)) == (0, 1)
    assert files.jobs_with_files() == {JobId(4)}
