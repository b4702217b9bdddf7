"""Damaged folders of attempts: whatever a disk, or a job, has made of the files of one, the others are looked after."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import AttemptId
from service.engine.commands import Stop
from service.engine.events import ReportKind
from service.executors import folder as names
from service.executors.keys import AttemptKeys
from service.executors.local import LocalExecutor
from service.runtime.processes import boot_id
from tests.crash.nasty import VALUES, almost, spoiled
from tests.local_executor import CLUSTER, ENDS, WallClock

pytestmark = pytest.mark.slow

WHOLE: dict[str, Any] = {
    names.SUPERVISOR: {"pid": 1, "start_ticks": 1, "boot_id": "another", "at_s": 1.0, "master_port": 20001},
    names.RANKS: {"ranks": [[999_999_999, 1]]},
    names.STARTED: {"at_s": 2.0},
    names.STOP: {"warning_signal": "SIGUSR1", "grace_s": 5.0},
    names.EXIT: names.end_record("exited", 3.0, exit_code=0),
    names.ACKNOWLEDGED: names.end_record("exited", 3.0, exit_code=0),
}


def content(name: str) -> st.SearchStrategy[bytes]:
    """What such a file may hold."""
    whole = json.dumps(WHOLE[name]).encode()
    changed = st.one_of(almost(WHOLE[name]), VALUES).map(
        lambda value: json.dumps(value).encode("utf-8", "surrogatepass")
    )
    return st.one_of(st.just(whole), changed, spoiled(whole), st.just(b"[" * 200_000))


@settings(max_examples=250, deadline=None)
@given(data=st.data(), here=st.booleans(), sealed=st.booleans())
def test_a_damaged_folder_is_told_as_an_end_and_the_others_are_looked_after(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, here: bool, sealed: bool
) -> None:
    data_dir = tmp_path_factory.mktemp("folders")
    if sealed:
        names.make_private(data_dir / "attempts")
        AttemptKeys(data_dir)
    WHOLE[names.SUPERVISOR]["boot_id"] = boot_id() if here else "another"
    damaged = _folder(data_dir, "1.1", {names.EXIT: b""})
    for name in data.draw(st.sets(st.sampled_from(sorted(WHOLE)))):
        (damaged / name).write_bytes(data.draw(content(name)))
    whole = _folder(data_dir, "2.1", {names.EXIT: b""})
    seal = AttemptKeys(data_dir).seal("2.1")
    for name in (names.STARTED, names.EXIT):
        (whole / name).write_text(json.dumps(seal.sealed(name, WHOLE[name]) if sealed else WHOLE[name]))
    assert seal.required == sealed
    executor = LocalExecutor(data_dir, CLUSTER, clock=WallClock(), environ={})
    try:
        for _ in range(3):
            reports = executor.poll()
            executor.send([Stop(AttemptId("1.1"), graceful=True, warning_signal="SIGUSR1", grace_s=1.0)])
            ends = {report.attempt: report for report in reports if report.kind in ENDS}
            assert ends[AttemptId("2.1")].kind is ReportKind.EXITED
            executor.observed()
        assert AttemptId("1.1") in ends or (damaged / names.ACKNOWLEDGED).exists()
        executor.acknowledge(list(ends.values()))
        assert AttemptId("2.1") not in executor.observed()
    finally:
        executor.close()


def _folder(data_dir: Path, attempt: str, files: dict[str, bytes]) -> Path:
    """A folder as a supervisor that is gone has left it."""
    drafted, lock = names.draft(names.make_private(data_dir / "attempts"), attempt)
    for name, raw in files.items():
        (drafted / name).write_bytes(raw)
    os.close(lock)
    return names.publish(drafted, attempt)
