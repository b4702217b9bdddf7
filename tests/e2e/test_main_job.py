"""The main job on real processes, through HTTP: predicted, ordered, placed, preempted, resumed, finished, learnt from."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import MakeService
from tests.e2e.harness import START_S, LiveService, write_history

pytestmark = pytest.mark.slow

FAMILIES = {("long", 4): (400, 0.02), ("short", 2): (40, 0.02)}


@pytest.fixture
def service(make_service: MakeService) -> LiveService:
    service = make_service()
    write_history(f"sqlite:///{service.data_dir / 'sooner.db'}", FAMILIES, runs=120)
    service.start()
    return service


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service without a past that stands for all tests of single jobs, each of which leaves the cluster empty."""
    made = LiveService(tmp_path_factory.mktemp("standing"), [{"count": 1, "gpus": 4, "gpu_type": "V100", "rack": "r1"}])
    made.start()
    yield made
    made.close()


def test_a_job_goes_in_over_http_and_comes_out_finished(standing: LiveService) -> None:
    job = standing.submit(name="hello", gpus=1, command=["sh", "-c", "echo out; echo err >&2"])
    done = standing.until_state(job, "succeeded")
    assert done["exit_code"] == 0 and done["attempts"] == 1
    log = standing.request("GET", f"/v1/jobs/{job}/logs").text
    assert "out" in log and "err" in log


REPORT = """
import json, os, urllib.request
urllib.request.urlopen(urllib.request.Request(
    os.environ["SOONER_PROGRESS_URL"],
    json.dumps({"iteration": 7, "total_iterations": 9}).encode(),
    {"Authorization": "Bearer " + os.environ["SOONER_PROGRESS_TOKEN"], "Content-Type": "application/json"},
))
print(os.environ["SOONER_PROGRESS_URL"])
"""


def test_a_program_reports_over_http_to_a_service_on_all_addresses(tmp_path: Path) -> None:
    made = LiveService(tmp_path, [{"count": 1, "gpus": 1}], HOST="0.0.0.0", ALLOWED_HOSTS="gpu1.example.org")
    try:
        made.launch()
        made.until(made.address, START_S, "the service listens")
        made.url = f"http://127.0.0.1:{urlsplit(made.url).port}"
        made.until(lambda: httpx.get(f"{made.url}/readyz").status_code == 200, START_S, "the service is ready")
        job = made.submit(name="reporting", gpus=1, command=[sys.executable, "-c", REPORT])
        made.until_state(job, "succeeded")
        assert f"{made.url}/v1/attempts/{job}.1/progress" in made.request("GET", f"/v1/jobs/{job}/logs").text
    finally:
        made.close()


def test_a_shorter_gang_preempts_and_the_longer_one_resumes_from_its_checkpoint(service: LiveService) -> None:
    long = service.train(400, 0.02, name="long", gpus=4)
    service.until(
        lambda: len(service.story(long)) >= 1 and _checkpointed(service, long), 20, "the long job checkpoints"
    )
    predicted = service.job(long)["prediction"]
    assert predicted["unit"] == "iterations" and 350 <= predicted["p50"] <= 450
    assert "120 past runs" in predicted["source"]
    short = service.train(40, 0.02, name="short", gpus=2)
    service.until_state(short, "succeeded")
    service.until_state(long, "succeeded", timeout_s=60)

    first, second = service.attempts(long)
    assert (first["state"], first["reason"], first["exit_code"]) == ("preempted", "preempted", 75)
    assert second["state"] == "completed"
    assert service.job(long)["preemptions"] == 1
    story = service.story(long)
    assert [line["event"] for line in story] == ["start", "yield", "start", "end"]
    # It resumes exactly where it stopped, and never behind its last complete checkpoint.
    assert story[2]["iteration"] == story[1]["iteration"] > 0
    assert service.job(long)["iterations_done"] == 400
    events = service.get(f"/v1/jobs/{long}/events")["items"]
    assert [event["target"] for event in events] == [
        "queued",
        "starting",
        "running",
        "preempting",
        "queued",
        "starting",
        "running",
        "succeeded",
    ]


