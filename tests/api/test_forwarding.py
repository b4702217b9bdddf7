"""Two services on one database: what a standby cannot answer is answered by the leader, in the caller's name."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from httpx import Client
from starlette.types import Message

from policies.model.ids import JobId
from service.api import forwarding
from service.api.admission import TURNS
from service.api.peers import CLIENT_HEADER, PEER_HEADER, VALID_S, Peers
from service.db.identity import peer_secret
from service.db.services import Registered, ServiceNow
from service.domain.access import LOCAL, Identity, Role
from tests.api.client import BASE_URL, client_of
from tests.api.conftest import NOW_S, World, app_of, make_world
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person
from tests.api.test_details import started
from tests.api.test_permissions import asked, operations

LEADER_URL = "http://leader.example:8765"
PATIENCE_S = 60.0


class Two(NamedTuple):
    """Both sides: what each knows, and its application."""

    leading: World
    leader: FastAPI
    standing: World
    standby: FastAPI


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """A leader and a standby, each with a token of its own, connected without a socket."""
    leading = make_world(tmp_path)
    leading.host = "a"
    leading.services = [ServiceNow(Registered("a", "a", LEADER_URL, "1", 60.0), True, 0.0, NOW_S, 0.0, False)]
    standing = replace(leading, token="another-token", leads=False, logs={}, host="b")
    leader, standby = app_of(leading), app_of(standing, "standby")

    def client(timeout: httpx.Timeout, _: Path | None) -> httpx.AsyncClient:
        assert timeout.connect is not None
        return httpx.AsyncClient(transport=httpx.ASGITransport(leader))

    monkeypatch.setattr(forwarding, "make_client", client)
    yield Two(leading, leader, standing, standby)
    leading.database.close()


@pytest.fixture
def client(two: Two) -> Client:
    """Somebody with the token of the standby."""
    return client_of(two.standby, two.standing.token)


def test_what_needs_the_loop_is_answered_by_the_leader(two: Two, client: Client) -> None:
    assert client.get("/v1/cluster").json()["name"] == "test"
    assert client.post("/v1/plans", json=plain_job()).status_code == 200
    assert [spec.name for spec in two.leading.planned] == [plain_job()["name"]]
    answer = client.post("/v1/models/train", headers={"Idempotency-Key": "once", "X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (202, "mine")
    assert client.post("/v1/models/train", headers={"Idempotency-Key": "once"}).headers["Idempotent-Replayed"] == "true"
    assert two.leading.trainings == 1
    assert_problem(client.get("/v1/snapshots/now?limit=3"), "invalid-parameter")


def test_the_overview_is_the_leaders_while_there_is_one(two: Two, client: Client) -> None:
    two.leading.held_gpus = 4
    forwarded = client.get("/v1/overview").json()
    assert (forwarded["gpus"]["busy"], forwarded["leader"]["id"], forwarded["attention"]) == (4, "a", [])
    two.leading.services.clear()
    two.standing.healthy = False
    alone = client.get("/v1/overview").json()
    assert (alone["gpus"]["busy"], alone["leader"], alone["attention"][0]["kind"]) == (0, None, "no_leader")


def test_what_the_database_knows_is_answered_here(two: Two, client: Client) -> None:
    job = client.post("/v1/jobs", json=plain_job()).json()["id"]
    two.leading.services.clear()
    assert client.get(f"/v1/jobs/{job}").json()["id"] == job
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert client.get("/v1/services").json() == {"services": []}
    assert two.leading.asked == 0


def test_every_route_of_a_standby_answers_and_asks_no_loop(two: Two, client: Client) -> None:
    """A route that needs the loop and is not sent on would fail here: a standby's world refuses to be asked."""
    job = client.post("/v1/jobs", json=plain_job()).json()["id"]
    for method, path, operation in operations(two.standby):
        answer = asked(client, two.standby, method, path, operation, job)
        assert answer.status_code < 500, (method, path, answer.text)


def test_the_caller_stays_who_he_is(two: Two) -> None:
    """The leader asks what the sender may do, not the standby."""
    viewer = client_for(two.standby, person(two.leading, "ada", Role.VIEWER, "nlp"))
    assert viewer.get("/v1/cluster").status_code == 200
    assert_problem(viewer.post("/v1/models/train"), "forbidden")
    assert two.leading.trainings == 0
    assert_problem(client_of(two.standby, two.leading.token).get("/v1/cluster"), "unauthorized")


def test_without_a_leader_it_says_so(two: Two, client: Client) -> None:
    two.standing.services.clear()
    answer = client.get("/v1/cluster")
    assert_problem(answer, "no-leader")
    assert answer.headers["retry-after"] == "2"


