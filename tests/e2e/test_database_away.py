"""A real service with real jobs on a real PostgreSQL server that goes away for a while."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.check import check
from service.db.migrate import upgrade
from tests.e2e.conftest import MakeService
from tests.e2e.test_crashes import assert_sound
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """One of our own, which we may stop. Asking for the shared one first skips or fails where there is none."""
    own = PostgresServer(durable=True)
    yield own
    own.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_jobs_run_on_and_nothing_is_lost(
    make_service: MakeService, server: PostgresServer, tmp_path: Path, how: signal.Signals
) -> None:
    """One job ends while the database is away, one runs through, one is submitted with a key that is used until it works."""
    url = server.url(server.create())
    upgrade(url)
    service = make_service(DATABASE_URL=url, LEADER_LEASE_S="6")
    service.start()
    short = service.train(150, 0.02, name="short", gpus=1)
    long = service.train(400, 0.02, name="long", gpus=1)
    for job in (short, long):
        service.until_state(job, "running")
    server.stop(how)
    service.until(lambda: service.request("GET", "/v1/jobs").status_code == 503, 20.0, "the API says so")
    refused = service.request("POST", "/v1/jobs", _PLAIN, key="once")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert service.request("GET", "/healthz").status_code == 200
    service.until(lambda: any(line["event"] == "end" for line in service.story(short)), 30.0, "the short job ends")
    server.start()

    def accepted() -> int | None:
        answer = service.request("POST", "/v1/jobs", _PLAIN, key="once")
        return int(answer.json()["id"]) if answer.status_code == 201 else None

    third = service.until(accepted, 30.0, "the database is back")
    assert accepted() == third
    for job in (short, long, third):
        service.until_state(job, "succeeded", timeout_s=60.0)
    assert_sound(service, short, 150)
    assert_sound(service, long, 400)
    assert [len(service.attempts(job)) for job in (short, long, third)] == [1, 1, 1]
    assert service.process is not None
    assert service.process.poll() is None
    assert service.stop() == 0
    assert check(url).faults == ()


_PLAIN = {"name": "plain", "user": "ada", "gpus": 1, "command": ["true"]}


def test_a_service_that_is_told_to_end_meanwhile_ends_in_good_order(
    make_service: MakeService, server: PostgresServer
) -> None:
    url = server.url(server.create())
    upgrade(url)
    service = make_service(DATABASE_URL=url)
    service.start()
    server.stop(signal.SIGINT)
    assert service.stop() == 0
    assert "\nTraceback" not in service.tail(), "what a timer found is a line of the log; the end itself found nothing"
