"""The jobs of the comparison beside Slurm, and the program that stands for them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import slurm_mix
from benchmarks.slurm_mix import mix


def test_the_mix_has_the_load_that_was_asked_for_and_recurs() -> None:
    past, jobs = mix(1, 200, 240.0, 16, 1.5)
    assert sum(job.gpus * job.run_s for job in jobs) == pytest.approx(1.5 * 16 * 240.0, rel=0.02)
    assert len(past) == 600
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert {job.name for job in jobs} <= {job.name for job in past}
    assert all(job.gpus <= 16 and job.padded >= 1.5 for job in jobs)
    assert mix(1, 200, 240.0, 16, 1.5) == (past, jobs)
    assert mix(2, 200, 240.0, 16, 1.5)[1] != jobs


def test_a_program_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    progress = tmp_path / "progress.jsonl"
    environ = {
        **os.environ,
        "SOONER_CHECKPOINT_DIR": str(tmp_path / "checkpoint"),
        "SOONER_PROGRESS_FILE": str(progress),
    }

    def start(run_s: float) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, slurm_mix.__file__, str(tmp_path), "7", str(run_s)], env=environ)

    record = tmp_path / "7"
    first = start(600.0)
    deadline_s = time.monotonic() + 60.0
    while not record.exists() or not record.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    first.send_signal(signal.SIGUSR1)
    assert first.wait(60.0) == 75
    done_s = float((tmp_path / "checkpoint" / "done").read_text())
    assert 0.0 < done_s < 600.0
    assert "checkpoint_iteration" in json.loads(progress.read_text().splitlines()[-1])
    assert start(done_s).wait(60.0) == 0
    assert [line.split()[0] for line in record.read_text().splitlines()] == ["start", "yield", "start", "end"]
