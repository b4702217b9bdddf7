"""The client and the commands of several services: the list, and a stream that is taken up again where it broke."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service.cli import connect
from service.cli.main import app
from service.client import ApiError, Client, Unreachable
from service.db.services import Registered, ServiceNow
from tests.api.conftest import NOW_S
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.client.both import KINDS, Kind, as_sooner, blocking, noted_pauses


def event(number: int) -> str:
    document = {
        "at": "2026-01-01T00:00:00Z",
        "job_id": 7,
        "name": "digits",
        "user": "ada",
        "source": None,
        "target": "queued",
        "reason": "new",
    }
    return f"id: {number}+2\nevent: job\ndata: {json.dumps(document | {'number': number})}\n\n"


class Script:
    """Answers to requests for the stream, one after the other; an exception is raised. Notes what was asked.

    ``past``: the events of job 7.
    """

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.since: list[str | None] = []
        self.topics: set[str] = set()
        self.past: list[dict[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs/7/events":
            return httpx.Response(200, json={"items": self.past, "next": None})
        assert request.url.path == "/v1/events"
        self.topics.add(request.url.params["topic"])
        self.since.append(request.headers.get("last-event-id"))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, kind: Kind) -> AbstractContextManager[Any]:
        return blocking(kind("http://sooner.test", "t", transport=as_sooner(self)))


def said(*parts: str) -> httpx.Response:
    return httpx.Response(200, text="".join(("retry: 2000\n\n", *parts)))


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body whose connection breaks."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("gone")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def broken(text: str) -> httpx.Response:
    return httpx.Response(200, stream=Broken(text))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return noted_pauses(monkeypatch)


PROBLEM = {"type": "/docs/problems/x", "title": "No", "detail": ""}


def test_a_stream_that_ends_or_breaks_is_taken_up_again(kind: Kind, pauses: list[float]) -> None:
    busy = httpx.Response(503, json=PROBLEM | {"status": 503})
    script = Script(
        said(event(1), ": alive\n\n", event(2)), broken(event(3)), busy, httpx.ConnectError("refused"), said(event(4))
    )
    with script.client(kind) as client:
        stream = client.follow(since="0")
        found = [next(stream) for _ in range(4)]
    assert [(step.id, step.kind, step.document["number"]) for step in found] == [
        (f"{number}+2", "job", number) for number in (1, 2, 3, 4)
    ]
    assert script.since == ["0", "2+2", "3+2", "3+2", "3+2"]
    assert len(pauses) == 4


def test_a_stream_without_events_is_taken_up_where_the_service_was(kind: Kind, pauses: list[float]) -> None:
    script = Script(said("id: 5\n: alive\n\n"), broken("retry: 2000\nid: 7\n: alive\n\nid: 8\n"), said(event(9)))
    with script.client(kind) as client:
        found = next(client.follow())
    assert found.id == "9+2"
    assert script.since == [None, "5", "7"]


def test_what_is_wrong_from_the_start_is_told(kind: Kind) -> None:
    for status in (401, 404, 422, 429):
        with Script(httpx.Response(status, json=PROBLEM | {"status": status})).client(kind) as client:
            with pytest.raises(ApiError) as refusal:
                next(client.follow())
            assert refusal.value.status == status
    with Script(httpx.ConnectError("refused")).client(kind) as client, pytest.raises(Unreachable):
        next(client.follow())


def test_rights_that_were_lost_end_the_stream(kind: Kind, pauses: list[float]) -> None:
    script = Script(said(event(1)), httpx.Response(401, json=PROBLEM | {"status": 401}))
    with script.client(kind) as client:
        stream = client.follow()
        next(stream)
        with pytest.raises(ApiError):
            next(stream)


def change(number: int, target: str) -> dict[str, object]:
    return {"id": number, "target": target}


def changes(*found: dict[str, object]) -> str:
    return "".join(f"id: {each['id']}\nevent: job\ndata: {json.dumps(each)}\n\n" for each in found)


HELLO = "id: 4\n: alive\n\n"


def test_watching_begins_with_the_newest_change_and_ends_with_the_job(kind: Kind, pauses: list[float]) -> None:
    """A change that was read and is then streamed comes once, and the stream goes on where it broke."""
    again = [change(5, "starting"), change(6, "running")]
    script = Script(said(HELLO), broken(changes(*again)), said(changes(change(9, "succeeded"), change(10, "queued"))))
    script.past = [change(3, "queued"), change(5, "starting")]
    with script.client(kind) as client:
        found = list(client.watch(7))
    assert [(each["id"], each["target"]) for each in found] == [(5, "starting"), (6, "running"), (9, "succeeded")]
    assert (script.topics, script.since) == ({"job:7"}, [None, "4", "6"])


def test_watching_a_job_that_has_ended_ends(kind: Kind) -> None:
    script = Script(said(HELLO))
    script.past = [change(1, "queued"), change(2, "cancelled")]
    with script.client(kind) as client:
        assert list(client.watch(7)) == [change(2, "cancelled")]


def test_a_new_job_is_watched_from_its_admission_on(kind: Kind, pauses: list[float]) -> None:
    """Before it, the submission has no number, and the stream brings it with one."""
    script = Script(said(HELLO), said(changes(change(5, "queued"), change(6, "failed"))))
    script.past = [change(0, "queued")]
    with script.client(kind) as client:
        assert list(client.watch(7)) == [change(5, "queued"), change(6, "failed")]


def test_what_cannot_be_watched_is_told(kind: Kind) -> None:
    with Script(httpx.Response(404, json=PROBLEM | {"status": 404})).client(kind) as client, pytest.raises(ApiError):
        next(client.watch(7))


@pytest.mark.parametrize("as_json", [True, False])
def test_events_are_lines(as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Until the service refuses, which in life is Ctrl-C."""
    script = Script(said(event(1), event(2)), httpx.Response(401, json=PROBLEM | {"status": 401}))
    monkeypatch.setattr("service.client.events.PAUSE_S", 0.0)
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(connect, "Client", partial(Client, transport=as_sooner(script)))
    result = CliRunner().invoke(app, ["events", "--since", "0", *(["--json"] if as_json else [])])
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    if as_json:
        assert [(json.loads(line)["schema"], json.loads(line)["id"]) for line in lines] == [
            ("sooner.event/1", "1+2"),
            ("sooner.event/1", "2+2"),
        ]
    else:
        assert lines[0].endswith("job 7 digits (ada): new -> queued, new")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as world:
        yield world


def test_services_are_listed_with_their_roles(cli: CliWorld) -> None:
    assert "no service leads" in cli.run("services").stderr
    registered = Registered("a1", "host:/data", "http://host:8765", "1", 60.0)
    cli.world.services = [
        ServiceNow(registered, True, NOW_S, NOW_S, 0.4, False),
        ServiceNow(replace(registered, id="b2"), False, NOW_S, NOW_S - 90, 90.0, True),
    ]
    document = json.loads(cli.run("services", "--json").stdout)
    assert document["schema"] == "sooner.services/1"
    assert [(service["id"], service["role"], service["condemned"]) for service in document["services"]] == [
        ("a1", "leader", False),
        ("b2", "standby", True),
    ]
    assert cli.run("services", "-q").stdout.split() == ["a1", "b2"]
