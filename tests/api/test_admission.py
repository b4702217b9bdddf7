"""Limits of what one caller has under way: whose they are, what is refused, and what is never held up by computation."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.api import stepwise
from service.api.admission import TURNS, Admission, Bound, Ticket
from service.api.app import create_app
from service.api.peers import PEER_HEADER, Peers
from service.config.settings import Settings
from service.db.identity import peer_secret
from service.domain.access import LOCAL, Role
from tests.api.client import BASE_URL, client_of
from tests.api.conftest import World, WorldLeader, WorldScheduler, make_world
from tests.api.helpers import assert_problem, graph_job, plain_job
from tests.api.live import Address, listening
from tests.api.people import person
from tests.local_executor import wait_for

PATIENCE_S = 60.0


class Gate:
    """Holds up every thread that comes, until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.waiting = 0

    def wait(self) -> None:
        with self._lock:
            self.waiting += 1
        assert self._open.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


class Busy:
    """Requests that are under way, each from a thread of its own."""

    def __init__(self, app: FastAPI, gate: Gate) -> None:
        self.app = app
        self.gate = gate
        self._pool = ThreadPoolExecutor(64)
        self._answers: list[Future[httpx.Response]] = []

    def begin(self, key: str, method: str, path: str, body: Any = None) -> None:
        """Returns when the request has reached the gate."""
        before = self.gate.waiting
        self._answers.append(self._pool.submit(lambda: self.ask(key, method, path, body)))
        wait_for(lambda: self.gate.waiting > before, "a request under way")

    def ask(self, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
        with client_of(self.app, key) as client:
            return client.request(method, path, json=body)

    def end(self) -> list[int]:
        """Open the gate; returns the statuses of the answers, after which nothing is under way."""
        self.gate.open()
        statuses = [answer.result(PATIENCE_S).status_code for answer in self._answers]
        self._pool.shutdown()
        assert all(self.app.state.admission.under_way(bound) == 0 for bound in Bound)
        return statuses


@contextmanager
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **limits: int) -> Iterator[tuple[World, Busy]]:
    """A service with these limits, in which plans and views of the cluster wait."""
    world = make_world(tmp_path, **limits)
    gate = Gate()
    monkeypatch.setattr(world, "waits_for_the_loop", gate.wait)
    try:
        yield world, Busy(create_app(world.dependencies()), gate)
    finally:
        gate.open()
        world.database.close()


def users(world: World, *names: str) -> list[str]:
    return [person(world, name, Role.SUBMITTER, "nlp").key for name in names]


def another_key(world: World, who: str) -> str:
    return person(world, who, Role.SUBMITTER).key


def assert_refused(answer: httpx.Response, slug: str, setting: str) -> None:
    document = assert_problem(answer, slug)
    assert f"(setting {setting})" in document["detail"]
    assert int(answer.headers["retry-after"]) > 0


def test_plans_of_one_caller_are_limited_and_leave_a_place_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy(tmp_path, monkeypatch, caller_heavy_requests_max=2, heavy_requests_max=3) as (world, requests):
        ann, ben = users(world, "ann", "ben")
        for _ in range(2):
            requests.begin(ann, "POST", "/v1/plans", plain_job())
        assert_refused(
            requests.ask(ann, "POST", "/v1/plans", plain_job()), "too-many-requests", "caller_heavy_requests_max"
        )
        assert_refused(requests.ask(ann, "GET", "/v1/forecasts"), "too-many-requests", "caller_heavy_requests_max")
        requests.begin(ben, "POST", "/v1/plans", plain_job())
        assert_refused(requests.ask(ben, "GET", "/v1/forecasts"), "unavailable", "heavy_requests_max")
        assert requests.ask(ann, "GET", "/v1/jobs").status_code == 200
        assert requests.end() == [200, 200, 200]
        assert requests.ask(ann, "POST", "/v1/plans", plain_job()).status_code == 200


@pytest.mark.parametrize("path", ["/v1/forecasts", "/v1/jobs/1/forecast", "/v1/snapshots/now"])
def test_forecasts_and_snapshots_count_as_plans_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with busy(tmp_path, monkeypatch, caller_heavy_requests_max=1) as (world, requests):
        assert requests.ask(world.token, "POST", "/v1/jobs", plain_job()).status_code == 201
        requests.begin(world.token, "GET", path)
        assert_refused(requests.ask(world.token, "GET", path), "too-many-requests", "caller_heavy_requests_max")