def test_predictions_are_scored_and_a_retrained_model_predicts(service: LiveService) -> None:
    first = service.train(40, 0.01, name="short", gpus=2)
    service.until_state(first, "succeeded")
    # The total that the program reports may have revised the first one.
    scored = [row for row in service.get("/v1/predictions")["items"] if row["job_id"] == first]
    assert scored
    assert all(row["actual"] == 40 for row in scored)
    assert service.request("POST", "/v1/models/train").status_code == 202
    champion = service.until(lambda: _champion(service), 90, "a trained model is the champion")
    second = service.train(40, 0.01, name="short", gpus=2)
    prediction = service.until(lambda: service.job(second)["prediction"], 10, "the new job is predicted")
    assert prediction["model_version"].startswith(champion)
    assert prediction["p10"] <= prediction["p50"] <= prediction["p90"]
    service.until_state(second, "succeeded")


def test_a_program_that_reports_nothing_loses_its_work_when_preempted_but_runs(standing: LiveService) -> None:
    """Cancel, hold and release reach real processes; nothing stays behind."""
    job = standing.submit(name="sleeper", gpus=4, command=["sleep", "600"])
    standing.until_state(job, "running")
    assert standing.request("POST", f"/v1/jobs/{job}/hold", {"preempt": True}).status_code == 202
    held = standing.until(
        lambda: standing.job(job) if standing.job(job)["reason"] == "held" else None, 20, "it is held"
    )
    assert held["state"] in ("preempting", "queued")
    standing.until_state(job, "queued")
    assert standing.request("POST", f"/v1/jobs/{job}/release").status_code == 202
    standing.until_state(job, "running")
    assert standing.request("POST", f"/v1/jobs/{job}/cancel").status_code == 202
    standing.until_state(job, "cancelled")
    assert [attempt["state"] for attempt in standing.attempts(job)] == ["preempted", "cancelled"]
    standing.until(lambda: not standing.processes(), 10, "no process is left")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"command": ["/no/such/program"]}, "command_not_found"),
        ({"command": ["true"], "working_dir": "/no/such/folder"}, "working_dir_not_found"),
        ({"command": ["sh", "-c", "exit 3"], "max_retries": 0}, "crashed"),
        ({"command": ["sh", "-c", "exit 3"], "max_retries": 2}, "retries_exhausted"),
    ],
)
def test_a_failing_program_fails_its_job_with_the_reason(
    standing: LiveService, body: dict[str, Any], reason: str
) -> None:
    job = standing.submit(name="broken", gpus=1, **body)
    failed = standing.until_state(job, "failed")
    assert failed["reason"] == reason
    retries = body.get("max_retries", 0)
    assert len(standing.attempts(job)) == 1 + retries


def test_a_job_that_outlives_its_walltime_is_stopped(standing: LiveService) -> None:
    job = standing.submit(name="sleeper", gpus=1, command=["sleep", "600"], walltime_s=1.0)
    assert standing.until_state(job, "failed")["reason"] == "walltime"


def test_a_gang_runs_once_a_gpu_and_the_first_failure_ends_it(standing: LiveService) -> None:
    # It fails when all have said who they are: whoever has not begun by then is ended before it can.
    script = """echo rank $RANK of $WORLD_SIZE gpu $CUDA_VISIBLE_DEVICES; cd "$SOONER_CHECKPOINT_DIR"; : > $RANK
[ "$RANK" = 2 ] || exec sleep 600
until [ -e 0 ] && [ -e 1 ] && [ -e 3 ]; do sleep 0.01; done; exit 9"""
    job = standing.submit(name="gang", gpus=4, launch="gpu", command=["sh", "-c", script], max_retries=0)
    failed = standing.until_state(job, "failed")
    assert failed["exit_code"] == 9
    log = standing.request("GET", f"/v1/jobs/{job}/logs").text
    assert all(f"rank {rank} of 4" in log for rank in range(4))


def _checkpointed(service: LiveService, job: int) -> bool:
    points = service.get(f"/v1/jobs/{job}/progress")["items"]
    return any((point["checkpoint_iteration"] or 0) > 0 for point in points)


def _champion(service: LiveService) -> str | None:
    return next((model["id"] for model in service.get("/v1/models")["items"] if model["state"] == "champion"), None)
