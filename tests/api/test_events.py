"""The event stream over HTTP: what is said, to whom, for how long, and how a client comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from fastapi import FastAPI
from httpx import Client
from pydantic import TypeAdapter

from service.api import sse
from service.api.feed import Feed
from service.domain.access import Role
from service.wire.cluster import ServerEventDocument
from service.wire.jobs import StreamedEvent
from tests.api.client import BASE_URL
from tests.api.conftest import World
from tests.api.helpers import admit, assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person

Event = dict[str, Any]


def stream(
    app: FastAPI,
    token: str,
    query: str = "",
    last: str | None = None,
    *,
    cookie: str | None = None,
    until: Callable[[list[Event], str], bool],
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Event]:
    """The events that a client receives until it has enough and goes, or the service ends the stream.

    ``meanwhile`` happens once the stream is open. With a ``cookie`` a browser asks.
    """
    text = ""
    gone = asyncio.Event()
    asked = False

    def events() -> list[Event]:
        blocks = [dict(line.partition(": ")[::2] for line in block.splitlines()) for block in text.split("\n\n")]
        return [block | {"data": json.loads(block["data"])} for block in blocks if "data" in block]

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal text
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["cache-control"] == "no-store"
        else:
            if not text:
                await asyncio.to_thread(meanwhile)
            text += message.get("body", b"").decode()
            if until(events(), text):
                gone.set()

    shown = (b"authorization", f"Bearer {token}".encode()) if cookie is None else (b"cookie", cookie.encode())
    headers = [(b"host", BASE_URL.removeprefix("http://").encode()), shown]
    if last is not None:
        headers.append((b"last-event-id", last.encode()))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/events",
        "raw_path": b"/v1/events",
        "query_string": query.encode(),
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }

    async def call() -> None:
        await asyncio.wait_for(app(scope, receive, send), 120.0)
        # The reader stops at its next look; with it under way, the database could not be closed.
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run(call())
    return events()


@pytest.fixture(autouse=True)
def _goes_on(world: World) -> None:
    world.stopping = False


def enough(count: int) -> Callable[[list[Event], str], bool]:
    return lambda events, _: len(events) >= count


def test_a_stream_tells_from_its_beginning_on_and_goes_on_where_it_was_left(
    app: FastAPI, client: Client, world: World
) -> None:
    client.post("/v1/jobs", json=plain_job(name="before"))
    admit(world)

    def submit() -> None:
        for name in ("one", "two", "three"):
            client.post("/v1/jobs", json=plain_job(name=name))
        admit(world)

    first = stream(app, world.token, until=enough(2), meanwhile=submit)[:2]
    assert [event["data"]["name"] for event in first] == ["one", "two"]
    assert {event["event"] for event in first} == {"job"}
    assert first[0]["data"]["target"] == "queued"
    assert TypeAdapter(StreamedEvent).validate_python(first[0]["data"])["job_id"] == 2
    assert [event["id"] for event in first] == ["2", "3"]
    for position in (first[1]["id"], "3+2.4", "3+100.200"):  # release 0.1 appended distances to larger numbers
        rest = stream(app, world.token, last=position, until=enough(1))
        assert [event["data"]["name"] for event in rest] == ["three"]
    everything = stream(app, world.token, "topic=jobs", last="0", until=enough(4))
    assert [event["data"]["name"] for event in everything] == ["before", "one", "two", "three"]
    assert app.state.streams.job_events.followers == 0


def test_the_topic_of_changes_says_which_logs_have_grown(app: FastAPI, client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job(name="before"))
    admit(world)

    def submit() -> None:
        for name in ("one", "two"):
            client.post("/v1/jobs", json=plain_job(name=name, project="nlp"))
        admit(world)

    # Pages count all jobs, so those of others count too.
    for token in (world.token, person(world, "eve", Role.VIEWER, "vision").key):
        assert stream(app, token, "topic=changes", until=enough(1), meanwhile=submit) == [
            {"event": "changes", "data": {"changed": ["jobs"]}}
        ]
    assert stream(app, world.token, "topic=changes", until=lambda _, text: ": alive" in text) == []
    assert app.state.streams.job_events.followers == app.state.streams.server_events.followers == 0


def test_while_changes_go_on_they_are_said_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    feed = _Log()

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        # Quiet from the sixth look on.
        feed.newest += len(pauses) < 6

    async def events() -> list[str]:
        return [
            text async for text in sse.changes({"jobs": cast(Feed, feed)}, lambda: len(pauses) == 8) if "event:" in text
        ]

    monkeypatch.setattr(sse.asyncio, "sleep", sleep)
    assert len(asyncio.run(events())) == 5
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 1.0, 1.0]


class _Log:
    """What a stream of changes needs of a feed."""

    newest = 0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[int]:
        yield self.newest


def test_a_topic_narrows_to_one_job_and_rights_to_ones_own(app: FastAPI, client: Client, world: World) -> None:
    for name, project in (("a", "nlp"), ("b", "vision"), ("c", "nlp")):
        client.post("/v1/jobs", json=plain_job(name=name, project=project))
    admit(world)
    assert [event["data"]["name"] for event in stream(app, world.token, "topic=job:2", "0", until=enough(1))] == ["b"]
    ada = person(world, "ada", Role.VIEWER, "nlp")
    seen = stream(app, ada.key, "topic=jobs", "0", until=enough(2))
    assert [event["data"]["name"] for event in seen] == ["a", "c"]
    with client_for(app, ada) as her:
        assert_problem(her.get("/v1/events?topic=job:2"), "not-found")
        assert_problem(her.get("/v1/events?topic=cycle"), "forbidden")


def test_changes_of_servers_are_a_topic_for_all_who_may_see_the_cluster(app: FastAPI, world: World) -> None:
    world.change_server("a", down=True, detail="no answer")
    ada = person(world, "ada", Role.VIEWER, "nlp")

    def more() -> None:
        world.change_server("b", engine_drained=True, detail="disk")

    seen = stream(app, ada.key, "topic=servers", until=enough(1), meanwhile=more)
    assert [(event["event"], event["data"]["server"], event["data"]["detail"]) for event in seen] == [
        ("server", "b", "disk")
    ]
    assert TypeAdapter(ServerEventDocument).validate_python(seen[0]["data"])["id"] == int(seen[0]["id"])
    everything = stream(app, ada.key, "topic=servers", "0", until=enough(2))
    assert [event["data"]["server"] for event in everything] == ["a", "b"]
    assert app.state.streams.server_events.followers == 0


def test_it_shows_a_sign_of_life_and_ends_with_the_service(
    app: FastAPI, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse.stream, "__kwdefaults__", {"pulse_s": 0.01})

    def stop(events: list[Event], text: str) -> bool:
        world.stopping = text.count(": alive") >= 2
        return False

    assert stream(app, world.token, until=stop) == []


def test_a_stream_whose_events_are_hidden_is_not_silent_and_says_where_to_resume(
    app: FastAPI, client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse.stream, "__kwdefaults__", {"pulse_s": 0.0})
    client.post("/v1/jobs", json=plain_job(name="mine"))
    admit(world)

    def submit() -> None:
        for name in ("other", "another"):
            client.post("/v1/jobs", json=plain_job(name=name))
        admit(world)

    blocks: list[str] = []

    def passed(events: list[Event], text: str) -> bool:
        blocks[:] = text.split("\n\n")
        return "id: 3\n: alive" in blocks

    assert stream(app, world.token, "topic=job:1", until=passed, meanwhile=submit) == []
    assert blocks[0] == "retry: 2000\nid: 1\n: alive"
    found = stream(app, world.token, "topic=jobs", last="2", until=enough(1))
    assert [event["data"]["name"] for event in found] == ["another"]


def test_what_is_wrong_is_said_before_anything_is_streamed(app: FastAPI, client: Client, world: World) -> None:
    assert_problem(client.get("/v1/events?topic=weather"), "invalid-parameter")
    for position in ("yesterday", "", "-1", "1+", "+1", "1+2,", "9" * 19, "1+2.", "1++2"):
        assert_problem(client.get("/v1/events", headers={"Last-Event-ID": position}), "invalid-parameter")
    assert_problem(client.get("/v1/events?topic=job:7"), "not-found")
    app.state.dependencies = world.dependencies()
    world.settings = world.settings.model_copy(update={"event_streams_max": 0})
    app.state.dependencies = world.dependencies()
    answer = client.get("/v1/events")
    assert_problem(answer, "too-many-requests")
    assert answer.headers["retry-after"] == "10"


def test_the_limit_is_what_is_open(app: FastAPI, client: Client, world: World) -> None:
    world.settings = world.settings.model_copy(update={"event_streams_max": 1})
    app.state.dependencies = world.dependencies()

    def refused(events: list[Event], text: str) -> bool:
        return bool(events)

    def second() -> None:
        client.post("/v1/jobs", json=plain_job())
        admit(world)

    assert len(stream(app, world.token, until=refused, meanwhile=second)) == 1
    assert len(stream(app, world.token, last="0", until=refused)) == 1


def test_a_stream_ends_with_the_right_to_it(app: FastAPI, client: Client, world: World) -> None:
    """Its client comes back and is asked who it is; whose key was revoked meanwhile sees nothing more."""
    ada = person(world, "ada", Role.VIEWER, "nlp")
    revoke = f"/v1/keys/{ada.key_id}/revoke"
    found = stream(
        app, ada.key, until=lambda events, text: False, meanwhile=lambda: client.post(revoke).raise_for_status()
    )
    assert found == []
    with client_for(app, ada) as hers:
        assert_problem(hers.get("/v1/events"), "unauthorized")
