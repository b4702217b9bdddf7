"""The HTTP client: what it sends, how it pages, and what it raises."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.app import create_app
from service.api.routers import job_details
from service.client import ApiError, AsyncClient, ClientError, Unreachable, Unsendable, noun
from service.client import jobs as client_jobs
from tests.api.client import BASE_URL
from tests.api.conftest import World, app_of, make_world
from tests.api.timelines import put
from tests.unit.service.client.both import KINDS, Kind, as_sooner, blocking, client_of

BODY: dict[str, Any] = {"name": "digits", "command": ["python", "digits.py"], "gpus": 2}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.database.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every test runs with both clients."""
    found: Kind = request.param
    return found


@pytest.fixture
def client(kind: Kind, world: World) -> Iterator[Any]:
    with client_of(kind, app_of(world), world.token) as made:
        yield made


def answering(kind: Kind, handler: Any) -> AbstractContextManager[Any]:
    return blocking(kind("http://sooner.test", "t", transport=httpx.MockTransport(handler)))


def test_the_client_needs_httpx_alone() -> None:
    """Its answers are typed by the API's own documents, which are imported for the type checker only."""
    program = "import sys, service.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in loaded
    assert not {"pydantic", "fastapi", "numpy", "service.wire", "policies", "predictor"} & set(loaded)


def test_log_headers_are_those_of_the_api() -> None:
    assert {client_jobs.NEXT_OFFSET_HEADER, client_jobs.CUT_BYTES_HEADER} <= set(job_details.LOG_HEADERS)


def test_one_job_and_many_come_back_in_their_order(world: World, client: Any) -> None:
    assert client.jobs.submit(BODY)["name"] == "digits"
    many = client.jobs.submit_many({"jobs": [BODY | {"name": "b"}, BODY | {"name": "a"}]})
    assert [job["name"] for job in many] == ["b", "a"]
    assert client.jobs.show(many[1]["id"])["name"] == "a"


def test_a_key_makes_a_submission_safe_to_repeat(world: World, client: Any) -> None:
    first = client.jobs.submit(BODY, idempotency_key="k1")
    assert client.jobs.submit(BODY, idempotency_key="k1")["id"] == first["id"]
    assert client.jobs.submit(BODY, idempotency_key="k2")["id"] != first["id"]


@pytest.mark.parametrize("several", [{"jobs": [BODY]}, BODY | {"array": {"count": 2}}])
def test_one_job_is_never_several(world: World, client: Any, several: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="submit_many"):
        client.jobs.submit(several)
    assert client.jobs.list() == []


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, [5, 4, 3, 2, 1]), (3, [5, 4, 3]), (4, [5, 4, 3, 2]), (9, [5, 4, 3, 2, 1])]
)
def test_lists_follow_pages_up_to_the_limit(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch, limit: int | None, expected: list[int]
) -> None:
    monkeypatch.setattr(noun, "PAGE_SIZE", 2)
    client.jobs.submit_many({"jobs": [BODY] * 5})
    assert [job["id"] for job in client.jobs.list(limit=limit)] == expected


def test_a_service_with_smaller_pages_is_read_all_the_same(kind: Kind, tmp_path: Path) -> None:
    made = make_world(tmp_path, page_size_default=2, page_size_max=3)
    with client_of(kind, create_app(made.dependencies()), made.token) as client:
        client.jobs.submit_many({"jobs": [BODY] * 7})
        assert [job["id"] for job in client.jobs.list(limit=6)] == [7, 6, 5, 4, 3, 2]
        assert len(client.jobs.list()) == 7
    made.database.close()


def test_filters_narrow_the_list(world: World, client: Any) -> None:
    client.jobs.submit_many({"jobs": [BODY | {"user": "ada"}, BODY | {"user": "ben", "name": "other"}]})
    assert [job["id"] for job in client.jobs.list(user="ben")] == [2]
    assert [job["id"] for job in client.jobs.list(name="digits", states=["queued"])] == [1]
    assert client.jobs.list(states=["failed"]) == []


