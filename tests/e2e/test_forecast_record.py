"""A real service tells of every job unasked, scores what it told, and lets its own past be run again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService, write_history

pytestmark = pytest.mark.slow

RUN_S = 1.5
"""Of each job, as the imitation runs it."""


def _sooner(service: LiveService, *arguments: str) -> Any:
    """A command on this service's machine, with its settings; the document that it prints."""
    code = "from service.cli.main import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=service.environ | {"SOONER_URL": service.url},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_job_is_told_of_and_scored_and_the_past_runs_again(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(EXECUTOR="fake", FORECAST_PERIOD_S="0.2", FORECAST_CPU_RATIO="1.0")
    write_history(f"sqlite:///{service.data_dir / 'sooner.db'}", {("train", 4): (15, 0.1)}, runs=40)
    service.start()
    service.start_forecasts()
    labels = {"fake_duration_s": str(RUN_S)}
    jobs = [service.submit(name="train", gpus=4, command=["true"], labels=labels) for _ in range(4)]

    def told_of_all() -> bool:
        return all(service.job(job)["forecasts"] for job in jobs)

    service.until(told_of_all, 20.0, "every job is told of")
    cycle = max(service.get("/v1/snapshots")["cycles"])
    snapshot = tmp_path / "cycle.json"
    snapshot.write_text(json.dumps(service.get(f"/v1/cycles/{cycle}/snapshot")))
    for job in jobs:
        service.until_state(job, "succeeded", timeout_s=60.0)

    def scored() -> Any:
        return (
            service.get("/v1/forecasts/accuracy") if service.get("/v1/forecasts/accuracy")["forecasts"] >= 7 else None
        )

    accuracy = service.until(scored, 20.0, "all that was told is scored")
    # Four ends and the three starts that lay ahead; each run is as predicted, so the queue's times are known to seconds.
    assert accuracy["finish"]["all"]["jobs"] == 4
    assert accuracy["finish"]["all"]["median_absolute_error_s"] < 3.0 * RUN_S
    last = service.get(f"/v1/jobs/{jobs[-1]}/forecasts")["items"]
    assert {each["milestone"] for each in last} == {"start", "finish"}
    assert all(each["scored_at"] is not None for each in last)
    assert service.job(jobs[-1])["eta"] is None

    past = _sooner(service, "sim", "what-if", "--policies", "current,srtf", "--json")
    assert (past["jobs"], [run["policy"] for run in past["runs"]]) == (4, ["current", "srtf"])
    # The simulator does not launch; beyond that the policy does again what it did.
    assert past["runs"][0]["mean_jct_s"] == pytest.approx(past["actual"]["mean_jct_s"], abs=2.0)
    ahead = _sooner(service, "sim", "what-if", "--snapshot", str(snapshot), "--policies", "srtf", "--json")
    assert [each["policy"] for each in ahead["policies"]] == ["current", "srtf"]
    assert _sooner(service, "forecast", "--accuracy", "--json")["accuracy"]["forecasts"] >= 7

    workers = [child for child in _children(service) if "service.forecast.worker" in " ".join(child.cmdline())]
    assert len(workers) == 1, "forecasts are made by a process of their own"
    service.kill()
    service.until(lambda: not workers[0].is_running(), 20.0, "which ends with the service")


def _children(service: LiveService) -> list[psutil.Process]:
    assert service.process is not None
    return psutil.Process(service.process.pid).children()