def test_all_keys_of_a_user_are_one_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, monkeypatch, caller_requests_max=2) as (world, requests):
        ann, ben = users(world, "ann", "ben")
        also_ann = another_key(world, "ann")
        for key in (ann, also_ann):
            requests.begin(key, "GET", "/v1/cluster")
        for key in (ann, also_ann):
            assert_refused(requests.ask(key, "GET", "/v1/jobs"), "too-many-requests", "caller_requests_max")
        assert requests.ask(ben, "GET", "/v1/jobs").status_code == 200
        assert requests.ask(world.token, "GET", "/v1/jobs").status_code == 200
        assert requests.end() == [200, 200]


def test_the_local_token_is_a_caller_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, monkeypatch, caller_requests_max=1) as (world, requests):
        requests.begin(world.token, "GET", "/v1/cluster")
        assert_refused(requests.ask(world.token, "GET", "/v1/jobs"), "too-many-requests", "caller_requests_max")
        assert requests.end() == [200]


def test_what_outlives_its_request_counts_nothing(tmp_path: Path) -> None:
    """A page that was answered with an error leaves reads behind."""
    admission = Admission()
    ticket = Ticket(admission, Settings(data_dir=tmp_path), ("user", "ada"))
    ticket.take(Bound.REQUESTS)
    ticket.close()
    ticket.take(Bound.HEAVY)
    assert [admission.under_way(bound) for bound in (Bound.REQUESTS, Bound.HEAVY)] == [0, 0]


def test_look_ups_of_tokens_count_for_their_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, monkeypatch, caller_requests_max=1) as (world, requests):
        ann, ben = users(world, "ann", "ben")
        look_up = requests.app.state.authenticator.look_up

        def slow(token: str) -> Any:
            if token == ann:
                requests.gate.wait()
            return look_up(token)

        monkeypatch.setattr(requests.app.state.authenticator, "look_up", slow)
        requests.begin(ann, "GET", "/v1/jobs")
        assert_refused(requests.ask(ben, "GET", "/v1/jobs"), "too-many-requests", "caller_requests_max")
        assert requests.end() == [200]
        assert requests.ask(ben, "GET", "/v1/jobs").status_code == 200


def test_a_look_up_of_a_key_that_was_valid_does_not_wait_for_look_ups_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy(tmp_path, monkeypatch, caller_requests_max=1) as (world, requests):
        ann, ben = users(world, "ann", "ben")
        authenticator = requests.app.state.authenticator
        assert requests.ask(ben, "GET", "/v1/jobs").status_code == 200
        authenticator.forget()
        look_up = authenticator.look_up
        monkeypatch.setattr(authenticator, "look_up", lambda key: (key == ann and requests.gate.wait()) or look_up(key))
        requests.begin(ann, "GET", "/v1/jobs")
        assert requests.ask(ben, "GET", "/v1/jobs").status_code == 200
        assert requests.end() == [200]


def test_probes_are_answered_whatever_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy(tmp_path, monkeypatch, caller_requests_max=1, connections_max=10) as (world, requests):
        for name in range(10):
            requests.begin(another_key(world, f"user-{name}"), "GET", "/v1/cluster")
        refused = requests.ask(another_key(world, "one-more"), "GET", "/v1/jobs")
        assert_refused(refused, "unavailable", "connections_max")
        with client_of(requests.app, None) as probe:
            assert probe.get("/healthz").status_code == 200
            assert probe.get("/readyz").status_code == 200
        requests.end()


# With sockets.


@contextmanager
def served(tmp_path: Path, **limits: Any) -> Iterator[tuple[World, Address]]:
    world = make_world(tmp_path, **limits)
    world.stopping = False
    try:
        with listening(create_app(world.dependencies()), world.settings) as address:
            yield world, address
        world.stopping = True
    finally:
        world.database.close()


def web(address: Address, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    host, port = address
    return httpx.Client(base_url=f"http://{host}:{port}", headers=headers, timeout=PATIENCE_S)


def head(key: str, *lines: str, method: str = "POST", path: str = "/v1/jobs") -> bytes:
    own = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}", *lines]
    return "\r\n".join(own).encode() + b"\r\n\r\n"


