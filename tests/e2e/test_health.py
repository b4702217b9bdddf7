"""Whole services and faulty servers: a program that hangs, programs that fail on one server, and GPUs that vanish."""

import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService

HANGS = (
    "import json, os, time\n"
    "for number in range(1, 21):\n"
    "    time.sleep(0.2)\n"
    "    with open(os.environ['SOONER_PROGRESS_FILE'], 'a') as file: print(json.dumps({'iteration': number}), file=file)\n"
    "time.sleep(1e6)"
)
SETTINGS = {"HEALTH_HANG_FACTOR": "3", "HEALTH_HANG_S_MIN": "2", "HEALTH_FAILURES_MAX": "2", "HEALTH_USABLE_MIN": "0"}

# NVML of two GPUs. While the file LOST exists, the second one does not answer.
WITH_GPUS = """
import os, sys
from service.executors import gpus
from service.executors.gpus import GpuInfo
from tests.faulty_nvml import FaultyNvml, NvmlError

class Nvml(FaultyNvml):
    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.lost = {"GPU-1": NvmlError(15, "GPU is lost")} if os.path.exists(os.environ["LOST"]) else {}
        return super().nvmlDeviceGetHandleByUUID(uuid)

gpus._has_driver = lambda: True
sys.modules["pynvml"] = Nvml([GpuInfo(index, f"GPU-{index}", "A100", 1 << 36) for index in range(2)])
from service.config.settings import load_settings
from service.server.app import serve
sys.exit(serve(load_settings()))
"""


def command(code: str) -> list[str]:
    """A command that runs a program of Python."""
    return [sys.executable, "-c", code]


def server_events(service: LiveService, kind: str) -> list[tuple[str, str]]:
    """(server, reason) of all events of a kind, newest first."""
    items = service.get("/v1/cluster/events")["items"]
    return [(event["server"], event["detail"]) for event in items if event["kind"] == kind]


def servers(service: LiveService) -> dict[str, Any]:
    """The servers by name."""
    return {server["name"]: server for server in service.get("/v1/cluster")["servers"]}


def signs(service: LiveService, sign: str) -> float:
    """The metric of signs of one kind."""
    lines = service.request("GET", "/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f'sooner_health_signs_total{{sign="{sign}"}}')
    )


def test_a_program_that_hangs_drains_its_server_until_an_operator_resumes_it(make_service: MakeService) -> None:
    service = make_service(2, HEALTH_DRAIN="hang", **SETTINGS)
    service.start()
    job = service.submit(name="hangs", gpus=1, command=command(HANGS))
    [(name, reason)] = service.until(lambda: server_events(service, "drained"), 60, "the drain")
    assert reason.startswith("an attempt has been at iteration 20 for ")
    assert server_events(service, "unhealthy") == [(name, reason)]
    drained = servers(service)[name]
    assert (drained["state"], drained["drained_by"], drained["detail"]) == ("drained", ["health"], reason)
    assert signs(service, "hang") == 1.0
    assert service.job(job)["state"] == "running", "only an operator decides about the job"
    other = service.submit(name="other", gpus=4, command=["true"])
    service.until_state(other, "succeeded")
    assert service.attempts(other)[0]["placement"][0]["server"] != name
    assert service.request("POST", f"/v1/cluster/servers/{name}/resume").status_code == 202
    service.until(lambda: servers(service)[name]["state"] == "up", 30, "the server is up")
    assert servers(service)[name]["detail"] == ""


def test_programs_that_fail_on_one_server_are_a_sign_and_no_drain_by_default(make_service: MakeService) -> None:
    service = make_service(1, **SETTINGS)
    service.start()
    for name in ("one", "one", "two"):
        job = service.submit(name=name, gpus=1, command=["false"], max_retries=0)
        service.until_state(job, "failed")
    [(name, reason)] = service.until(lambda: server_events(service, "unhealthy"), 60, "the sign")
    assert reason == "2 programs failed within 3600 s, the last of them: exit code 1, exit code 1"
    assert (servers(service)[name]["state"], signs(service, "failures")) == ("up", 1.0)


def test_a_gpu_that_vanishes_is_a_sign_and_the_last_server_stays(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(1, 2, HEALTH_DRAIN="gpu_lost", HEALTH_USABLE_MIN="0")
    cluster = Path(service.environ["SOONER_CLUSTER"])
    cluster.write_text(cluster.read_text().replace("V100", "A100"))
    service.environ["LOST"] = str(tmp_path / "lost")
    service.start("-c", WITH_GPUS)
    job = service.submit(name="where", gpus=2, command=command("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    service.until_state(job, "succeeded")
    assert service.request("GET", f"/v1/jobs/{job}/logs").text == "GPU-0,GPU-1\n"
    (tmp_path / "lost").touch()
    [(name, reason)] = service.until(lambda: server_events(service, "unhealthy"), 60, "the sign")
    assert reason.startswith("GPU 1 (A100, GPU-1): GPU is lost; not drained: 0 servers would be usable, and 1 must be")
    assert (servers(service)[name]["state"], signs(service, "gpu_lost")) == ("up", 1.0)
