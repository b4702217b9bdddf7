"""A live service whose executor hangs: the API answers, running jobs run on, and what could not be sent is sent afterwards."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.engine.ports import Busy
from tests.api.client import client_of
from tests.api.conftest import WorldLeader, app_of, make_world
from tests.api.helpers import assert_problem
from tests.e2e.harness import LiveService


def test_what_cannot_be_had_now_is_503_and_says_when_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: object) -> None:
        raise Busy("a scheduling cycle has been running for more than 5 s")

    world = make_world(tmp_path)
    app = app_of(world)
    monkeypatch.setattr(WorldLeader, "cluster", busy)
    answer = client_of(app, world.token).get("/v1/cluster")
    assert_problem(answer, "unavailable")
    assert answer.headers["retry-after"] == "1"
    world.database.close()


@contextmanager
def hanging(service: LiveService) -> Iterator[None]:
    """Somebody holds the lock that every command needs, as another service on the folder might that was stopped."""
    with (service.data_dir / "fence").open("a") as fence:
        fcntl.flock(fence, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.services
def test_a_live_service_comes_through_an_executor_that_hangs(tmp_path: Path) -> None:
    service = LiveService(tmp_path, [{"count": 1, "gpus": 4, "gpu_type": "V100"}], EXECUTOR_TIMEOUT_S="0.5")
    try:
        service.start()
        before = service.train(200, 0.02, name="before", gpus=1)
        service.until_state(before, "running")
        with hanging(service):
            during = service.train(5, 0.02, name="during", gpus=1)
            service.until_state(during, "starting")
            service.until(lambda: "executor_timeout_s" in service.log.read_text(), 30.0, "the executor is given up")
            for path in ("/v1/cluster", "/v1/jobs", f"/v1/jobs/{during}/explanation"):
                assert service.request("GET", path).status_code in (200, 503), path
            # Held, so that it cannot displace the first job before it is cancelled.
            unwanted = service.submit(name="unwanted", gpus=4, command=["sleep", "600"], hold=True)
            assert service.request("POST", f"/v1/jobs/{unwanted}/cancel", {}).status_code == 202
            service.until_state(unwanted, "cancelled")
            assert not service.story(during), "its launch hangs"
        for job, iterations in ((before, 200), (during, 5)):
            done = service.until_state(job, "succeeded", timeout_s=60.0)
            assert (done["attempts"], done["iterations_done"]) == (1, iterations)
        assert "the executor answers again" in service.log.read_text()
    finally:
        service.close()
