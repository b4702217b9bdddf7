"""However a comparison ends, it leaves no process behind and says nothing but what is meant for the user."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload
from tests.local_executor import wait_for

pytestmark = pytest.mark.slow

_DEADLINE_S = 180.0
_COMMAND = "from service.cli.main import main; main()"
_CLUSTER = "schema: sooner.cluster/1\nname: c\nservers: [{count: 8, gpus: 8, gpu_type: V100}]\n"


@pytest.mark.parametrize(
    ("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_all_processes_of_a_comparison(tmp_path: Path, ending: signal.Signals, code: int) -> None:
    write_workload(generate(1, 30_000, gpus=64, load=1.2), tmp_path / "w.csv")
    (tmp_path / "c.yaml").write_text(_CLUSTER)
    arguments = ["--workload", str(tmp_path / "w.csv"), "--cluster", str(tmp_path / "c.yaml")]
    arguments += ["--policies", "srsf,las,asrpt", "--workers", "2", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", _COMMAND, "sim", "compare", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
        parent = psutil.Process(running.pid)
        children = wait_for(lambda: _children(parent), "two workers", _DEADLINE_S)
        if ending is signal.SIGINT:
            os.killpg(running.pid, ending)  # what a terminal does
        else:
            parent.send_signal(ending)
        _, stderr = running.communicate(timeout=_DEADLINE_S)
    assert running.returncode == code
    wait_for(lambda: not any(_alive(child) for child in children) or None, "the end of the workers", _DEADLINE_S)
    kept = f"error: interrupted: 0 of 3 runs are kept in {tmp_path / 'out'}; repeat the command"
    assert stderr.decode() == (f"{kept} to make only the others\n" if ending is signal.SIGINT else "")
    assert ending is signal.SIGKILL or list((tmp_path / "out").iterdir()) == []


def _children(parent: psutil.Process) -> list[psutil.Process] | None:
    children = parent.children(recursive=True)
    return children if len(children) == 2 else None


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