def test_a_refusal_carries_the_problem_document(world: World, client: Any) -> None:
    with pytest.raises(ApiError) as caught:
        client.jobs.submit(BODY | {"gpus": 0, "colour": "red"})
    error = caught.value
    assert (error.status, error.kind) == (422, "invalid-body")
    assert {fault["pointer"] for fault in error.errors} == {"/gpus", "/colour"}
    with pytest.raises(ApiError, match="no job 9") as missing:
        client.jobs.show(9)
    assert missing.value.status == 404


def test_a_wrong_token_is_a_refusal(kind: Kind, world: World) -> None:
    with client_of(kind, app_of(world), "wrong") as client, pytest.raises(ApiError) as caught:
        client.jobs.list()
    assert caught.value.kind == "unauthorized"


def test_nobody_listening_is_said_as_such(kind: Kind) -> None:
    with blocking(kind("http://127.0.0.1:9", "t")) as client, pytest.raises(Unreachable) as caught:
        client.jobs.list()
    assert str(caught.value) == "cannot reach Sooner at http://127.0.0.1:9 (connection refused)"


@pytest.mark.parametrize("address", ["http://256.1.1.1", "127.0.0.1:8765", "ftp://scheduler", "http://"])
def test_what_is_no_address_is_refused(kind: Kind, address: str) -> None:
    with pytest.raises(ClientError, match=f"base_url {address!r} is not an address"):
        kind(address)


@pytest.mark.parametrize("token", ["sooner_SECRET\nnote", "sooner_SECRETü", "sooner_SECRET\x00"])
def test_what_no_header_can_hold_is_refused_without_the_token(kind: Kind, token: str) -> None:
    with pytest.raises(ClientError) as caught:
        kind("http://127.0.0.1:9", token)
    assert str(caught.value) == "token must be one line of printable ASCII characters"


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, b"<html>"),
        (200, b"{}"),
        (201, b"[]"),
        (502, b"<html>"),
        (503, b"{}"),
        (404, b'{"title": "Gone", "status": "error"}'),
    ],
)
@pytest.mark.parametrize(
    ("ask", "path"),
    [
        (lambda client: client.jobs.list(), "/v1/jobs"),
        (lambda client: client.jobs.submit(BODY), "/v1/jobs"),
        (lambda client: client.jobs.logs(1), "/v1/jobs/1/logs"),
        (lambda client: client.readiness(), "/readyz"),
        (lambda client: next(client.follow()), "/v1/events"),
        (lambda client: next(client.watch(1)), "/v1/events"),
    ],
)
def test_a_stranger_that_answers_is_no_traceback(
    kind: Kind, ask: Callable[[Any], object], path: str, status: int, content: bytes
) -> None:
    with (
        answering(kind, lambda request: httpx.Response(status, content=content)) as client,
        pytest.raises(ApiError) as caught,
    ):
        ask(client)
    phrase = httpx.codes.get_reason_phrase(status)
    told = f"something else than Sooner answers at http://sooner.test{path}: HTTP {status} {phrase}"
    assert (caught.value.status, str(caught.value)) == (status, told)


def test_a_stranger_is_not_ready(kind: Kind) -> None:
    with answering(kind, lambda request: httpx.Response(200, json={})) as client:
        assert not client.ready()


def test_an_answer_that_is_not_json_is_no_traceback(kind: Kind) -> None:
    with (
        blocking(kind(BASE_URL, transport=as_sooner(lambda request: httpx.Response(200, text="<html>")))) as client,
        pytest.raises(ClientError) as caught,
    ):
        client.get("/docs/")
    assert str(caught.value) == f"the answer of {BASE_URL}/docs/ is not JSON"


