"""Requests that are repeated: never with a second effect, and not for ever."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from service.client import ApiError, Client, ClientError, Unreachable
from tests.api.client import BASE_URL, AppTransport
from tests.api.conftest import World, app_of, make_world
from tests.unit.service.client.both import KINDS, Kind, as_sooner, blocking, noted_pauses

BODY: dict[str, Any] = {"name": "digits", "command": ["python", "digits.py"], "gpus": 2}


def lost(error: type[httpx.TransportError]) -> Callable[[], httpx.Response]:
    def fail() -> httpx.Response:
        raise error("lost")

    return fail


def busy(status: int, wait_s: str | None = "1") -> Callable[[], httpx.Response]:
    headers = {} if wait_s is None else {"Retry-After": wait_s}
    return lambda: httpx.Response(status, json={"title": "Busy", "status": status}, headers=headers)


BEFORE: dict[str, Callable[[], httpx.Response]] = {
    "refused": lost(httpx.ConnectError),
    "not connected": lost(httpx.ConnectTimeout),
    "too many": busy(429),
    "no leader": busy(503, "2"),
    "still runs": busy(409),
}
AFTER: dict[str, Callable[[], httpx.Response]] = {
    "reset": lost(httpx.ReadError),
    "closed": lost(httpx.RemoteProtocolError),
    "silent": lost(httpx.ReadTimeout),
}


class Faulty(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """An application behind a network that fails as ``plan`` says, request by request; then it works.

    ``asked``: the requests of the client. ``effective``: those that reached the application.
    """

    def __init__(self, app: ASGIApp, plan: Sequence[str | None] = ()) -> None:
        self._blocking = AppTransport(app)
        self._awaiting = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.plan = list(plan)
        self.asked: list[httpx.Request] = []
        self.effective = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        fault = self._fault(request)
        if fault in BEFORE:
            return BEFORE[fault]()
        self.effective += 1
        answer = self._blocking.handle_request(request)
        return AFTER[fault]() if fault is not None else answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        fault = self._fault(request)
        if fault in BEFORE:
            return BEFORE[fault]()
        self.effective += 1
        answer = await self._awaiting.handle_async_request(request)
        if fault is None:
            return answer
        await answer.aread()
        return AFTER[fault]()

    def _fault(self, request: httpx.Request) -> str | None:
        self.asked.append(request)
        return self.plan.pop(0) if self.plan else None

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("Idempotency-Key") for request in self.asked]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return noted_pauses(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.database.close()


def client_over(kind: Kind, transport: Faulty, world: World, **options: Any) -> Any:
    return blocking(kind(BASE_URL, world.token, transport=transport, **options))


def test_a_submission_is_never_made_twice(kind: Kind, world: World, pauses: list[float]) -> None:
    """Whatever happens to how many of its attempts, before or after the effect."""
    numbers = count()
    app = app_of(world)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from([*BEFORE, *AFTER]), max_size=12), st.booleans())
    def check(plan: list[str], answered: bool) -> None:
        transport = Faulty(app)
        with client_over(kind, transport, world) as client:
            if answered:
                client.me()
            transport.plan, transport.asked, transport.effective = plan, [], 0
            name = f"job{next(numbers)}"
            try:
                job = client.jobs.submit(BODY | {"name": name})
            except ClientError:
                job = None
            transport.plan = []
            effective, keys = transport.effective, transport.keys
            found = client.jobs.list(name=name)
        assert [each["id"] for each in found] == (
            [job["id"]] if job is not None else [each["id"] for each in found][:1]
        )
        assert len(found) == min(effective, 1)
        assert len(set(keys)) == 1
        assert None not in keys

    check()


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
def test_one_fault_is_survived_by_reads_and_by_changes(
    kind: Kind, world: World, pauses: list[float], fault: str
) -> None:
    transport = Faulty(app_of(world))
    with client_over(kind, transport, world) as client:
        job_id = client.jobs.submit(BODY)["id"]
        transport.plan, transport.asked = [fault], []
        assert client.jobs.show(job_id)["id"] == job_id
        transport.plan = [fault]
        assert client.jobs.cancel(job_id)["accepted"] == "cancel"
        transport.plan = [fault]
        assert client.jobs.plan(BODY)["plans"][0]["gpus"] == 2
        assert [line["action"] for line in client.audit.list()].count("POST /v1/jobs/{job_id}/cancel") == 1
    assert len(pauses) == 3
    wait_s = float(BEFORE[fault]().headers["Retry-After"]) if fault in ("too many", "no leader", "still runs") else 0.0
    assert all(wait_s <= pause_s <= wait_s + 0.25 for pause_s in pauses)
    shown, _, cancelled, again, *planned = transport.keys[:5]
    assert (shown, planned) == (None, [None])
    assert cancelled is not None
    assert cancelled == again


def test_each_change_has_a_key_of_its_own(kind: Kind, world: World) -> None:
    transport = Faulty(app_of(world))
    with client_over(kind, transport, world) as client:
        job_id = client.jobs.submit(BODY)["id"]
        client.jobs.set_priority(job_id, 3)
        client.jobs.set_priority(job_id, 3)
        client.users.put("ada")
        client.projects.add_member("nlp", "ada")
        client.projects.remove_member("nlp", "ada")
        client.jobs.submit(BODY, idempotency_key="mine")
    assert None not in transport.keys
    assert len(set(transport.keys)) == len(transport.keys)
    assert transport.keys[-1] == "mine"


@pytest.mark.parametrize("patience_s", [0.0, 3.0, 30.0])
def test_patience_ends(kind: Kind, world: World, pauses: list[float], patience_s: float) -> None:
    transport = Faulty(app_of(world))
    with client_over(kind, transport, world, patience_s=patience_s) as client:
        client.me()
        transport.plan = ["refused"] * 100
        with pytest.raises(Unreachable):
            client.me()
        transport.plan = ["too many"] * 100
        with pytest.raises(ApiError) as caught:
            client.me()
    assert caught.value.status == 429
    assert sum(pauses) <= 2 * patience_s
    assert bool(pauses) == (patience_s > 0.0)
    assert len(pauses) < 40


@pytest.mark.parametrize(
    ("status", "wait_s"), [(503, None), (429, None), (429, "3600"), (503, "Mon, 23 Nov 2026"), (500, "1")]
)
def test_what_is_not_asked_for_is_not_repeated(
    kind: Kind, pauses: list[float], status: int, wait_s: str | None
) -> None:
    asked: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return busy(status, wait_s)()

    with blocking(kind(BASE_URL, "t", transport=as_sooner(handler))) as client:
        with pytest.raises(ApiError):
            client.jobs.submit(BODY)
        with pytest.raises(ApiError):
            client.jobs.list()
    assert (len(asked), pauses) == (2, [])


def test_a_service_that_never_answered_is_not_waited_for(kind: Kind, world: World, pauses: list[float]) -> None:
    """Its address may be wrong. But a submission whose answer was lost is completed."""
    for fault in ("refused", "reset", "silent", "closed"):
        with client_over(kind, Faulty(app_of(world), [fault]), world) as client, pytest.raises(Unreachable):
            client.jobs.list()
    assert pauses == []
    with client_over(kind, Faulty(app_of(world), ["refused"]), world) as client, pytest.raises(Unreachable):
        client.jobs.submit(BODY)
    assert pauses == []
    with client_over(kind, Faulty(app_of(world), ["reset"]), world) as client:
        assert [client.jobs.submit(BODY)["id"]] == [job["id"] for job in client.jobs.list()]


def test_the_time_of_requests_counts(world: World, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is silent up to its time limit is not repeated after all patience has gone."""
    now = [0.0]
    monkeypatch.setattr("service.client.flow.time.monotonic", lambda: now[0])

    def handler(request: httpx.Request) -> httpx.Response:
        now[0] += 31.0 if now[0] else 1.0
        if now[0] > 1.0:
            raise httpx.ReadTimeout("silent")
        return httpx.Response(200, json={})

    with Client(BASE_URL, "t", transport=as_sooner(handler)) as client:
        client.me()
        with pytest.raises(Unreachable):
            client.me()
    assert (now[0], pauses) == (32.0, [])
