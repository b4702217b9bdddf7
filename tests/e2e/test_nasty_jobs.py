"""Two dozen programs that try to outlive their attempts run beside each other: nothing of them is left, and no GPU is held."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.runtime.cgroups import CgroupsUnavailable, usable_parent
from tests.e2e import nasty_program
from tests.e2e.conftest import MakeService
from tests.e2e.harness import TERMINAL, LiveService

pytestmark = pytest.mark.slow

PROGRAM = Path(nasty_program.__file__)
NAMES = sorted(nasty_program.NASTY)


@pytest.fixture(params=["cgroup", "subreaper"])
def service(request: pytest.FixtureRequest, make_service: MakeService) -> Iterator[LiveService]:
    """A service with a GPU for each program, contained in one way."""
    if request.param == "cgroup":
        try:
            usable_parent()
        except CgroupsUnavailable as reason:
            pytest.skip(str(reason))
    made = make_service(gpus=len(NAMES), CONTAINMENT=request.param, STOP_GRACE_S="1")
    made.start()
    yield made
    for process in psutil.process_iter():
        # A failure must not leave anything on this machine.
        if _is_of(process, made.data_dir):
            process.kill()


def _is_of(process: psutil.Process, folder: Path) -> bool:
    """Whether the process has a file of the folder open, or names it in its arguments."""
    try:
        opened = [str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        return str(folder) in " ".join([*process.cmdline(), *opened])
    except (psutil.Error, OSError):
        return False


def _survives(folder: Path, name: str) -> bool:
    """Whether any process of the program runs."""
    descriptor = os.open(folder / f"{name}.alive", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return any(str(folder / name) in " ".join(_words(process)) for process in psutil.process_iter())


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_what_holds_is_logged_and_jobs_are_killed_before_the_service(service: LiveService) -> None:
    expected = (
        "in a control group below" if service.environ["SOONER_CONTAINMENT"] == "cgroup" else "without a control group"
    )
    assert sum("Each attempt runs" in line and expected in line for line in service.log.read_text().splitlines()) == 1
    assert service.request("GET", "/readyz").json()["containment"] == service.environ["SOONER_CONTAINMENT"]
    job = service.submit(name="score", gpus=1, command=["cat", "/proc/self/oom_score_adj"])
    service.until_state(job, "succeeded")
    assert service.process is not None
    own = int(Path(f"/proc/{service.process.pid}/oom_score_adj").read_text())
    assert int(service.request("GET", f"/v1/jobs/{job}/logs").text) > own


def test_nothing_is_left_of_any(service: LiveService) -> None:
    assert len(NAMES) >= 24
    folder = service.data_dir / "nasty"
    folder.mkdir()
    jobs = {}
    for name in NAMES:
        command = ["python3", str(PROGRAM), name, str(folder)]
        jobs[name] = service.submit(name=name, gpus=1, command=command, max_retries=0)
    for name in NAMES:
        service.until((folder / f"{name}.ready").exists, 60.0, f"{name} is ready")
    # The next service finds them all.
    service.kill()
    service.start()
    for _ in range(2):
        for job in jobs.values():
            assert service.request("POST", f"/v1/jobs/{job}/cancel").status_code in (202, 409)
    for name, job in jobs.items():
        service.until(lambda job=job: service.job(job)["state"] in TERMINAL, 60.0, f"{name} (job {job}) ends")
    assert [name for name in NAMES if _survives(folder, name)] == []
    (server,) = service.get("/v1/cluster")["servers"]
    assert server["free_gpus"] == server["gpus"] == len(NAMES)
    service.until(lambda: not service.processes(), 20.0, "no supervisor and no keeper is left")
    starts = {name: service.job(jobs[name])["attempts"] for name in NAMES}
    assert all(count >= 1 for count in starts.values()), starts