def test_a_page_of_jobs_does_not_wait_for_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many plans as there are threads for requests, by several users."""
    gate = Gate()
    plan = WorldLeader.plan
    monkeypatch.setattr(WorldLeader, "plan", lambda leader, specs: gate.wait() or plan(leader, specs))
    limits = {"caller_heavy_requests_max": 20, "heavy_requests_max": 40}
    with served(tmp_path, **limits) as (world, address), ThreadPoolExecutor(40) as pool:
        keys = users(world, "ann", "ben")
        reader = person(world, "eve", Role.VIEWER).key

        def ask(key: str) -> int:
            with web(address, key) as client:
                return client.post("/v1/plans", json=plain_job()).status_code

        try:
            plans = [pool.submit(ask, key) for key in keys * 20]
            wait_for(lambda: gate.waiting >= 2, "plans that are computed")
            with web(address, reader) as client, web(address) as probe:
                for _ in range(10):
                    assert client.get("/v1/jobs").status_code == 200
                    assert probe.get("/healthz").status_code == 200
                    assert probe.get("/readyz").status_code == 200
        finally:
            gate.open()
        assert {plan.result(PATIENCE_S) for plan in plans} == {200}


def test_requests_of_one_caller_leave_threads_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with served(tmp_path) as (world, address), ThreadPoolExecutor(60) as pool:
        monkeypatch.setattr(world, "waits_for_the_loop", gate.wait)
        ann, ben = users(world, "ann", "ben")

        def ask(_: int) -> int:
            with web(address, ann) as client:
                return client.get("/v1/cluster").status_code

        try:
            many = [pool.submit(ask, number) for number in range(60)]
            wait_for(lambda: gate.waiting >= 16, "requests in threads")
            with web(address, ben) as client:
                assert client.get("/v1/jobs").status_code == 200
            assert gate.waiting == 16
        finally:
            gate.open()
        assert {answer.result(PATIENCE_S) for answer in many} == {200}


def test_forwarded_requests_take_turns_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with served(tmp_path) as (world, address), ThreadPoolExecutor(TURNS) as pool:
        monkeypatch.setattr(world, "waits_for_the_loop", gate.wait)
        signed = Peers(lambda: peer_secret(world.database), lambda: world.now_s).sign("GET", "/v1/jobs", LOCAL)

        def ask(_: int) -> int:
            with web(address, world.token) as client:
                return client.get("/v1/cluster").status_code

        try:
            held = [pool.submit(ask, number) for number in range(TURNS)]
            wait_for(lambda: gate.waiting == TURNS, "requests in threads")
            with web(address) as other_service:
                assert other_service.get("/v1/jobs", headers={PEER_HEADER: signed}, timeout=10.0).status_code == 200
        finally:
            gate.open()
        assert {answer.result(PATIENCE_S) for answer in held} == {200}


@contextmanager
def slow_submissions(address: Address, key: str, count: int) -> Iterator[list[socket.socket]]:
    """As many submissions of one caller, whose bodies do not end."""
    lines = ("Content-Type: application/json", "Content-Length: 90")
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(count)]
        for connection in connections:
            connection.sendall(head(key, *lines) + b"{")
        yield connections


def submit(address: Address, key: str) -> int:
    with web(address, key) as client:
        return client.post("/v1/jobs", json=plain_job()).status_code


def test_submissions_hold_up_no_other_request_of_their_caller(tmp_path: Path) -> None:
    """They need no thread, so they take turns of their own: one more waits, and a job is shown at once."""
    world = make_world(tmp_path)
    app = create_app(world.dependencies())
    with closing(world.database), listening(app, world.settings) as address, ThreadPoolExecutor(1) as pool:
        (ann,) = users(world, "ann")
        with web(address, ann) as client, slow_submissions(address, ann, TURNS) as connections:
            wait_for(lambda: under_way(app) == TURNS, "slow submissions")
            one_more = pool.submit(submit, address, ann)
            wait_for(lambda: under_way(app) == TURNS + 1, "one more")
            assert client.get("/v1/jobs", timeout=10.0).status_code == 200
            assert not one_more.done()
            connections[0].close()
            assert one_more.result(PATIENCE_S) == 201


def test_submissions_hold_up_none_that_is_forwarded(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    app = create_app(world.dependencies())
    signed = Peers(lambda: peer_secret(world.database), lambda: world.now_s).sign("POST", "/v1/jobs", LOCAL)
    with (
        closing(world.database),
        listening(app, world.settings) as address,
        slow_submissions(address, world.token, TURNS),
        web(address) as other_service,
    ):
        wait_for(lambda: under_way(app) == TURNS, "slow submissions")
        answer = other_service.post("/v1/jobs", json=plain_job(), headers={PEER_HEADER: signed}, timeout=10.0)
        assert answer.status_code == 201


PROGRESS = "/v1/attempts/1.1/progress"


@contextmanager
def slow_reports(world: World, address: Address, count: int) -> Iterator[None]:
    """As many reports of progress with a wrong token, whose bodies do not end."""
    lines = ("Content-Type: application/json", "Content-Length: 90")
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(closing(socket.create_connection(address)))
            connection.sendall(head("wrong", *lines, path=PROGRESS) + b"{")
        yield


def under_way(app: FastAPI) -> int:
    return app.state.admission.under_way(Bound.REQUESTS)


def test_slow_requests_without_a_token_lock_out_no_key(tmp_path: Path) -> None:
    world = make_world(tmp_path, caller_requests_max=3)
    app = create_app(world.dependencies())
    with closing(world.database), listening(app, world.settings) as address, slow_reports(world, address, 3):
        wait_for(lambda: under_way(app) == 3, "slow reports")
        (ann,) = users(world, "ann")
        with web(address, ann) as client:
            assert client.get("/v1/jobs").status_code == 200


def test_slow_reports_of_progress_hold_up_no_other_attempt(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.attempt_tokens["1.1"] = "right"
    app = create_app(world.dependencies())
    with closing(world.database), listening(app, world.settings) as address, slow_reports(world, address, TURNS):
        wait_for(lambda: under_way(app) == TURNS, "slow reports")
        with web(address, "right") as client:
            answer = client.post(PROGRESS, json={"iteration": 10}, timeout=10.0)
        assert answer.status_code == 202
        assert [attempt for attempt, _ in world.progress] == ["1.1"]


def test_one_viewer_cannot_take_all_streams(tmp_path: Path) -> None:
    with served(tmp_path, caller_event_streams_max=2, event_streams_max=3) as (world, address), ExitStack() as stack:
        ann, ben = users(world, "ann", "ben")

        def follow(key: str) -> httpx.Response:
            client = stack.enter_context(web(address, key))
            return stack.enter_context(client.stream("GET", "/v1/events"))

        assert [follow(ann).status_code for _ in range(2)] == [200, 200]
        with web(address, ann) as client:
            refused = client.get("/v1/events")
            assert_refused(refused, "too-many-requests", "caller_event_streams_max")
            assert refused.headers["retry-after"] == "10"
        assert follow(ben).status_code == 200
        with web(address, ben) as client:
            assert_refused(client.get("/v1/events"), "too-many-requests", "event_streams_max")


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_under_way_are_limited_by_their_bytes(tmp_path: Path, chunked: bool) -> None:
    """A body that is alone passes; a second one is refused, whether or not its length is declared."""
    body = json.dumps(plain_job(labels={"a": "x" * 150})).encode()
    with served(tmp_path, caller_body_bytes_max=1024) as (world, address), web(address, world.token) as client:
        length = ("Transfer-Encoding: chunked",) if chunked else ("Content-Length: 2000",)
        part = b"5dc\r\n" + b" " * 1500 + b"\r\n" if chunked else b" " * 1500
        with closing(socket.create_connection(address)) as slow:
            slow.sendall(head(world.token, "Content-Type: application/json", *length) + part)
            wait_for(lambda: refusal(client, body), "a refused body")
            answer = refusal(client, body)
            assert answer is not None
            assert_refused(answer, "too-many-requests", "caller_body_bytes_max")
            assert client.get("/v1/jobs").status_code == 200
        wait_for(lambda: client.post("/v1/jobs", content=body, headers=JSON).status_code == 201, "an accepted body")


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_single_body_passes_in_any_number_of_chunks(tmp_path: Path, parts: int) -> None:
    """Over caller_body_bytes_max, and within body_bytes_max."""
    body = json.dumps(plain_job()).encode().ljust(4000)
    size = len(body) // parts
    world = make_world(tmp_path, caller_body_bytes_max=1024)
    transport = httpx.ASGITransport(create_app(world.dependencies()))

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def submit() -> httpx.Response:
        headers = {"Authorization": f"Bearer {world.token}", **JSON}
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
            return await client.post("/v1/jobs", content=chunks())

    with closing(world.database):
        assert asyncio.run(submit()).status_code == 201


JSON = {"Content-Type": "application/json"}


def refusal(client: httpx.Client, body: bytes) -> httpx.Response | None:
    answer = client.post("/v1/jobs", content=body, headers=JSON)
    return answer if answer.status_code == 429 else None


def test_silent_connections_are_closed_for_new_ones(tmp_path: Path) -> None:
    with served(tmp_path, connections_max=20) as (world, address), ExitStack() as stack:
        silent = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(60)]
        for connection in silent[::2]:
            connection.sendall(b"GET /v1/jobs HT")
        with web(address, world.token) as client, web(address) as probe:
            for _ in range(5):
                assert client.get("/v1/jobs").status_code == 200
                assert probe.get("/healthz").status_code == 200
        for connection in silent[:40]:
            assert is_closed(connection)
        assert not is_closed(silent[-1])


def test_without_an_idle_connection_a_request_is_refused_and_a_probe_is_not(tmp_path: Path) -> None:
    with served(tmp_path, connections_max=10) as (world, address), ExitStack() as stack:
        lines = ("Content-Type: application/json", "Content-Length: 9")
        unfinished = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(10)]
        for connection in unfinished:
            connection.sendall(head(world.token, *lines) + b"{")
        with web(address, world.token) as client, web(address) as probe:
            wait_for(lambda: client.get("/v1/jobs").status_code == 503, "a refused request")
            assert_refused(client.get("/v1/jobs"), "unavailable", "connections_max")
            assert probe.get("/healthz").status_code == 200
            assert probe.get("/readyz").status_code == 200
            for connection in unfinished:
                assert not is_closed(connection)
                connection.sendall(b"        ")
                assert connection.recv(12) == b"HTTP/1.1 400"
            assert client.get("/v1/jobs").status_code == 200


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed."""
    connection.settimeout(0.01)
    try:
        return connection.recv(4096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)


