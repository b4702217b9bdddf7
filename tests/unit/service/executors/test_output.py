"""The end of the output of ranks."""

import os
from pathlib import Path

from service.executors.logs import LogWriter
from service.executors.output import Output
from service.executors.ranks import Rank
from service.runtime.processes import ProcessId

_END_BYTES = 8 * 2**20


def test_output_without_end_does_not_delay_the_end(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    # More than a pipe holds: a process of the same user writes on.
    (tmp_path / "endless").write_bytes(b"x" * _END_BYTES)
    pipe = os.open(tmp_path / "endless", os.O_RDONLY)
    rank = Rank(0, ProcessId(1, 1), pipe, -1)
    kept = os.dup(pipe)
    Output(LogWriter(tmp_path / "log", 4096), gang=False).finish([rank])
    copied = os.lseek(kept, 0, os.SEEK_CUR)
    os.close(kept)
    assert 2**20 <= copied < _END_BYTES
    assert rank.output == -1
