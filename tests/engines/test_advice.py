"""Advice beside a real Slurm: it changes nothing unless asked, undoes what it set, and its intervals hold."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.advice.site import Site
from tests.engines.advice_day import Recorded, jobs_of_a_day, record, scaled
from tests.engines.slurm_cluster import SlurmCluster, wait_for

SEED = 20
JOBS = 160

_COMMANDS = ("squeue", "sinfo", "scontrol", "sacct", "sacctmgr", "sbatch", "srun", "scancel")


@pytest.fixture
def counted(slurm_cluster: SlurmCluster, tmp_path: Path) -> dict[str, str]:
    """An environment whose commands of Slurm note each call in the file ``calls`` and then are the real ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in _COMMANDS:
        real = slurm_cluster.commands.path(name)
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\nexec {real} "$@"\n')
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_CONF": str(slurm_cluster.conf)}


def _writes(folder: Path) -> list[str]:
    reads = ("squeue ", "sinfo ", "sacct ", "sacctmgr --noheader --parsable2 show ", "scontrol show config")
    return [call for call in (folder / "calls").read_text().splitlines() if not call.startswith(reads)]


def _queue(cluster: SlurmCluster) -> None:
    """Jobs that fill the cluster, and waiting ones whose order A-SRPT would change: long before short."""
    script = b"#!/bin/sh\nexec sleep 600\n"
    common = ("--parsable", "--mem", "1000", "--export", "ALL", "--output", "/dev/null")
    for _ in range(4):
        cluster.commands.run("sbatch", *common, "--gres", "gpu:4", "--time", "60", input=script)
    for minutes, gpus in ((50, 4), (40, 2), (30, 2), (1, 1)):
        cluster.commands.run("sbatch", *common, "--gres", f"gpu:{gpus}", "--time", str(minutes), input=script)
    cluster.commands.run("sbatch", *common, "--gres", "gpu:1", "--time", "2", "--array", "1-6%2", input=script)
    wait_for(lambda: sum(job.state == "RUNNING" for job in cluster.slurm.jobs()) == 4, "four jobs run")


def _state(cluster: SlurmCluster) -> dict[int, tuple[str, int, int]]:
    return {job.id: (job.state, job.nice, job.priority or 0) for job in cluster.slurm.jobs() if not job.ended}


def _advise(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "service.cli.main", "advise", "--slurm", "--state", str(folder / "state"), *arguments]


def test_nothing_is_written_without_set(slurm_cluster: SlurmCluster, counted: dict[str, str], tmp_path: Path) -> None:
    _queue(slurm_cluster)
    before = _state(slurm_cluster)
    done = subprocess.run(_advise(tmp_path, "--json"), env=counted, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert len(document["jobs"]) == 4 + 4 + 6
    assert all(job["start_at"] is not None for job in document["jobs"] if job["state"] == "pending")
    assert document["mean_time_to_completion"]["schedules"]["slurm_by_asrpt"]["saved_ratio"] > 0.0
    assert _writes(tmp_path) == []
    assert _state(slurm_cluster) == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_order_is_set_and_undone(
    slurm_cluster: SlurmCluster, counted: dict[str, str], tmp_path: Path, how: signal.Signals
) -> None:
    _queue(slurm_cluster)
    before = _state(slurm_cluster)
    process = subprocess.Popen(
        _advise(tmp_path, "--set", "nice", "--every", "60s"),
        env=counted,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        short = max(before)
        wait_for(lambda: sum(_state(slurm_cluster)[job][1] != before[job][1] for job in before) >= 3, "values are set")
        pending = {job: priority for job, (state, _, priority) in _state(slurm_cluster).items() if state == "PENDING"}
        assert pending[short - 1] > pending[short - 4], "the short job comes before the long one"
    finally:
        process.send_signal(how)
        process.wait(60)
    if how is signal.SIGKILL:
        assert _state(slurm_cluster) != before
        subprocess.run(_advise(tmp_path, "--undo"), env=counted, capture_output=True, check=True)
    assert _state(slurm_cluster) == before
    assert all(call.startswith("scontrol update JobId=") and " Nice=" in call for call in _writes(tmp_path))


def test_intervals_of_starts_hold_on_a_replayed_day(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Recurring jobs at 95% load, a day in minutes. Each look at the queue is forecast by what was known then."""
    with scaled(slurm_cluster):
        day = record(slurm_cluster, jobs_of_a_day(SEED, JOBS))
    slurm = Recorded()
    site = Site(slurm, tmp_path, lambda now_s: [])
    inside: list[bool] = []
    for look in day.looks[::2]:
        slurm.look = look
        seen = site.look(look.at_s)
        site.learn(seen, look.at_s)
        made = site.advise(seen).jobs
        # Before the first calibration the intervals are said to be uncalibrated.
        if not site.calibration.jobs:
            continue
        for each in made:
            started_s = day.started_s.get(each.job.serial[0])
            if each.start is not None and started_s is not None:
                inside.append(each.start.p10_s <= started_s <= each.start.p90_s)
    print(f"{np.mean(inside):.3f} of {len(inside)} intervals hold")
    assert len(inside) > 300
    assert 0.70 <= np.mean(inside) <= 0.88
