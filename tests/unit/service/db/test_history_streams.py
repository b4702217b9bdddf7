"""A long history passes by: what is held of it does not grow with the database."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import training as benchmark
from predictor.rows import rows_to_jsonl
from service.db.history import ended_jobs
from service.db.session import Database

ROWS = 12_000
HELD_BYTES_MAX = 4 << 20
"""A thousand rows at a time with what SQLAlchemy keeps beside them; all of them take 10 MiB."""


def _peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_labels_stream_whether_all_are_read_or_the_newest(database: Database, tmp_path: Path) -> None:
    benchmark.fill(database, ROWS)
    seen = sum(1 for _ in ended_jobs(database))
    assert seen == ROWS
    assert _peak_bytes(lambda: list(ended_jobs(database))) > 2 * HELD_BYTES_MAX, "the limit would notice"
    assert _peak_bytes(lambda: sum(1 for _ in ended_jobs(database))) < HELD_BYTES_MAX
    assert _peak_bytes(lambda: rows_to_jsonl(tmp_path / "rows.jsonl.gz", ended_jobs(database))) < HELD_BYTES_MAX
    assert _peak_bytes(lambda: sum(1 for _ in ended_jobs(database, newest=1000))) < HELD_BYTES_MAX
    newest = [label.ended_at_s for label in ended_jobs(database, newest=1000)]
    assert newest == sorted(label.ended_at_s for label in ended_jobs(database))[-1000:]


@pytest.mark.slow
def test_the_benchmark_of_training_says_what_each_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["training", "--rows", "300", "--folder", str(tmp_path)])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("300 ended jobs in a database of ")
    assert [line.split()[0] for line in lines[2:]] == ["step", "fill", "warm", "due", "export", "training"]
    assert all(float(number) > 0.0 for line in lines[3:] for number in line.split()[1:])
    assert list(tmp_path.iterdir()) == []
