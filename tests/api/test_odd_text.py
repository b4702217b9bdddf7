"""Texts and numbers that one database takes and another does not are refused, or taken, by all: never a failure."""

import json
from typing import Any

import pytest
from httpx import Client

from tests.api.helpers import plain_job

ODD = ["a\u0000b", "\ud800", "\udfff x", "\u2028", "\U0010ffff", "\u202e", "'; DROP TABLE jobs; --", "\\u0000", "%00"]


def _bodies(text: str) -> list[dict[str, Any]]:
    return [
        plain_job(name=text),
        plain_job(user=text),
        plain_job(project=text),
        plain_job(command=["x", text]),
        plain_job(env={"X": text}),
        plain_job(env={text: "x"}),
        plain_job(labels={"x": text}),
        plain_job(labels={text: "x"}),
    ]


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_texts_of_a_job(client: Client, text: str) -> None:
    for body in _bodies(text):
        answer = client.post("/v1/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert answer.status_code in (201, 400, 422), (body, answer.text)
        if answer.status_code == 201:
            shown = client.get(f"/v1/jobs/{answer.json()['id']}")
            assert shown.status_code == 200


@pytest.mark.parametrize("text", ["%00", "a%00b", "%ED%A0%80", "%FF", "%F4%8F%BF%BF"])
def test_odd_texts_of_a_query(client: Client, text: str) -> None:
    for path in (
        f"/v1/jobs?user={text}",
        f"/v1/jobs?project={text}",
        f"/v1/jobs?name={text}",
        f"/v1/jobs?after={text}",
        f"/v1/models/{text}",
        f"/v1/jobs/{text}",
        f"/v1/cluster/servers/{text}/drain",
    ):
        assert client.get(path).status_code < 500, path


def test_odd_idempotency_keys(client: Client) -> None:
    for key in ("a\u00ff", "k" * 255, "k" * 256):
        answer = client.post("/v1/jobs", json=plain_job(), headers={"Idempotency-Key": key.encode("latin-1")})
        assert answer.status_code in (201, 422)


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -1, 0])
def test_odd_numbers(client: Client, number: int) -> None:
    for path in (
        f"/v1/jobs/{number}",
        f"/v1/cycles/{number}",
        f"/v1/jobs?array={number}",
        f"/v1/predictions?job={number}",
    ):
        assert client.get(path).status_code < 500, path
    for change in (
        {"priority": number},
        {"after": [number]},
        {"gpus": number},
        {"walltime_s": number},
        {"retries": number},
    ):
        assert client.post("/v1/jobs", json=plain_job(**change)).status_code < 500, change
