"""The OpenAPI document: complete, true to what is answered, and with examples that work."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from httpx import Client, Response
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.responses import JSONResponse

from service.api.app import OPENAPI_PATH, create_app
from service.api.problems import MEDIA_TYPE, TYPE_PREFIX, ProblemType
from service.domain.access import Role
from service.wire import examples
from tests.api.client import BASE_URL, client_of
from tests.api.conftest import World, make_world
from tests.api.helpers import assert_problem
from tests.api.people import person

EXISTING = {"job_id": 1, "name": "a", "slug": "internal"}

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def test_the_parameters_that_are_not_refused_are_those_of_the_document(app: FastAPI) -> None:
    documented = {
        (method.upper(), path): {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        for method, path, operation in operations(app.openapi())
    }
    accepted = app.state.query_parameters
    assert documented == {route: set(accepted[route]) for route in documented}
    assert any(documented.values())


def test_the_document_is_made_when_it_is_asked_for(app: FastAPI) -> None:
    """It takes a second of a processor, which no start of a service waits for."""
    made = create_app(app.state.dependencies)
    assert made.openapi_schema is None
    assert made.openapi() is made.openapi() is made.openapi_schema


def test_the_text_of_the_document_is_made_once(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    render = JSONResponse.render

    def spied(response: JSONResponse, content: Any) -> bytes:
        made.append(render(response, content))
        return made[-1]

    monkeypatch.setattr(JSONResponse, "render", spied)
    dependencies = app.state.dependencies
    with client_of(create_app(dependencies), dependencies.token) as client:
        answers = [client.get(OPENAPI_PATH) for _ in range(3)]
    assert {answer.content for answer in answers} == set(made) and len(made) == 1
    assert answers[0].headers["content-type"] == "application/json"


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_the_document_is_behind_the_token_and_whole(client: Client) -> None:
    document = client.get(OPENAPI_PATH).json()
    assert document["security"] == [{"token": []}]
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known
    for method, path, operation in operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        assert "HTTPValidationError" not in str(operation), (method, path)


def test_nothing_that_release_0_1_promised_has_vanished(client: Client) -> None:
    """Every route of the release still takes its parameters and answers with its statuses."""
    promised = json.loads(Path(__file__).with_name("http_of_release_0_1.json").read_text())
    offered = {
        f"{method.upper()} {path}": {
            "parameters": {f"{parameter['in']} {parameter['name']}" for parameter in operation.get("parameters", [])},
            "statuses": set(operation["responses"]),
        }
        for method, path, operation in operations(client.get(OPENAPI_PATH).json())
    }
    assert len(promised) == 77
    assert promised.keys() <= offered.keys()
    for route, parts in promised.items():
        for part, names in parts.items():
            assert set(names) <= offered[route][part], (route, part)


def test_every_error_answer_is_a_problem(client: Client) -> None:
    for method, path, operation in operations(client.get(OPENAPI_PATH).json()):
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and path != "/readyz":
                schema = answer["content"][MEDIA_TYPE]["schema"]
                assert schema == {"$ref": "#/components/schemas/ProblemDocument"}, (method, path, status)
        if path.startswith("/v1") and method in ("post", "put"):
            assert {"400", "401", "413", "415", "422"} <= set(operation["responses"]), path


IN_PATHS = {"attempt_id": "1.1", "job_id": "1", "array_id": "1", "scope": "project", "name": "nlp"}
"""What stands in the paths of requests that have an example of their body."""


def test_examples_of_bodies_are_answered_with_success(client: Client, world: World) -> None:
    world.attempt_tokens["1.1"] = world.token
    document = client.get(OPENAPI_PATH).json()
    client.post("/v1/jobs", json=examples.PLAIN_JOB | {"array": {"count": 2}})
    tried = 0
    for method, path, operation in operations(document):
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        name = schema.get("$ref", "").rpartition("/")[2]
        for body in document["components"]["schemas"].get(name, {}).get("examples", []):
            answer = client.request(
                method, re.sub(r"\{(\w+)\}", lambda found: IN_PATHS.get(found[1], "some"), path), json=body
            )
            if path.startswith("/v1/attempts"):
                # The example client sends the service's token; this world lets it open the attempt.
                assert answer.status_code == 202, answer.text
            else:
                assert answer.status_code in (200, 201, 202), (path, answer.text)
            tried += 1
    assert tried >= 6


def test_every_problem_type_has_its_page(client: Client) -> None:
    for kind in ProblemType:
        page = client.get(kind.uri)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain")
        assert kind.value.title in page.text
        assert str(kind.status) in page.text
    assert_problem(client.get(TYPE_PREFIX + "nothing"), "not-found")
    assert len({kind.value.slug for kind in ProblemType}) == len(ProblemType)


def test_probes_need_no_token_and_tell_what_is_missing(app: FastAPI, world: World) -> None:
    with client_of(app, None) as probe:
        assert probe.get("/healthz").json() == {"status": "ok"}
        loop = {"loop_healthy": True, "cycle": 7, "cycle_at": "2026-01-01T00:00:00Z"}
        ready = {"ready": True, "role": "leader", "migrated": True, **loop, "containment": "subreaper"}
        assert probe.get("/readyz").json() == ready
        world.healthy = False
        answer = probe.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, ready | {"ready": False, "loop_healthy": False})
        world.healthy, world.migrated = True, False
        answer = probe.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, ready | {"ready": False, "migrated": False})
        assert probe.get("/healthz").status_code == 200


def test_a_standby_is_ready_whoever_leads(app: FastAPI, world: World) -> None:
    world.leads = world.healthy = False
    with client_of(app, None) as probe:
        answer = probe.get("/readyz")
        said = answer.json()
        assert (answer.status_code, said["role"], said["ready"], said["loop_healthy"]) == (200, "standby", True, False)
        world.migrated = False
        assert probe.get("/readyz").status_code == 503


def test_refusals_of_the_door_are_documented_everywhere(client: Client) -> None:
    document = client.get(OPENAPI_PATH).json()
    for method, path, operation in operations(document):
        if path.startswith("/v1"):
            assert {"400", "401", "403", "421", "422", "429", "503"} <= set(operation["responses"]), (method, path)
        if "{job_id}" in path or "{array_id}" in path:
            assert "404" in operation["responses"], (method, path)


REQUESTS: Mapping[Role | None, int] = {None: 2, Role.VIEWER: 3, Role.SUBMITTER: 3, Role.ADMIN: 6}
"""Generated requests of each kind to each operation, by the role of the sender. Those of all senders are the same."""


@pytest.mark.slow
def test_generated_requests_are_answered_as_documented(tmp_path: Path) -> None:
    """Valid and broken requests of every operation: no 5xx but a documented one, answers that fit their schema."""
    world = make_world(tmp_path, requests_burst_max=100_000)
    app = create_app(world.dependencies())
    with client_of(app, world.token) as local:
        document = local.get(OPENAPI_PATH).json()
        local.post("/v1/jobs", json=examples.JOB)
    keys = [None if role is None else person(world, role.value, role, "nlp").key for role in REQUESTS]
    with ExitStack() as opened:
        senders = [opened.enter_context(client_of(app, key)) for key in keys]
        found: Any = schemathesis.openapi.from_dict(document).get_all_operations()
        for result in found:
            _try_operation(result.ok(), dict(zip(senders, REQUESTS.values(), strict=True)))
    world.database.close()


def _try_operation(operation: Any, senders: Mapping[Client, int]) -> None:
    _run(operation, senders, schemathesis.GenerationMode.POSITIVE, EXISTING)
    if operation.body or operation.query:
        _run(operation, senders, schemathesis.GenerationMode.NEGATIVE, {})


def _run(
    operation: Any, senders: Mapping[Client, int], mode: schemathesis.GenerationMode, known: dict[str, Any]
) -> None:
    """Requests of this kind, so many of each sender; ``known`` path parameters replace made-up ones, which would hardly ever
    exist.
    """
    made = count()

    @settings(
        max_examples=max(senders.values()),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def trial(case: Any) -> None:
        case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
        number = next(made)
        for sender, most in senders.items():
            if number < most:
                case.validate_response(_send(case, sender), checks=CHECKS)

    trial()


def _send(case: Any, sender: Client) -> Response:
    arguments = case.as_transport_kwargs(base_url=BASE_URL)
    arguments.pop("cookies", None)
    arguments["content"] = arguments.pop("data", None)
    # The generated ones guess at tokens, too.
    arguments["headers"].pop("Authorization", None)
    arguments["headers"].update({name: value for name, value in sender.headers.items() if name == "authorization"})
    return sender.request(**arguments)


def test_the_page_for_browsers_needs_no_token_and_loads_nothing(app: FastAPI) -> None:
    with client_of(app, None) as browser:
        answer = browser.get("/api/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    assert not re.search(r"(?:src|href)=.(?!#)", answer.text)
    policy = answer.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'"
    for path in app.openapi()["paths"]:
        assert f"<code>{path}</code>" in answer.text
