"""Webhooks over HTTP: adding them, whose they are, what is shown of them and what never is."""

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import func, select

from service.db.tables import AUDIT_LOG, DELIVERIES, IDEMPOTENCY_KEYS, WEBHOOKS
from service.domain.access import Role
from tests.api.conftest import World
from tests.api.helpers import assert_problem
from tests.api.people import client as client_for
from tests.api.people import person

URL = "https://hooks.example.org/sooner"


def add(client: Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/webhooks", json={"url": URL, **body})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/webhooks/{document['id']}"
    return document


def count(world: World, row: Any) -> int:
    with world.database.reading() as session:
        return int(session.connection().execute(select(func.count()).select_from(row)).scalar_one())


def everything(world: World) -> str:
    """All that is kept of requests: answers of keys and the log of changes."""
    with world.database.reading() as session:
        connection = session.connection()
        rows = [*connection.execute(select(IDEMPOTENCY_KEYS)), *connection.execute(select(AUDIT_LOG))]
    return repr(rows)


def test_a_secret_is_shown_once_and_kept_nowhere_else(client: Client, world: World) -> None:
    send = {"json": {"url": URL, "events": ["job.failed", "job.failed"]}, "headers": {"Idempotency-Key": "k"}}
    first, again = client.post("/v1/webhooks", **send), client.post("/v1/webhooks", **send)
    made = first.json()
    assert made["secret"].startswith("whsec_")
    assert again.json() == {**made, "secret": None}
    assert made["events"] == ["job.failed"]
    shown = client.get(f"/v1/webhooks/{made['id']}")
    listed = client.get("/v1/webhooks")
    assert listed.json()["items"] == [shown.json()] == [{key: value for key, value in made.items() if key != "secret"}]
    assert made["secret"] not in shown.text + listed.text + everything(world)
    assert count(world, WEBHOOKS) == 1


def test_the_path_of_a_url_is_kept_out_of_the_log_of_changes_and_of_refusals(
    app: FastAPI, client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Many receivers know their senders by it alone."""
    caplog.set_level(logging.DEBUG, logger="service")
    url = "https://hooks.example.org/T0/s3cr3t?key=s3cr3t"
    answer = client.post("/v1/webhooks", json={"url": url})
    made = answer.json()["id"]
    refused = client.post("/v1/webhooks", json={"url": url.replace("https", "ftp")})
    assert_problem(refused, "invalid-body", ["/url"])
    with client_for(app, person(world, "ada", Role.VIEWER)) as ada:
        answers = [ada.post("/v1/webhooks", json={"url": url}), ada.post(f"/v1/webhooks/{made}/test")]
    assert client.post(f"/v1/webhooks/{made}/test").status_code == 202
    assert client.delete(f"/v1/webhooks/{made}").status_code == 200
    texts = [refused.text, *(each.text for each in answers), client.get("/v1/audit").text, client.get("/metrics").text]
    assert client.get("/v1/audit").json()["items"]
    assert not [text for text in (*texts, caplog.text) if "s3cr3t" in text]


def test_defaults_and_a_secret_of_ones_own(client: Client, world: World) -> None:
    made = add(client, project="nlp", secret="0123456789abcdef")
    assert made["events"] == ["job.succeeded", "job.failed", "job.cancelled"]
    assert (made["user"], made["project"], made["owner"], made["secret"]) == (None, "nlp", None, "0123456789abcdef")
    assert "0123456789abcdef" not in everything(world)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/url"),
        ({"url": "ftp://example.org"}, "/url"),
        ({"url": "https://127.0.0.1/x"}, "/url"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "/url"),
        ({"url": "https://me:pw@example.org/"}, "/url"),
        ({"url": "https://example.org/\r\nX: y"}, "/url"),
        ({"url": "https://example.org/" + "x" * 2048}, "/url"),
        ({"url": URL, "events": []}, "/events"),
        ({"url": URL, "events": ["job.ended"]}, "/events/0"),
        ({"url": URL, "events": ["webhook.test"]}, "/events/0"),
        ({"url": URL, "secret": "short"}, "/secret"),
        ({"url": URL, "secret": "0123456789abcdef\n"}, "/secret"),
        ({"url": URL, "user": ""}, "/user"),
        ({"url": URL, "team": "x"}, "/team"),
    ],
)
def test_what_breaks_a_rule_is_pointed_to(client: Client, world: World, body: dict[str, Any], pointer: str) -> None:
    assert_problem(client.post("/v1/webhooks", json=body), "invalid-body", [pointer])
    assert count(world, WEBHOOKS) == 0


def test_inner_addresses_are_a_setting(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "webhook_private_addresses", True)
    assert add(client, url="http://127.0.0.1:9/x")["url"] == "http://127.0.0.1:9/x"


def test_there_is_a_limit_with_a_name(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "webhooks_max", 2)
    add(client)
    add(client)
    answer = client.post("/v1/webhooks", json={"url": URL})
    assert "webhooks_max" in assert_problem(answer, "conflict")["detail"]


def test_a_test_waits_in_the_outbox_and_goes_with_its_webhook(client: Client, world: World) -> None:
    number = add(client)["id"]
    answer = client.post(f"/v1/webhooks/{number}/test")
    assert answer.status_code == 202
    told = answer.json()
    assert (told["event"], told["state"], told["attempts"], told["event_id"]) == ("webhook.test", "pending", 0, None)
    client.post(f"/v1/webhooks/{number}/test", headers={"Idempotency-Key": "k"})
    client.post(f"/v1/webhooks/{number}/test", headers={"Idempotency-Key": "k"})
    page = client.get(f"/v1/webhooks/{number}/deliveries", params={"limit": 1}).json()
    rest = client.get(f"/v1/webhooks/{number}/deliveries", params={"limit": 1, "after": page["next"]}).json()
    assert [each["id"] for each in page["items"] + rest["items"]] == [told["id"] + 1, told["id"]]
    assert rest["next"] is None
    assert client.delete(f"/v1/webhooks/{number}").json()["url"] == URL
    assert (count(world, WEBHOOKS), count(world, DELIVERIES)) == (0, 0)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        assert_problem(client.request(method, f"/v1/webhooks/{number}{path}"), "not-found")


def test_others_see_their_own_webhooks_which_tell_of_their_own_jobs(app: FastAPI, world: World, client: Client) -> None:
    ann = client_for(app, person(world, "ann", Role.SUBMITTER, "nlp"))
    ben = client_for(app, person(world, "ben", Role.SUBMITTER, "nlp"))
    oscar = client_for(app, person(world, "oscar", Role.OPERATOR))
    of_ann = add(ann)
    assert (of_ann["owner"], of_ann["user"]) == ("ann", "ann")
    assert add(ann, user="ann")["user"] == "ann"
    refused = ann.post("/v1/webhooks", json={"url": URL, "user": "ben"})
    assert_problem(refused, "forbidden", ["/user"])
    of_all = add(oscar)
    assert (of_all["owner"], of_all["user"]) == ("oscar", None)
    assert ben.get("/v1/webhooks").json()["items"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        assert_problem(ben.request(method, f"/v1/webhooks/{of_ann['id']}{path}"), "not-found")
    for seeing_all in (oscar, client):
        assert len(seeing_all.get("/v1/webhooks").json()["items"]) == 3
    assert oscar.delete(f"/v1/webhooks/{of_ann['id']}").status_code == 200
    vera = client_for(app, person(world, "vera", Role.VIEWER, "nlp"))
    assert_problem(vera.get("/v1/webhooks"), "forbidden")
