"""The HTTP client: what it sends, how it pages, and what it raises."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import service.client as module
from service.api.app import create_app
from service.api.routers import job_details
from service.client import ApiError, Client, ClientError, Unreachable
from service.client import transport as client_transport
from tests.api.client import AppTransport
from tests.api.conftest import World, make_world

BODY: dict[str, Any] = {"name": "digits", "command": ["python", "digits.py"], "gpus": 2}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.database.close()


def client_of(world: World, token: str | None = None) -> Client:
    return Client(
        "http://127.0.0.1:8765", token or world.token, transport=AppTransport(create_app(world.dependencies()))
    )


def answering(handler: Any) -> Client:
    return Client("http://sooner.test", "t", transport=httpx.MockTransport(handler))


def test_the_client_needs_httpx_alone() -> None:
    """Its answers are typed by the API's own documents, which are imported for the type checker only."""
    program = "import sys, service.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in loaded
    assert not {"pydantic", "fastapi", "numpy", "service.wire", "policies", "predictor"} & set(loaded)


def test_log_headers_are_those_of_the_api() -> None:
    assert {module.NEXT_OFFSET_HEADER, module.CUT_BYTES_HEADER} <= set(job_details.LOG_HEADERS)


def test_one_job_and_many_come_back_in_their_order(world: World) -> None:
    with client_of(world) as client:
        assert [job["name"] for job in client.submit(BODY)] == ["digits"]
        many = client.submit({"jobs": [BODY | {"name": "b"}, BODY | {"name": "a"}]})
        assert [job["name"] for job in many] == ["b", "a"]
        assert client.job(many[1]["id"])["name"] == "a"


def test_a_key_makes_a_submission_safe_to_repeat(world: World) -> None:
    with client_of(world) as client:
        first = client.submit(BODY, idempotency_key="k1")
        assert client.submit(BODY, idempotency_key="k1")[0]["id"] == first[0]["id"]
        assert client.submit(BODY, idempotency_key="k2")[0]["id"] != first[0]["id"]


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, [5, 4, 3, 2, 1]), (3, [5, 4, 3]), (4, [5, 4, 3, 2]), (9, [5, 4, 3, 2, 1])]
)
def test_lists_follow_pages_up_to_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int | None, expected: list[int]
) -> None:
    monkeypatch.setattr(client_transport, "PAGE_SIZE", 2)
    with client_of(world) as client:
        client.submit({"jobs": [BODY] * 5})
        assert [job["id"] for job in client.jobs(limit=limit)] == expected


def test_a_service_with_smaller_pages_is_read_all_the_same(tmp_path: Path) -> None:
    made = make_world(tmp_path, page_size_default=2, page_size_max=3)
    with client_of(made) as client:
        client.submit({"jobs": [BODY] * 7})
        assert [job["id"] for job in client.jobs(limit=6)] == [7, 6, 5, 4, 3, 2]
        assert len(client.jobs()) == 7
    made.database.close()


def test_filters_narrow_the_list(world: World) -> None:
    with client_of(world) as client:
        client.submit({"jobs": [BODY | {"user": "ada"}, BODY | {"user": "ben", "name": "other"}]})
        assert [job["id"] for job in client.jobs(user="ben")] == [2]
        assert [job["id"] for job in client.jobs(name="digits", states=["queued"])] == [1]
        assert client.jobs(states=["failed"]) == []


def test_a_refusal_carries_the_problem_document(world: World) -> None:
    with client_of(world) as client, pytest.raises(ApiError) as caught:
        client.submit(BODY | {"gpus": 0, "colour": "red"})
    error = caught.value
    assert (error.status, error.kind) == (422, "invalid-body")
    assert {fault["pointer"] for fault in error.errors} == {"/gpus", "/colour"}
    with client_of(world) as client, pytest.raises(ApiError, match="no job 9") as missing:
        client.job(9)
    assert missing.value.status == 404


def test_a_wrong_token_is_a_refusal(world: World) -> None:
    with client_of(world, "wrong") as client, pytest.raises(ApiError) as caught:
        client.jobs()
    assert caught.value.kind == "unauthorized"


def test_nobody_listening_is_said_as_such() -> None:
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(Unreachable) as caught:
        client.jobs()
    assert str(caught.value) == "cannot reach Sooner at http://127.0.0.1:9 (connection refused)"


def test_a_stranger_that_answers_is_no_traceback() -> None:
    with (
        answering(lambda request: httpx.Response(200, text="<html>")) as client,
        pytest.raises(ClientError, match="not JSON"),
    ):
        client.jobs()
    with answering(lambda request: httpx.Response(502, text="<html>")) as client, pytest.raises(ApiError) as caught:
        client.jobs()
    assert (caught.value.status, str(caught.value)) == (502, "HTTP 502 Bad Gateway")


def test_names_stay_one_segment_of_the_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(202, json={"accepted": "server_drained", "job_id": None, "server": "x"})

    with answering(handler) as client:
        client.drain("a/b?c d")
    assert seen == [b"/v1/cluster/servers/a%2Fb%3Fc%20d/drain"]


def test_the_token_never_goes_through_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with Client("http://127.0.0.1:10", "t") as client, pytest.raises(Unreachable) as caught:
        client.jobs()
    assert caught.value.url == "http://127.0.0.1:10"
    assert not client._http._mounts


def test_actions_say_what_was_accepted(world: World) -> None:
    with client_of(world) as client:
        job_id = client.submit(BODY)[0]["id"]
        said = [client.hold(job_id), client.release(job_id), client.set_priority(job_id, 3), client.cancel(job_id)]
        assert [each["accepted"] for each in said] == ["hold", "release", "priority", "cancel"]
        assert client.drain("a")["server"] == "a"
        assert client.add_server({"name": "d", "gpus": 2})["accepted"] == "server_added"
        assert client.train() == 1


def test_logs_are_read_from_an_offset(world: World) -> None:
    with client_of(world) as client:
        job_id = client.submit(BODY)[0]["id"]
        world.logs[job_id, None] = b"first second"
        chunk = client.logs(job_id)
        assert (chunk.data, chunk.next_offset) == (b"first second", 12)
        assert client.logs(job_id, offset=6).data == b"second"
        assert client.logs(job_id, offset=12).data == b""


def test_readiness_is_a_question_without_exceptions(world: World) -> None:
    with client_of(world) as client:
        assert client.ready()
        world.healthy = False
    with client_of(world) as client:
        assert not client.ready()
    with Client("http://127.0.0.1:9") as client:
        assert not client.ready()
