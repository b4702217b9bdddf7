"""Numbers beyond what a database can hold, in paths, queries, cursors and bodies: refused, or not found; never an error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from pydantic import TypeAdapter

from service.api.paging import PageRequest, cursor
from tests.api.helpers import assert_problem, plain_job
from tests.api.test_permissions import body_of, operations, path_of

NUMBERS = (-1, 2**31 - 1, 2**31, 9_999_999_999, 2**63 - 1, 2**63, 10**30)


@pytest.fixture(autouse=True)
def _job(client: Client) -> None:
    """The job, the attempt and the array that the paths name."""
    assert client.post("/v1/jobs", json=plain_job(array={"count": 2})).status_code == 201


def unharmed(client: Client, method: str, path: str, **options: Any) -> None:
    answer = client.request(method, path, **options)
    asked = (method, path, options)
    assert answer.status_code in {200, 201, 202, 204, 400, 401, 403, 404, 409, 422, 429, 503}, (asked, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["detail"], asked


def integers(schema: Any) -> bool:
    """Whether a value of this schema may be an integer."""
    return isinstance(schema, dict) and (
        schema.get("type") == "integer" or any(integers(part) for part in schema.get("anyOf", ()))
    )


def numbers_of_paths(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    for method, path, operation in operations(app):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path" and (integers(parameter["schema"]) or parameter["name"] == "attempt_id"):
                yield method, path, operation, parameter["name"]


def test_numbers_in_paths(app: FastAPI, client: Client) -> None:
    found = list(numbers_of_paths(app))
    assert len(found) > 20
    for method, path, operation, name in found:
        body = body_of(app, operation) if "requestBody" in operation else None
        for number in NUMBERS:
            value = f"{number}.{number}" if name == "attempt_id" else str(number)
            unharmed(client, method, path_of(path.replace(f"{{{name}}}", value), 1), json=body)


def test_numbers_in_queries(app: FastAPI, client: Client) -> None:
    for method, path, operation in operations(app):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query" and integers(parameter["schema"]):
                for number in NUMBERS:
                    unharmed(client, method, path_of(path, 1), params={parameter["name"]: number})


ODD = ("1.0", "+1", " 1", "1_0", "\u0661")
"""What Python or pydantic take for whole numbers, and what the address of nothing is."""


def test_numbers_in_paths_and_queries_are_digits_alone(app: FastAPI, client: Client) -> None:
    for method, path, operation, name in numbers_of_paths(app):
        body = body_of(app, operation) if "requestBody" in operation else None
        for value in ODD if name != "attempt_id" else ():
            answer = client.request(method, path_of(path.replace(f"{{{name}}}", value), 1), json=body)
            assert_problem(answer, "invalid-parameter")
            assert answer.json()["errors"] == [{"parameter": name, "detail": "must be a whole number"}], (path, value)
    queries = 0
    for method, path, operation in operations(app):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            if parameter["in"] == "query" and (integers(schema) or integers(schema.get("items"))):
                queries += 1
                for value in ODD:
                    answer = client.request(method, path_of(path, 1), params={parameter["name"]: value})
                    assert_problem(answer, "invalid-parameter")
                    assert "must be a whole number" in answer.json()["detail"], (path, parameter["name"], value)
    assert queries > 15


def test_numbers_in_topics_and_event_ids(client: Client) -> None:
    for number in NUMBERS:
        unharmed(client, "GET", "/v1/events", params={"topic": f"job:{number}"})
        unharmed(client, "GET", "/v1/events", headers={"Last-Event-ID": str(number)})
        unharmed(client, "GET", "/v1/events", headers={"Last-Event-ID": f"1+{number}"})


def numbers_of(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield from numbers_of(value, (*place, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from numbers_of(value, (*place, index))
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield place


def replaced(document: Any, place: tuple[Any, ...], value: int) -> Any:
    copy = json.loads(json.dumps(document))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return copy


def test_numbers_in_bodies(app: FastAPI, client: Client) -> None:
    seen = 0
    for method, path, operation in operations(app):
        if "requestBody" not in operation:
            continue
        body = body_of(app, operation)
        for place in numbers_of(body):
            for number in NUMBERS:
                seen += 1
                unharmed(client, method, path_of(path, 1), json=replaced(body, place, number))
    assert seen > 100


def test_job_numbers_in_bodies(client: Client) -> None:
    for number in NUMBERS:
        for after in ([number], [{"job": number}]):
            for path in ("/v1/jobs", "/v1/plans"):
                unharmed(client, "POST", path, json=plain_job(after=after))
        unharmed(client, "POST", "/v1/jobs", json=plain_job(array={"indices": [number]}))
        unharmed(client, "POST", "/v1/jobs", json=plain_job(array={"count": 1, "max_running": number}))


EMPTY = {"string": "", "number": 0.0}


def takes_cursor(operation: dict[str, Any]) -> bool:
    return any(parameter["name"] == "after" for parameter in operation.get("parameters", ()))


def test_numbers_in_cursors(app: FastAPI, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor is opaque, but a client can make one."""
    assert (
        client.post("/v1/webhooks", json={"url": "https://example.com/", "events": ["job.failed"]}).status_code == 201
    )
    scopes: list[tuple[str, list[Any]]] = []

    def recorded(_: PageRequest, scope: str, *kinds: Any) -> None:
        scopes.append((scope, [TypeAdapter(kind).json_schema() for kind in kinds]))

    monkeypatch.setattr(PageRequest, "position", recorded)
    named = [path for method, path, operation in operations(app) if method == "GET" and takes_cursor(operation)]
    lists = [path.replace("{webhook_id}", "1") for path in named]
    for path in lists:
        client.get(path_of(path, 1))
    monkeypatch.undo()
    assert len(scopes) == len(lists) > 10
    for path, (scope, kinds) in zip(lists, scopes, strict=True):
        for number in NUMBERS:
            key = tuple(
                number if integers(schema) else EMPTY[schema.get("anyOf", [schema])[0]["type"]] for schema in kinds
            )
            unharmed(client, "GET", path_of(path, 1), params={"after": cursor(scope, key)})
