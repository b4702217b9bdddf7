"""The commands print and write the same bytes whatever Python's hash seed is, and however many workers share the runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policies.registry import BUILT_IN

pytestmark = pytest.mark.slow

SOONER = Path(sys.executable).with_name("sooner")
COSTS = ("--checkpoint-s", "10", "--launch-latency-s", "3", "--stop-latency-s", "2", "--network", "contended")
FAULTS = ("--mtbf-s", "40000", "--mttr-s", "900", "--crash-mtbf-s", "60000", "--drain", "s0002:1000:20000")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("same")
    table, machines = folder / "workload.csv", folder / "cluster.yaml"
    machines.write_text("schema: sooner.cluster/1\nservers: [{count: 4, gpus: 8, nic_gbps: 25}]\n")
    generate = [
        "workload",
        "generate",
        "--jobs",
        "80",
        "--seed",
        "3",
        "--gpus",
        "32",
        "--load",
        "1.2",
        "--out",
        str(table),
    ]
    subprocess.run([SOONER, *generate], check=True, capture_output=True)
    # Many at the same instant: where ties are, a hash could decide.
    rows = [line.split(",") for line in table.read_text().splitlines()]
    column = rows[0].index("submit_time_s")
    for row in rows[1:]:
        row[column] = str(float(row[column]) // 3600 * 3600)
    table.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return ["--workload", str(table), "--cluster", str(machines), "--predictor", "noisy:0.5", "--skip-invalid"]


def told(arguments: list[str], out: Path, hash_seed: str) -> tuple[Any, dict[str, bytes]]:
    """The document without its wall times, and every file but those that hold one."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [SOONER, "sim", *arguments, *COSTS, *FAULTS, "--json", "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for run in document.get("runs", [document]):
        del run["wall_s"]
    tables = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*jobs.csv")}
    assert tables
    return document, tables


@pytest.mark.parametrize("name", ["asrpt", "las", "fair"])
def test_a_run_does_not_depend_on_hashes(files: list[str], tmp_path: Path, name: str) -> None:
    run = ["run", *files, "--policy", name]
    one, two = (told(run, tmp_path / seed, seed) for seed in ("0", "4242"))
    assert one == two


def test_a_comparison_does_not_depend_on_hashes_or_workers(files: list[str], tmp_path: Path) -> None:
    compare = ["compare", *files, "--policies", ",".join(sorted(BUILT_IN))]
    document, tables = told([*compare, "--workers", "1"], tmp_path / "one", "1")
    assert len(tables) == 2 * len(BUILT_IN)
    assert told([*compare, "--workers", "3"], tmp_path / "three", "2") == (document, tables)
