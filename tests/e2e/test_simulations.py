"""What-if runs of a real service: they outlive it when it is killed, and one that is cancelled leaves no process."""

import os
import signal
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService

pytestmark = pytest.mark.slow


def _workers(service: LiveService) -> list[psutil.Process]:
    assert service.process is not None
    found = []
    for each in psutil.Process(service.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # a child that has just ended
            # Before it has this name, the process sets its limits, and the wish to end with its parent.
            if each.cmdline()[1:3] == ["-m", "service.simulations.worker"]:
                found.append(each)
    return found


def _stopped_worker(service: LiveService) -> psutil.Process:
    """The process of the run under way, which makes no progress any more."""
    worker: psutil.Process = service.until(lambda: next(iter(_workers(service)), None), 60.0, "the run begins")
    os.kill(worker.pid, signal.SIGSTOP)
    return worker


def _ended(service: LiveService, number: int) -> Any:
    def found() -> Any:
        run = service.get(f"/v1/simulations/{number}")
        return run if run["ended_at"] is not None else None

    return service.until(found, 60.0, f"simulation {number} ends")


def _post(service: LiveService, path: str, body: Any = None) -> Any:
    answer = service.request("POST", path, body)
    assert answer.is_success, answer.text
    return answer.json()


def test_a_run_survives_the_death_of_its_service(make_service: MakeService) -> None:
    service = make_service(EXECUTOR="fake")
    service.start()
    jobs = [service.submit(name="train", gpus=4, command=["true"], labels={"fake_duration_s": "0.5"}) for _ in range(3)]
    for job in jobs:
        service.until_state(job, "succeeded", timeout_s=60.0)
    past = _post(service, "/v1/simulations", {"policies": ["current", "srtf"], "predictor": "oracle"})["id"]
    worker = _stopped_worker(service)
    ahead = _post(service, "/v1/simulations", {"policies": ["current"], "from_now": True})["id"]
    service.kill()
    service.until(lambda: not worker.is_running(), 20.0, "the process ends with the service")
    service.start()
    found = _ended(service, past)
    assert (found["state"], found["starts"], found["error"]) == ("succeeded", 2, None)
    assert (found["report"]["jobs"], [run["policy"] for run in found["report"]["runs"]]) == (3, ["current", "srtf"])
    found = _ended(service, ahead)
    assert (found["state"], found["error"]) == ("failed", "All jobs are finished.")

    cancelled = _post(service, "/v1/simulations", {"policies": ["current"]})["id"]
    worker = _stopped_worker(service)
    assert _post(service, f"/v1/simulations/{cancelled}/cancel")["state"] == "cancelled"
    service.until(lambda: not worker.is_running(), 20.0, "the process of a cancelled run is killed")
    stopped = _post(service, "/v1/simulations", {"policies": ["current"], "predictor": "oracle"})["id"]
    worker = _stopped_worker(service)
    assert service.stop() == 0, "a run under way does not hold up the end"
    assert not worker.is_running()
    service.start()
    assert _ended(service, stopped)["state"] == "succeeded"