def test_names_stay_one_segment_of_the_path(kind: Kind) -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(202, json={"accepted": "server_drained", "job_id": None, "server": "x"})

    with blocking(kind(BASE_URL, transport=as_sooner(handler))) as client:
        client.cluster.drain("a/b?c d")
    assert seen == [b"/v1/cluster/servers/a%2Fb%3Fc%20d/drain"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda client: client.jobs.submit(BODY | {"command": ["cat", "a\udcff"]}), "command.1: must be UTF-8"),
        (lambda client: client.jobs.submit(BODY | {"env": {"A\udcff": "1"}}), r"env.'A\udcff': must be UTF-8"),
        (lambda client: client.jobs.list(name="\udcff"), "name: must be UTF-8"),
        (lambda client: client.cluster.drain("a\udcff"), r"'a\udcff' is not UTF-8"),
        (lambda client: client.cluster.drain(""), "a name must not be empty"),
        (lambda client: client.projects.add_member("", "ada"), "a name must not be empty"),
        (
            lambda client: client.cluster.add_server({"name": "d", "nic_gbps": float("inf")}),
            "nic_gbps: must be a finite number (got inf)",
        ),
        (
            lambda client: client.jobs.submit(BODY | {"graph": {"a": [1.0, float("nan")]}}),
            "graph.a.1: must be a finite number (got nan)",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_sent(kind: Kind, ask: Any, message: str) -> None:
    """Arguments and names of files may hold any bytes."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request)

    with answering(kind, handler) as client, pytest.raises(Unsendable) as caught:
        ask(client)
    assert str(caught.value) == message


def test_the_token_never_goes_through_a_proxy_of_the_environment(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with blocking(kind("http://127.0.0.1:10", "t")) as client, pytest.raises(Unreachable) as caught:
        client.jobs.list()
    assert caught.value.url == "http://127.0.0.1:10"
    assert not client._noun._connection.http._mounts if kind is AsyncClient else not client._connection.http._mounts


def test_actions_say_what_was_accepted(world: World, client: Any) -> None:
    job_id = client.jobs.submit(BODY)["id"]
    said = [
        client.jobs.hold(job_id),
        client.jobs.release(job_id),
        client.jobs.set_priority(job_id, 3),
        client.jobs.cancel(job_id),
    ]
    assert [each["accepted"] for each in said] == ["hold", "release", "priority", "cancel"]
    assert client.cluster.drain("a")["server"] == "a"
    assert client.cluster.add_server({"name": "d", "gpus": 2})["accepted"] == "server_added"
    assert client.models.train() == 1


def test_a_placement_says_why_it_is_empty(world: World, client: Any) -> None:
    found = client.jobs.placement(client.jobs.submit(BODY)["id"])
    assert (found["attempt"], found["reason"]) == (None, "The job has not started yet.")


def test_logs_are_read_from_an_offset(world: World, client: Any) -> None:
    job_id = client.jobs.submit(BODY)["id"]
    put(world, job_id, 0.0, number=2)
    world.logs[job_id, 2] = b"first second"
    chunk = client.jobs.logs(job_id)
    assert (chunk.data, chunk.next_offset) == (b"first second", 12)
    assert client.jobs.logs(job_id, offset=6).data == b"second"
    assert client.jobs.logs(job_id, offset=12).data == b""


def test_readiness_is_a_question_without_exceptions(kind: Kind, world: World, client: Any) -> None:
    assert client.ready()
    world.healthy = False
    assert not client.ready()
    with blocking(kind("http://127.0.0.1:9")) as other:
        assert not other.ready()


def test_what_if_runs_are_asked_for_read_and_cancelled(world: World, client: Any) -> None:
    asked = client.simulations.run({"policies": ["current", "srtf"], "servers": "+1"})
    assert (asked["state"], asked["request"]["servers"]) == ("queued", "+1")
    assert client.simulations.show(asked["id"]) == asked | {"report": None}
    assert client.simulations.cancel(asked["id"])["state"] == "cancelled"
    assert [run["state"] for run in client.simulations.list()] == ["cancelled"]
    with pytest.raises(ApiError) as refused:
        client.simulations.cancel(asked["id"])
    assert refused.value.status == 409
