"""A profile of a real program through the whole service: two servers of this machine, and stalls that are known."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import PATIENCE, ROOT, LiveService

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("profiled_program.py")
DEADLINE_S = 120.0 * PATIENCE
QUICK = ("--gpus", "2", "--iterations", "8", "--window-s", "4", "--warm-up", "2")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    made = LiveService(tmp_path_factory.mktemp("profile"), [{"count": 2, "gpus": 2, "gpu_type": "V100", "rack": "r1"}])
    made.start()
    yield made
    made.close()


def profile(service: LiveService, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "service.cli.main", "job", "profile", "--name", "busy", *QUICK, *arguments]
    environ = service.environ | {"SOONER_URL": service.url}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_stalls_of_a_program_are_separated_stored_and_advised_on(service: LiveService) -> None:
    done = profile(service, "--json", "--", sys.executable, str(PROGRAM), "0.1", "0.05", "0.15", "0.4")
    out, errors = done.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, errors + service.tail()
    found = json.loads(out)
    one, server, servers = (run["parts_s"] for run in found["runs"])
    # A busy machine makes every part longer, and by different amounts: what is asked is that each stall is found where it is.
    assert one["input_s"] == pytest.approx(0.05, rel=0.4) and one["compute_s"] == pytest.approx(0.1, rel=0.4)
    assert server["interconnect_s"] == pytest.approx(0.15, abs=0.1)
    assert servers["network_s"] == pytest.approx(0.4, abs=0.2)
    codes = {advice["code"] for advice in found["advice"]}
    assert {"one_server", "input"} <= codes and "input_unknown" not in codes
    table = service.get("/v1/throughput")["items"]
    stored = {
        (row["gpus"], row["servers_spanned"]): row["median_s_per_iteration"] for row in table if row["name"] == "busy"
    }
    assert set(stored) == {(1, 1), (2, 1), (2, 2)}
    assert stored[1, 1] < stored[2, 1] < stored[2, 2]
    jobs = service.get("/v1/jobs")["items"]
    assert {job["state"] for job in jobs} == {"cancelled"} and len(jobs) == 3


def test_ctrl_c_leaves_no_run_behind(service: LiveService) -> None:
    command = profile(service, "--", sys.executable, str(PROGRAM), "0.05", "0", "0", "0")

    def running() -> int | None:
        found = service.get("/v1/jobs?state=running")["items"]
        return found[0]["id"] if found else None

    job = service.until(running, 30.0, "the first run is running")
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 130, errors
    assert f"job {job} is cancelled" in errors
    service.until_state(job, "cancelled")
