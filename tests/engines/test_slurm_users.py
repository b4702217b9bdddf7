"""Jobs that run as their users: root submits and cancels them as another system user."""

import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from service.executors.cluster.driver import EngineEnd, EngineJobState, NodeLaunch, NodeShare
from service.executors.cluster.slurm import SlurmDriver, SlurmOptions
from tests.engines.slurm_cluster import SlurmCluster, wait_for
from tests.engines.slurm_service import SlurmService

USER = pwd.getpwnam("nobody")
TELL = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getuid()} {sys.stdin.read()}'); time.sleep(600)"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can pass through, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="sooner-users-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_a_launch_runs_as_its_user(slurm_cluster: SlurmCluster, open_folder: Path) -> None:
    place = open_folder / "inbox"
    place.mkdir()
    place.chmod(0o1777)
    driver = SlurmDriver(slurm_cluster.slurm, "users", SlurmOptions(users=True))
    program = ("/usr/bin/python3", "-c", TELL, str(place / "told"))
    job = driver.submit(NodeLaunch(AttemptId("7.1"), (NodeShare("node1", 1),), program, b"plan", USER.pw_name))
    wait_for(lambda: (place / "told").exists() and (place / "told").read_text(), "the program tells")
    assert (place / "told").read_text() == f"{USER.pw_uid} plan\n"
    assert {found.user for found in slurm_cluster.slurm.jobs() if str(found.id) == job} == {USER.pw_name}
    restarted = SlurmDriver(slurm_cluster.slurm, "users", SlurmOptions(users=True))
    assert [found.id for found in restarted.jobs()] == [job]
    restarted.cancel([job])
    wait_for(lambda: restarted.jobs()[0].state is EngineJobState.ENDED, "its end")
    assert restarted.jobs()[0].end is EngineEnd.CANCELLED


def test_a_service_runs_jobs_as_their_users(slurm_cluster: SlurmCluster, open_folder: Path) -> None:
    service = SlurmService(
        open_folder / "service",
        slurm_cluster,
        open_folder / "shared",
        RUN_AS="submitter",
        RUN_AS_USERS=f"tester={USER.pw_name}",
    )
    try:
        service.start()
        script = "echo uid $(id -u); echo kept > $SOONER_CHECKPOINT_DIR/file; cat $1/executor.key"
        command = ["sh", "-c", script, "sh", str(open_folder / "shared")]
        job = service.submit(name="whoami", user="tester", gpus=2, command=command, max_retries=0)
        ended = service.until(lambda: _ended(service, job), 60.0, "its end")
        log = service.request("GET", f"/v1/jobs/{job}/logs").text
        assert f"uid {USER.pw_uid}" in log
        assert ended["state"] == "failed" and "Permission denied" in log, "the key of the service is closed to jobs"
        (file,) = (open_folder / "shared" / "checkpoints").glob(f"{job}-*/file")
        assert (file.read_text(), file.stat().st_uid) == ("kept\n", USER.pw_uid)
        body = {"name": "whoami", "user": "unknown-here", "gpus": 1, "command": ["true"]}
        refused = service.request("POST", "/v1/jobs", body)
        assert refused.status_code == 422 and "no system user for this one" in refused.text
    finally:
        service.close()


def _ended(service: SlurmService, job: int) -> dict[str, object] | None:
    document: dict[str, object] = service.job(job)
    return document if document["state"] in ("succeeded", "failed") else None
