"""``sooner cluster import --slurm`` beside a running Slurm."""

import os
import subprocess
import sys
from pathlib import Path

from policies.model.cluster import Server
from service.config.cluster_file import load_cluster
from tests.engines.slurm_cluster import SlurmCluster


def _import(cluster: SlurmCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "service.cli.main", "cluster", "import", *arguments]
    environ = {**os.environ, "SLURM_CONF": str(cluster.conf)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_cluster_file_from_a_running_slurm(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    done = _import(slurm_cluster, "--slurm", "--out", str(file))
    warning, written = done.stderr.splitlines()
    assert (done.returncode, written) == (0, f"wrote 4 servers to {file}")
    assert warning.startswith("warning: GPU type 'a100' has no gpu_speed: 1.0, that of a V100, is assumed")
    cluster = load_cluster(file)
    assert cluster.name == "emulated"
    assert cluster.servers == tuple(
        Server(f"node{n}", 4, "a100", f"rack{(n + 1) // 2}", gpu_speed_assumed=True, cpus=16, memory_gib=62.5)
        for n in range(1, 5)
    )
    assert _import(slurm_cluster, "--slurm", "--partition", "main").stdout == file.read_text()
    missing = _import(slurm_cluster, "--slurm", "--partition", "nix")
    assert missing.returncode == 2 and "Slurm has no partition 'nix'; its partitions: main" in missing.stderr