def test_large_submissions_of_one_caller_wait_for_each_other_and_no_other_request_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    layout = WorldScheduler.layout
    monkeypatch.setattr(WorldScheduler, "layout", lambda scheduler: gate.wait() or layout(scheduler))
    large = {"jobs": [plain_job(labels={"a": "x" * 200})] * 100}
    with served(tmp_path) as (world, address), ThreadPoolExecutor(20) as pool:
        ann, ben, eve = users(world, "ann", "ben", "eve")

        def ask(key: str) -> int:
            with web(address, key) as client:
                return client.post("/v1/jobs", json=large).status_code

        try:
            answers = [pool.submit(ask, ann) for _ in range(10)]
            wait_for(lambda: gate.waiting == 1, "a large submission")
            answers.append(pool.submit(ask, ben))
            wait_for(lambda: gate.waiting == 2, "a large submission of another caller")
            answers.append(pool.submit(ask, eve))
            for key in (ann, eve):
                with web(address, key) as client:
                    assert client.get("/v1/jobs").status_code == 200
            assert gate.waiting == 2
        finally:
            gate.open()
        assert {answer.result(PATIENCE_S) for answer in answers} == {201}


ERROR_BOMBS = [
    {"jobs": [{}] * 1000},
    {"jobs": [{f"k{number}": 1 for number in range(1500)}] * 300},
    graph_job(graph={"layers": [{}] * 2000, "edges": []}),
    graph_job(graph={"layers": [{}] * 300_000, "edges": []}),
    plain_job(**{f"k{number}": 1 for number in range(1900)}),
    plain_job(**{f"k{number}": 1 for number in range(300_000)}),
]


@pytest.mark.parametrize(
    "body", ERROR_BOMBS, ids=["empty", "keys", "layers", "too-many-layers", "unknown", "too-many-keys"]
)
def test_a_body_of_faults_is_refused_after_the_first_hundred(tmp_path: Path, body: Any) -> None:
    """By the number of steps: each validates one job or one layer, and has at most a thousand faults that are listed."""
    world = make_world(tmp_path)
    steps = []
    counted = stepwise._Parts._part
    with pytest.MonkeyPatch.context() as patch, client_of(create_app(world.dependencies()), world.token) as client:
        patch.setattr(stepwise._Parts, "_part", lambda *given: steps.append(1) or counted(*given))
        document = assert_problem(client.post("/v1/jobs", json=body), "invalid-body")
        assert len(document["errors"]) <= 100
        assert len(steps) <= 110
    world.database.close()
