"""SIGKILL at instants that matter and at random ones: no job is lost, none runs twice, exit codes are right."""

import random
import signal
import time
from collections import Counter
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService

pytestmark = pytest.mark.slow


def assert_sound(service: LiveService, job: int, iterations: int, ranks: int = 1) -> None:
    """The job's own story agrees with the service's: no attempt ran twice or beside another, nothing went behind a checkpoint."""
    story = service.story(job)
    starts = Counter((line["attempt"], line["rank"]) for line in story if line["event"] == "start")
    assert set(starts.values()) == {1}, f"an attempt ran twice: {starts}"
    attempts = service.attempts(job)
    assert all(attempt["ended_at"] for attempt in attempts), "an attempt is still open"
    done = service.job(job)
    assert done["iterations_done"] == iterations
    for rank in range(ranks):
        own = [line for line in story if line["rank"] == rank]
        running = None
        kept = 0
        for line in own:
            if line["event"] == "start":
                assert running is None or line["attempt"] != running
                assert line["iteration"] >= kept, f"resumed behind the checkpoint: {own}"
                running = line["attempt"]
            else:
                assert line["attempt"] == running, f"two attempts at once: {own}"
                kept = line["iteration"]
        assert own[-1]["event"] == "end"


def test_an_exit_while_the_service_is_dead_is_told_once_and_right(make_service: MakeService) -> None:
    """Between exit and report: the supervisor keeps the status until the service has committed it."""
    service = make_service()
    service.start()
    good = service.train(30, 0.01, name="good", gpus=1)
    bad = service.submit(name="bad", gpus=1, command=["sh", "-c", "sleep 0.5; exit 7"], max_retries=0)
    service.until_state(good, "running", "succeeded")
    service.until_state(bad, "running", "failed")
    service.kill()
    service.until(lambda: not service.processes(), 20, "both jobs end while nobody looks")
    service.start()
    assert service.until_state(good, "succeeded")["attempts"] == 1
    failed = service.until_state(bad, "failed")
    assert (failed["exit_code"], failed["attempts"]) == (7, 1)
    assert_sound(service, good, 30)


def test_a_running_job_outlives_the_service_and_is_adopted(make_service: MakeService) -> None:
    service = make_service()
    service.start()
    go = service.data_dir / "go"
    job = service.train(100, 0.02, name="steady", gpus=2, env={"GO": str(go)})
    service.until(lambda: service.story(job), 20, "the program runs")
    service.kill()
    (before,) = {process.pid for process in service.processes() if "program.py" in " ".join(process.cmdline())}
    service.start()
    assert psutil.pid_exists(before)
    go.touch()
    done = service.until_state(job, "succeeded")
    assert done["attempts"] == 1
    assert_sound(service, job, 100)


def test_a_kill_right_after_submission_loses_nothing(make_service: MakeService) -> None:
    """Between commit and send, and between fork and the first write: whatever the instant, one attempt runs, once."""
    service = make_service(gpus=8)
    service.start()
    jobs = []
    for pause_s in (0.0, 0.02, 0.05, 0.08, 0.12):
        jobs.append(service.train(5, 0.01, name="quick", gpus=1))
        _wait(pause_s)
        service.kill()
        service.start()
    for job in jobs:
        done = service.until_state(job, "succeeded")
        assert done["attempts"] == 1, service.attempts(job)
        assert_sound(service, job, 5)


def test_a_killed_supervisor_loses_its_attempt_but_not_its_job(make_service: MakeService) -> None:
    service = make_service()
    service.start()
    go = service.data_dir / "go"
    job = service.train(100, 0.02, name="victim", gpus=2, env={"GO": str(go)})
    service.until(lambda: _checkpoint_seen(service, job), 20, "a checkpoint is reported")
    (program,) = [process for process in service.processes() if "program.py" in " ".join(process.cmdline())]
    supervisor = program.parent()
    assert supervisor is not None
    supervisor.send_signal(signal.SIGKILL)
    go.touch()
    done = service.until_state(job, "succeeded", timeout_s=60)
    first, second = service.attempts(job)
    assert (first["state"], first["reason"]) == ("lost", "node_lost")
    assert second["state"] == "completed"
    assert done["attempts"] == 2
    resumed = [line for line in service.story(job) if line["event"] == "start"][1]
    assert resumed["iteration"] > 0
    assert_sound(service, job, 100)


def test_random_kills_of_the_service_lose_and_double_nothing(make_service: MakeService) -> None:
    """Preemptions, starts and ends are all under way while the service dies again and again (seeded)."""
    seed = 20_250_105
    draw = random.Random(seed)
    service = make_service(servers=2, gpus=4)
    service.start()
    jobs: dict[int, int] = {}
    for index in range(10):
        iterations = draw.choice([20, 60, 150])
        gpus = draw.choice([1, 2, 4])
        job = service.train(iterations, 0.02, name=f"family-{iterations}", gpus=gpus, declared_iterations=iterations)
        jobs[job] = iterations
        if index % 3 == 2:
            _wait(draw.uniform(0.0, 0.4))
            service.kill()
            service.start()
    for _ in range(3):
        _wait(draw.uniform(0.0, 0.8))
        service.kill()
        service.start()
    for job, iterations in jobs.items():
        service.until_state(job, "succeeded", timeout_s=90)
        assert_sound(service, job, iterations)
    service.until(lambda: not service.processes(), 10, "no process is left")
    cluster: Any = service.get("/v1/cluster")
    assert all(server["free_gpus"] == server["gpus"] for server in cluster["servers"]), cluster


def _checkpoint_seen(service: LiveService, job: int) -> bool:
    points = service.get(f"/v1/jobs/{job}/progress")["items"]
    return any((point["checkpoint_iteration"] or 0) > 0 for point in points)


def _wait(seconds: float) -> None:
    """Let real time pass: the instant of the kill is what varies."""
    time.sleep(seconds)
