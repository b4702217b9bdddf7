"""Several services on one database: one leads, another takes over, nothing is lost and nothing runs twice."""

import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from service.db.session import Database, open_database
from service.db.tables import LEASES
from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService
from tests.e2e.test_crashes import assert_sound

pytestmark = pytest.mark.slow

TAKE_OVER_S = 10.0
"""What is promised."""

Pair = Callable[..., tuple[LiveService, LiveService]]


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def pair(make_service: MakeService, tmp_path: Path, database_url: str) -> Pair:
    """A leader and a standby, both ready, on one database and with one folder of checkpoints."""

    def make(**settings: str) -> tuple[LiveService, LiveService]:
        shared = {"DATABASE_URL": database_url, "CHECKPOINTS_DIR": str(tmp_path / "checkpoints"), **settings}
        first, second = make_service(**shared), make_service(**shared)
        first.start()
        second.start()
        assert (role(first), role(second)) == ("leader", "standby")
        return first, second

    return make


def role(service: LiveService) -> str:
    """What the service says that it is."""
    said = httpx.get(f"{service.url}/readyz", timeout=60.0).json()
    return str(said["role"])


def until_leads(service: LiveService) -> float:
    """Seconds until the service leads."""
    began_s = time.monotonic()
    service.until(lambda: role(service) == "leader", 30.0, "the standby leads")
    return time.monotonic() - began_s


def test_a_standby_takes_over_within_ten_seconds_and_adopts_what_it_is_told(pair: Pair) -> None:
    """The dead leader's job runs on under its supervisor, and its end is told when its service is back."""
    first, second = pair()
    job = first.train(100, 0.02, name="steady", gpus=2)
    other = second.train(20, 0.01, name="through-the-standby", gpus=1)
    second.until_state(other, "succeeded")
    first.until(lambda: first.story(job), 20, "the program runs")
    first.kill()
    assert until_leads(second) < TAKE_OVER_S
    assert second.job(job)["state"] == "running"
    later = second.train(20, 0.01, name="after", gpus=1)
    assert second.until_state(later, "succeeded")["attempts"] == 1
    first.start()
    assert role(first) == "standby"
    assert first.until_state(job, "succeeded")["attempts"] == 1
    assert_sound(first, job, 100)
    assert_sound(second, other, 20)


def test_a_leader_that_dies_on_the_same_machine_is_replaced_before_its_lease_expires(pair: Pair) -> None:
    """Its lease was renewed at most ten seconds ago, and standbys look every five."""
    first, second = pair(LEADER_LEASE_S="30")
    job = first.train(100, 0.02, name="steady", gpus=2)
    first.until(lambda: first.story(job), 20, "the program runs")
    first.kill()
    assert until_leads(second) < 15.0
    first.start()
    assert role(first) == "standby"
    assert first.until_state(job, "succeeded")["attempts"] == 1
    assert_sound(first, job, 100)


def test_a_cancellation_reaches_an_attempt_of_a_standby(pair: Pair) -> None:
    """The leader elsewhere says so in the database; the service that holds the attempt stops it."""
    first, second = pair()
    job = first.submit(name="sleeper", gpus=1, command=["sleep", "600"])
    first.until_state(job, "running")
    first.kill()
    until_leads(second)
    first.start()
    assert second.request("POST", f"/v1/jobs/{job}/cancel").status_code == 202
    second.until_state(job, "cancelled")
    assert not [process for process in first.processes() if "sleep" in " ".join(process.cmdline())]


def test_the_attempts_of_a_service_that_never_returns_are_started_again_elsewhere(pair: Pair) -> None:
    """Lost is not dead: only when its supervisors must have stopped them. No retry is used up, and no work is lost."""
    first, second = pair(LEASE_S="6", STOP_GRACE_S="0.5")
    go = first.data_dir / "go"
    job = first.train(50, 0.02, name="orphan", gpus=1, max_retries=0, env={"GO": str(go)})
    first.until(lambda: _checkpoint(first, job), 20, "a checkpoint is reported")
    first.kill()
    until_leads(second)
    second.until(lambda: len(second.attempts(job)) == 2, 60, "it is started elsewhere")
    go.touch()
    done = second.until_state(job, "succeeded", timeout_s=60)
    assert done["attempts"] == 2
    lost, _ = second.attempts(job)
    assert (lost["state"], lost["reason"]) == ("lost", "node_lost")
    starts = [line for line in second.story(job) if line["event"] == "start"]
    assert starts[1]["iteration"] > 0
    assert not [line for line in second.story(job) if line["event"] == "overlap"]


