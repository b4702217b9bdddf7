"""A data folder without room: jobs say so, the service goes on, and when there is room again everything works as before."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import LiveService

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs to mount a small disk"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    """Its database has room; the folder of its attempts is a disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount")
    database = f"sqlite:///{tmp_path / 'roomy.db'}"
    made = LiveService(disk, [{"count": 1, "gpus": 4, "gpu_type": "V100"}], DATABASE_URL=database)
    made.log = tmp_path / "service.log"
    try:
        made.start()
        yield made
    finally:
        made.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(service: LiveService) -> Path:
    """Use up all room."""
    ballast = service.data_dir.parent / "ballast"
    with ballast.open("ab", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            return ballast


def test_jobs_say_that_the_disk_is_full_and_the_service_goes_on(service: LiveService) -> None:
    steady = service.train(400, 0.02, name="steady", gpus=1, max_retries=100)
    service.until(lambda: service.story(steady), 20.0, "the program runs")
    # Where there is always room.
    go = service.log.with_name("go")
    until_go = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    talker = until_go + "for _ in range(4000): print('y' * 1000)\nopen('big', 'w').write('x' * 9_000_000)"
    talks = service.submit(name="talks", gpus=1, command=["python3", "-c", talker], max_retries=0)
    service.until_state(talks, "running")
    ballast = fill(service)
    go.touch()

    unborn = service.submit(name="unborn", gpus=1, command=["true"], max_retries=0)
    failed = service.until_state(unborn, "failed", timeout_s=60.0)
    assert failed["reason"] == "disk_full", failed
    assert service.until_state(talks, "failed", timeout_s=60.0)["reason"] == "disk_full"
    assert service.request("GET", "/readyz").status_code == 200
    unwanted = service.submit(name="unwanted", gpus=1, command=["sleep", "600"], hold=True)
    assert service.request("POST", f"/v1/jobs/{unwanted}/cancel", {}).status_code == 202
    service.until_state(unwanted, "cancelled")

    ballast.unlink()
    # It may have died of its own checkpoint that did not fit, and then begins again at the last one that did.
    service.until_state(steady, "succeeded", timeout_s=90.0)
    assert service.story(steady)[-1]["iteration"] == 400
    again = service.submit(name="again", gpus=4, command=["true"], max_retries=0)
    service.until_state(again, "succeeded", timeout_s=60.0)
    service.until(lambda: not service.processes(), 20.0, "no process is left")
    (server,) = service.get("/v1/cluster")["servers"]
    assert server["free_gpus"] == 4