def test_a_leader_that_does_not_answer_is_none(two: Two, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    monkeypatch.setattr(forwarding, "make_client", lambda *_: httpx.AsyncClient(transport=httpx.MockTransport(refuse)))
    assert LEADER_URL in assert_problem(client.get("/v1/cluster"), "no-leader")["detail"]


def test_nothing_is_sent_on_twice(two: Two) -> None:
    """Each takes the other for the leader, as they may for a moment."""
    two.leading.leads = False
    assert_problem(client_of(two.standby, two.standing.token).get("/v1/cluster"), "no-leader")


def test_a_service_never_forwards_to_itself(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lease, and does not lead yet or any more."""
    two.leading.leads = False
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={})

    monkeypatch.setattr(forwarding, "make_client", lambda *_: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    assert_problem(client_of(two.leader, two.leading.token).get("/v1/cluster"), "no-leader")
    assert not asked


async def of_one_caller(two: Two, path: str, count: int) -> list[int]:
    """The statuses of as many requests to the standby at once, in one event loop."""
    headers = {"Authorization": f"Bearer {two.standing.token}"}
    transport = httpx.ASGITransport(two.standby)
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
        answers = await asyncio.gather(*(client.get(path) for _ in range(count)))
    return [answer.status_code for answer in answers]


def test_many_requests_of_one_caller_are_forwarded_at_once(two: Two) -> None:
    """Both services run in one event loop, and so share the turns of the caller, as services do that forward to each other."""
    asked = of_one_caller(two, "/v1/cluster", 2 * TURNS)
    assert asyncio.run(asyncio.wait_for(asked, PATIENCE_S)) == [200] * (2 * TURNS)


def test_a_request_that_waits_for_another_service_holds_no_turn(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    async def exchange() -> None:
        waiting: list[httpx.Request] = []
        answered = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            waiting.append(request)
            await answered.wait()
            return httpx.Response(200, json={})

        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(forwarding, "make_client", lambda *_: httpx.AsyncClient(transport=transport))
        forwarded = asyncio.create_task(of_one_caller(two, "/v1/cluster", 2 * TURNS))
        while len(waiting) < TURNS:
            await asyncio.sleep(0)
        assert await of_one_caller(two, "/v1/jobs", 1) == [200]
        answered.set()
        assert await forwarded == [200] * (2 * TURNS)

    asyncio.run(asyncio.wait_for(exchange(), PATIENCE_S))


def test_a_log_is_fetched_from_the_service_that_holds_it(two: Two, client: Client) -> None:
    job = started(client, two.leading)
    two.leading.logs[job, 1] = b"from elsewhere"
    assert client.get(f"/v1/jobs/{job}/logs").content == b""
    two.standing.log_holders[JobId(job)] = LEADER_URL
    answer = client.get(f"/v1/jobs/{job}/logs?offset=5")
    assert (answer.content, answer.headers["sooner-next-offset"]) == (b"elsewhere", "14")


def sent(two: Two, header: str, path: str = "/v1/cluster", method: str = "GET") -> httpx.Response:
    """What the leader answers to somebody with this header, at a name that no client uses."""
    with client_of(two.leader, None) as nobody:
        return nobody.request(method, path, headers={PEER_HEADER: header, "Host": "leader.example"})


def test_a_signature_opens_one_target_for_a_while_and_nothing_else(two: Two) -> None:
    now = [NOW_S]
    peers = Peers(lambda: peer_secret(two.leading.database), lambda: now[0])
    good = peers.sign("GET", "/v1/cluster", LOCAL)
    assert sent(two, good).status_code == 200
    assert_problem(sent(two, good, "/v1/jobs"), "wrong-host")
    assert_problem(sent(two, good, "/v1/cluster?x=1"), "wrong-host")
    assert_problem(sent(two, good, method="POST"), "wrong-host")
    at_s, said, mac = good.split(" ")
    forged = Peers(lambda: "guessed", lambda: NOW_S).sign("GET", "/v1/cluster", LOCAL)
    for bad in (forged, f"{at_s} {said} {mac[:-1]}", f"{int(at_s) + 1} {said} {mac}", "", "a b c", good + " "):
        assert_problem(sent(two, bad), "wrong-host")
    for shift_s, status in ((VALID_S - 1, 200), (-VALID_S + 1, 200), (VALID_S + 1, 421), (-VALID_S - 1, 421)):
        now[0] = NOW_S + shift_s
        assert sent(two, peers.sign("GET", "/v1/cluster", LOCAL)).status_code == status


def test_the_log_of_changes_names_the_client_and_not_the_service_between(two: Two) -> None:
    ada = Identity("ada", Role.OPERATOR, None, "k1")
    signed = Peers(lambda: peer_secret(two.leading.database), lambda: NOW_S).sign("POST", "/v1/models/train", ada)
    headers = {PEER_HEADER: signed, CLIENT_HEADER: "192.0.2.7", "X-Request-Id": "r1"}
    with client_of(two.leader, two.leading.token) as client:
        assert client.post("/v1/models/train", headers=headers).status_code == 202
        lines = client.get("/v1/audit").json()["items"]
        assert [(line["user"], line["address"], line["request_id"]) for line in lines] == [
            ("ada", "192.0.2.7", "r1")
        ] * 2
        # Nobody else is believed.
        client.post("/v1/models/train", headers={CLIENT_HEADER: "192.0.2.7"})
        assert client.get("/v1/audit").json()["items"][0]["address"] == "127.0.0.1"


def test_an_identity_survives_the_way(two: Two) -> None:
    peers = Peers(lambda: "secret", lambda: NOW_S)
    for caller in (LOCAL, Identity("ada \u2603", Role.SUBMITTER, frozenset({"", "nlp"}), "k1")):
        header = peers.sign("GET", "/x?y=%20", caller)
        scope = {
            "method": "GET",
            "path": "/x",
            "raw_path": b"/x",
            "query_string": b"y=%20",
            "headers": [(PEER_HEADER.lower().encode(), header.encode())],
        }
        assert peers.caller(scope) == caller


def test_who_leaves_in_the_middle_of_a_question_is_not_answered_and_leaves_no_error(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    coming: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    token = two.standing.token.encode()
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + token), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/plans", "raw_path": b"/v1/plans", "query_string": b""}
    more = {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}
    asyncio.run(two.standby(scope | more | {"http_version": "1.1", "root_path": ""}, receive, send))
    assert (coming, sent) == ([], [])
    assert "error" not in caplog.text.lower()