def test_a_paused_leader_does_no_harm_and_stands_by_when_it_wakes(pair: Pair, database_url: str) -> None:
    first, second = pair()
    running = first.train(300, 0.02, name="running", gpus=1)
    first.until(lambda: first.story(running), 20, "the program runs")
    assert first.process is not None
    stand_still(first, database_url)
    assert until_leads(second) < TAKE_OVER_S
    jobs = [second.train(10, 0.01, name=f"meanwhile-{number}", gpus=1) for number in range(3)]
    first.process.send_signal(signal.SIGCONT)
    first.until(lambda: role(first) == "standby", 30, "the old leader stands by")
    for job in (*jobs, running):
        assert first.until_state(job, "succeeded")["attempts"] == 1
    assert_sound(first, running, 300)
    for job in jobs:
        assert_sound(second, job, 10)
    events: list[Any] = [event for job in jobs for event in second.get(f"/v1/jobs/{job}/events")["items"]]
    assert len(events) == 4 * len(jobs), events
    assert second.stop() == 0
    until_leads(first)
    again = first.train(10, 0.01, name="again", gpus=1)
    assert first.until_state(again, "succeeded")["attempts"] == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_leader_that_stands_still_inside_a_transaction_is_cut_off(pair: Pair, database_url: str) -> None:
    """It has the row of the lease locked, and will go on with that transaction when it wakes."""
    first, second = pair()
    assert first.process is not None
    with closing(open_database(database_url)) as database, database.writing() as session:
        session.connection().execute(select(LEASES).with_for_update())
        first.until(partial(_waits_for_the_lease, database), 20, "the leader waits to renew its lease")
        first.process.send_signal(signal.SIGSTOP)
        first.until(partial(_stands_still, first.process.pid), 20, "every thread stands still")
    assert until_leads(second) < TAKE_OVER_S
    first.process.send_signal(signal.SIGCONT)
    first.until(lambda: role(first) == "standby", 30, "the old leader stands by")
    job = second.train(10, 0.01, name="after", gpus=1)
    assert first.until_state(job, "succeeded")["attempts"] == 1


def test_either_service_answers_everything(pair: Pair) -> None:
    """What needs the loop, the log of an attempt that ran elsewhere, and who there is; a take-over breaks no event stream."""
    first, second = pair()
    job = second.submit(name="talker", gpus=1, command=["echo", "hello from afar"])
    second.until_state(job, "succeeded")
    assert second.get("/v1/cluster") == first.get("/v1/cluster")
    assert second.get("/v1/predictor") == first.get("/v1/predictor")
    assert "hello from afar" in second.request("GET", f"/v1/jobs/{job}/logs").text
    roles = {service["url"]: service["role"] for service in second.get("/v1/services")["services"]}
    assert roles == {first.url: "leader", second.url: "standby"}
    headers = {"Authorization": f"Bearer {(second.data_dir / 'token').read_text().strip()}", "Last-Event-ID": "0"}
    with httpx.stream("GET", f"{second.url}/v1/events?topic=jobs", headers=headers, timeout=120.0) as stream:
        told = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: "))
        assert [next(told)["target"] for _ in range(4)] == ["queued", "starting", "running", "succeeded"]
        first.kill()
        refused = second.request("GET", "/v1/cluster")
        assert (refused.status_code, refused.headers.get("retry-after")) == (503, "2")
        until_leads(second)
        assert second.get("/v1/cluster")["gpus"] == 4
        later = second.train(10, 0.01, name="after", gpus=1)
        assert [next(told)["target"] for _ in range(4)] == ["queued", "starting", "running", "succeeded"]
    assert second.job(later)["attempts"] == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_request_through_a_standby_wakes_the_leader(pair: Pair) -> None:
    """He would look by himself once in the time that all three may take."""
    _, second = pair(POLL_PERIOD_S="60", RESCHEDULE_PERIOD_S="60")
    for number in range(3):
        job = second.submit(name=f"hurried-{number}", gpus=1, command=["true"])
        second.until(lambda job=job: second.job(job)["state"] != "queued", 15, "the leader takes the job in")


def test_a_leader_that_is_stopped_hands_over_at_once(pair: Pair) -> None:
    first, second = pair()
    assert first.stop() == 0
    assert until_leads(second) < TAKE_OVER_S / 2


def stand_still(service: LiveService, database_url: str) -> None:
    """Pause the service between two transactions: what one that is under way holds up is told in the documentation."""
    assert service.process is not None
    database = open_database(database_url)
    for _ in range(100):
        service.process.send_signal(signal.SIGSTOP)
        service.until(partial(_stands_still, service.process.pid), 20, "every thread stands still")
        try:
            with database.writing(wait_s=0.5) as session:
                session.connection().execute(select(LEASES).with_for_update())
        except OperationalError:
            service.process.send_signal(signal.SIGCONT)
        else:
            break
    database.close()


def _waits_for_the_lease(database: Database) -> bool:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE leases%'"
    )
    with database.reading() as session:
        return bool(session.connection().execute(waiting).scalar())


def _stands_still(pid: int) -> bool:
    """A signal stops a process when its first thread gets a core; until then the others run on."""
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended
    return all(thread.rpartition(")")[2].split()[0] == "T" for thread in threads)


def _checkpoint(service: LiveService, job: int) -> bool:
    points = service.get(f"/v1/jobs/{job}/progress")["items"]
    return any((point["checkpoint_iteration"] or 0) > 0 for point in points)
