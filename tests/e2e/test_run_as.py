"""A service of root whose jobs run as their users."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import LiveService

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs as other users"),
]

USER = pwd.getpwnam("nobody")


@pytest.fixture
def service() -> Iterator[LiveService]:
    """In a folder that every user can pass through, unlike those of pytest."""
    root = Path(tempfile.mkdtemp(prefix="sooner-test-"))
    root.chmod(0o711)
    servers = [{"count": 1, "gpus": 2}]
    made = LiveService(root, servers, RUN_AS="submitter", RUN_AS_USERS=f"tester={USER.pw_name}")
    yield made
    made.close()
    shutil.rmtree(root)


def log_of(service: LiveService, job: int) -> str:
    return service.request("GET", f"/v1/jobs/{job}/logs").text


def test_a_job_runs_as_its_user_and_reads_nothing_of_the_service(service: LiveService) -> None:
    service.start()
    assert "Jobs run as their users (run_as=submitter)" in service.log.read_text()
    data = service.data_dir
    readable = " ".join(
        f"{data}/{name}" for name in ("token", "sooner.db", "executor.key", "host_id", "database_id", "lease")
    )
    text = (
        "echo uid $(id -u); echo checkpoint > $SOONER_CHECKPOINT_DIR/file; "
        f"for f in {readable}; do cat $f 2>&1 > /dev/null && echo readable $f; done; ls {data} 2>/dev/null; "
        f"while [ ! -e {data.parent}/go ]; do sleep 0.05; done; "
        'echo "{\\"iteration\\": 5}" >> $SOONER_PROGRESS_FILE'
    )
    job = service.submit(name="test", command=["/bin/sh", "-c", text], user="tester", gpus=1)
    service.until(lambda: "uid" in log_of(service, job), 60.0, "its output")
    # A restart keeps the way to the folders of a running job open.
    assert service.stop() == 0
    service.start()
    (data.parent / "go").touch()
    service.until_state(job, "succeeded", timeout_s=60.0)
    said = log_of(service, job)
    assert f"uid {USER.pw_uid}" in said
    assert "readable" not in said
    assert [path.stat().st_uid for path in (data / f"checkpoints/{job}").iterdir()] == [USER.pw_uid]


def test_a_job_of_a_user_that_does_not_exist_is_refused(service: LiveService) -> None:
    service.start()
    body = {"name": "x", "command": ["/bin/true"], "gpus": 1, "user": "no-such-user-here"}
    answer = service.request("POST", "/v1/jobs", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/user"
