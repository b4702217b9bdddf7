"""API keys: made, used, narrowed, expired, revoked; users and projects; and nothing of their secrets anywhere."""

from pathlib import Path

import pytest
from fastapi import FastAPI
from httpx import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from service.api.app import create_app
from service.api.authenticate import Authenticator
from service.client.noun import segment
from service.db import access
from service.db.tables import METADATA
from service.domain.access import Identity, Role
from service.domain.api_key import KEY_PREFIX, key_id, new_key, opens
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World, make_world
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person


def test_a_key_opens_and_is_told_once(app: FastAPI, client: Client, world: World) -> None:
    made = client.post("/v1/keys", json={"user": "ada", "role": "submitter", "projects": ["nlp"], "note": "laptop"})
    assert made.status_code == 201, made.text
    document = made.json()
    text = document.pop("key")
    assert text.startswith(f"{KEY_PREFIX}{document['id']}_")
    assert document == {
        "id": document["id"], "user": "ada", "role": "submitter", "projects": ["nlp"], "note": "laptop",
        "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-04-01T00:00:00Z", "revoked_at": None,
        "last_used_at": None,
    }  # fmt: skip
    with client_of(app, text) as ada:
        assert ada.get("/v1/me").json() == {
            "user": "ada", "role": "submitter", "projects": ["nlp"], "key_id": document["id"],
            "expires_at": "2026-04-01T00:00:00Z",
        }  # fmt: skip
    listed = client.get("/v1/keys").json()["items"]
    assert listed == [document | {"last_used_at": "2026-01-01T00:00:00Z"}]
    assert client.get("/v1/users").json()["items"] == [
        {"name": "ada", "projects": ["nlp"], "created_at": "2026-01-01T00:00:00Z", "disabled_at": None}
    ]
    assert client.get("/v1/projects").json()["items"] == [{"name": "nlp", "members": ["ada"]}]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_the_secret_is_nowhere_in_the_database(client: Client, world: World) -> None:
    """Also not in the answer that is kept for a repeated request, nor in the log of changes."""
    headers = {"Idempotency-Key": "make-adas-key"}
    body = {"user": "ada", "role": "viewer"}
    first = client.post("/v1/keys", json=body, headers=headers).json()
    again = client.post("/v1/keys", json=body, headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first | {"key": None}
    secret = first["key"].removeprefix(f"{KEY_PREFIX}{first['id']}_")
    with world.database.reading() as session:
        rows = [session.connection().execute(select(rows)).all() for rows in METADATA.sorted_tables]
    dump = repr(rows)
    assert first["id"] in dump
    assert secret not in dump
    assert secret not in client.get("/v1/audit").text


def test_the_local_token_is_nobody_in_particular(client: Client) -> None:
    assert client.get("/v1/me").json() == {
        "user": None, "role": "admin", "projects": None, "key_id": None, "expires_at": None,
    }  # fmt: skip


def test_the_local_token_can_be_turned_off(tmp_path: Path) -> None:
    world = make_world(tmp_path, local_token=False)
    app = create_app(world.dependencies())
    admin = person(world, "root", Role.ADMIN)
    with client_of(app, world.token) as local, client_for(app, admin) as keyed:
        assert_problem(local.get("/v1/jobs"), "unauthorized")
        assert keyed.get("/v1/jobs").status_code == 200
    world.database.close()


def test_a_key_ends_by_itself(app: FastAPI, world: World) -> None:
    with client_for(app, person(world, "ada", Role.VIEWER, expires_at_s=NOW_S + 60.0)) as ada:
        assert ada.get("/v1/me").status_code == 200
        world.now_s = NOW_S + 59.9
        assert ada.get("/v1/me").status_code == 200
        world.now_s = NOW_S + 60.0
        assert_problem(ada.get("/v1/me"), "unauthorized")


def test_a_revoked_key_opens_nothing_from_the_next_request_on(app: FastAPI, client: Client, world: World) -> None:
    ada = person(world, "ada", Role.VIEWER)
    with client_for(app, ada) as hers:
        assert hers.get("/v1/me").status_code == 200
        world.now_s += 5.0
        revoked = client.post(f"/v1/keys/{ada.key_id}/revoke").json()
        assert revoked["revoked_at"] == "2026-01-01T00:00:05Z"
        assert_problem(hers.get("/v1/me"), "unauthorized")
    world.now_s += 5.0
    assert client.post(f"/v1/keys/{ada.key_id}/revoke").json() == revoked, "it stays revoked since then"
    assert_problem(client.post("/v1/keys/nothing/revoke"), "not-found")


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR])
def test_everybody_sees_and_revokes_his_own_keys_alone(app: FastAPI, client: Client, world: World, role: Role) -> None:
    ada, lost, bob = person(world, "ada", role), person(world, "ada", role), person(world, "bob", role)
    with client_for(app, ada) as hers:
        for query in ("", "?user=ada"):
            assert {key["id"] for key in hers.get(f"/v1/keys{query}").json()["items"]} == {ada.key_id, lost.key_id}
        assert hers.get("/v1/keys?user=bob").json() == {"items": [], "next": None}
        other = assert_problem(hers.post(f"/v1/keys/{bob.key_id}/revoke"), "not-found")["detail"]
        nowhere = assert_problem(hers.post("/v1/keys/nothing/revoke"), "not-found")["detail"]
        assert other.replace(bob.key_id, "nothing") == nowhere
        assert hers.post(f"/v1/keys/{lost.key_id}/revoke").status_code == 200
        assert hers.post(f"/v1/keys/{ada.key_id}/revoke").status_code == 200, "also the one in use"
        assert_problem(hers.get("/v1/me"), "unauthorized")
    with client_for(app, bob) as his:
        assert his.get("/v1/me").status_code == 200


def test_a_disabled_user_comes_back_with_the_same_keys(app: FastAPI, client: Client, world: World) -> None:
    with client_for(app, person(world, "ada", Role.VIEWER)) as ada:
        assert ada.get("/v1/me").status_code == 200
        assert client.put("/v1/users/ada", json={"disabled": True}).json()["disabled_at"] == "2026-01-01T00:00:00Z"
        assert_problem(ada.get("/v1/me"), "unauthorized")
        assert client.put("/v1/users/ada", json={"disabled": False}).json()["disabled_at"] is None
        assert ada.get("/v1/me").status_code == 200


def test_adding_a_user_again_does_not_enable_the_user(app: FastAPI, client: Client, world: World) -> None:
    assert client.put("/v1/users/bob", json={}).json()["disabled_at"] is None
    with client_for(app, person(world, "ada", Role.VIEWER)) as ada:
        client.put("/v1/users/ada", json={"disabled": True}).raise_for_status()
        for body in ({}, {"disabled": None}):
            assert client.put("/v1/users/ada", json=body).json()["disabled_at"] == "2026-01-01T00:00:00Z"
        assert_problem(ada.get("/v1/me"), "unauthorized")


def test_a_disabled_user_gets_no_key_that_would_be_refused(client: Client) -> None:
    client.put("/v1/users/zed", json={"disabled": True}).raise_for_status()
    refused = assert_problem(
        client.post("/v1/keys", json={"user": "zed", "role": "viewer", "projects": ["nlp"]}), "conflict"
    )
    assert refused["detail"] == "User 'zed' is disabled: a new key would be refused. Enable the user first."
    assert client.get("/v1/keys").json()["items"] == [] and client.get("/v1/projects").json()["items"] == []
    client.put("/v1/users/zed", json={"disabled": False}).raise_for_status()
    assert client.post("/v1/keys", json={"user": "zed", "role": "viewer"}).status_code == 201


def test_memberships_come_and_go_at_once(app: FastAPI, client: Client, world: World) -> None:
    with client_for(app, person(world, "ada", Role.VIEWER)) as ada:
        assert ada.get("/v1/me").json()["projects"] == []
        for _ in range(2):
            assert client.put("/v1/projects/nlp/members/ada").json() == {
                "project": "nlp",
                "user": "ada",
                "member": True,
            }
        assert ada.get("/v1/me").json()["projects"] == ["nlp"]
        assert client.delete("/v1/projects/nlp/members/ada").json()["member"] is False
        assert ada.get("/v1/me").json()["projects"] == []
    assert_problem(client.delete("/v1/projects/nlp/members/ada"), "not-found")
    assert_problem(client.put("/v1/projects/nlp/members/nobody"), "not-found")


def test_a_narrowed_key_loses_a_project_with_its_user(app: FastAPI, client: Client, world: World) -> None:
    narrow = person(world, "ada", Role.VIEWER, "nlp", "vision", only=("nlp",))
    with client_for(app, narrow) as ada:
        assert ada.get("/v1/me").json()["projects"] == ["nlp"]
        client.delete("/v1/projects/nlp/members/ada")
        assert ada.get("/v1/me").json()["projects"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"expires_in_s": 366 * 86_400.0 + 1}, "/expires_in_s"),
        ({"expires_in_s": 0}, "/expires_in_s"),
        ({"expires_in_s": 0.999}, "/expires_in_s"),
        ({"role": "operator", "projects": ["nlp"]}, "/projects"),
        ({"role": "admin", "projects": ["nlp"]}, "/projects"),
        ({"role": "root"}, "/role"),
        ({"user": ""}, "/user"),
        ({"user": "a/b"}, "/user"),
        ({"user": "."}, "/user"),
        ({"projects": [".."]}, "/projects/0"),
        ({"projects": ["nlp/"]}, "/projects/0"),
        ({"projects": []}, "/projects"),
        ({"secret": "x"}, "/secret"),
    ],
)
def test_keys_that_cannot_be(client: Client, change: dict[str, object], pointer: str) -> None:
    answer = client.post("/v1/keys", json={"user": "ada", "role": "viewer", **change})
    assert_problem(answer, "invalid-body", [pointer])
    assert client.get("/v1/keys").json()["items"] == []


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_path_can_hold_are_refused(client: Client, name: str) -> None:
    refusal = assert_problem(client.put(f"/v1/users/{segment(name)}", json={}), "invalid-parameter")
    message = "must not have slashes or control characters, and must not be '.' or '..'"
    assert refusal["errors"] == [{"parameter": "user", "detail": message}]


@pytest.mark.parametrize("name", ["/nlp", "nlp/", "team//nlp", "team/..", "./nlp"])
def test_each_part_of_a_projects_name_must_be_a_name(client: Client, name: str) -> None:
    client.put("/v1/users/ada", json={})
    refusal = assert_problem(client.put(f"/v1/projects/{segment(name)}/members/ada"), "invalid-parameter")
    message = "must not have control characters, and no part between its slashes may be empty, '.' or '..'"
    assert refusal["errors"] == [{"parameter": "project", "detail": message}]


@pytest.mark.parametrize("project", ["team/nlp", "a/b/c", "a/members/b"])
def test_projects_may_be_named_like_folders(client: Client, project: str) -> None:
    client.put("/v1/users/ada", json={})
    path = f"/v1/projects/{segment(project)}/members/ada"
    assert client.put(path).json() == {"project": project, "user": "ada", "member": True}
    assert client.get("/v1/projects").json()["items"] == [{"name": project, "members": ["ada"]}]
    assert client.delete(path).json()["member"] is False
    made = client.post("/v1/keys", json={"user": "ada", "role": "submitter", "projects": [project]})
    assert made.json()["projects"] == [project]


def test_a_user_with_a_slash_is_refused_with_the_reason(client: Client) -> None:
    message = "must not have slashes or control characters, and must not be '.' or '..'"
    for path in ("/v1/users/a%2Fb", "/v1/users/a%0Ab", "/v1/projects/nlp/members/a%2Fb"):
        refusal = assert_problem(client.put(path, json={}), "invalid-parameter")
        assert refusal["errors"] == [{"parameter": "user", "detail": message}]


@pytest.mark.parametrize("name", ["...", "..a", ".a", "a.", "a..b", "ü ö", "DOMAIN\\ada"])
def test_other_names_are_taken_by_every_route(client: Client, name: str) -> None:
    assert client.put(f"/v1/users/{segment(name)}", json={}).json()["name"] == name
    assert client.put(f"/v1/projects/{segment(name)}/members/{segment(name)}").json()["project"] == name
    assert client.post("/v1/jobs", json=plain_job(user=name, project=name)).status_code == 201


def test_a_key_may_live_as_long_as_the_setting_says(client: Client) -> None:
    body = {"user": "ada", "role": "viewer", "expires_in_s": 366 * 86_400.0}
    assert client.post("/v1/keys", json=body).json()["expires_at"] == "2027-01-02T00:00:00Z"


def test_a_key_that_would_expire_before_it_arrives_is_refused(client: Client) -> None:
    body = {"user": "ada", "role": "viewer", "expires_in_s": 0.0001}
    problem = assert_problem(client.post("/v1/keys", json=body), "invalid-body")
    assert problem["errors"] == [{"pointer": "/expires_in_s", "detail": "must be at least 1 (got 0.0001)"}]
    assert client.post("/v1/keys", json=body | {"expires_in_s": 1}).status_code == 201


def test_a_life_that_is_too_long_is_told_with_all_its_digits(client: Client) -> None:
    body = {"user": "ada", "role": "viewer", "expires_in_s": 366 * 86_400.0 + 1}
    problem = assert_problem(client.post("/v1/keys", json=body), "invalid-body")
    expected = "must be at most 31622400, the setting key_lifetime_s_max (got 31622401)"
    assert problem["errors"] == [{"pointer": "/expires_in_s", "detail": expected}]


def test_no_key_lives_longer_than_the_longest_life(tmp_path: Path) -> None:
    world = make_world(tmp_path, key_lifetime_s=7200.0, key_lifetime_s_max=3600.0)
    with client_of(create_app(world.dependencies()), world.token) as client:
        made = client.post("/v1/keys", json={"user": "ada", "role": "viewer"}).json()
    assert made["expires_at"] == "2026-01-01T01:00:00Z"
    world.database.close()


def test_lists_come_in_pages(client: Client, world: World) -> None:
    for name in ("ada", "bob", "eve"):
        person(world, name, Role.VIEWER, f"of-{name}")
    for path, key in (("/v1/keys", "id"), ("/v1/users", "name"), ("/v1/projects", "name")):
        whole = [item[key] for item in client.get(path).json()["items"]]
        assert len(whole) == 3
        found: list[str] = []
        after = None
        while len(found) < 3:
            page = client.get(path, params={"limit": 1} | ({"after": after} if after else {})).json()
            found += [item[key] for item in page["items"]]
            after = page["next"]
        assert (found, after) == (whole, None)
    assert [item["user"] for item in client.get("/v1/keys?user=bob").json()["items"]] == ["bob"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"sooner_[a-z2-9]{12}_[A-Za-z0-9_-]{43}", fullmatch=True))
def test_no_text_but_the_key_itself_opens(text: str) -> None:
    key = new_key()
    assert not opens(text, key.secret_sha256)
    found = key_id(text)
    assert found is None or f"{KEY_PREFIX}{found}_" in text


def test_a_key_opens_with_its_own_secret_alone() -> None:
    key, other = new_key(), new_key()
    assert opens(key.text, key.secret_sha256)
    assert key_id(key.text) == key.id
    assert not opens(key.text, other.secret_sha256)
    assert not opens(key.text[:-1], key.secret_sha256)
    assert not opens(key.text + "A", key.secret_sha256)


class Ticking:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_key_is_trusted_for_some_seconds_and_then_looked_up_again(world: World) -> None:
    """What another server revokes is revoked here when those seconds are over."""
    clock = Ticking()
    door = Authenticator(world.database, world.settings, world.token, lambda: NOW_S, clock)
    ada = person(world, "ada", Role.VIEWER)
    assert door.known(ada.key) is None
    assert not door.was_good(ada.key)
    identity = Identity("ada", Role.VIEWER, frozenset({""}), ada.key_id)
    assert door.look_up(ada.key) == identity
    with world.database.writing() as session:
        access.revoke_key(session.connection(), ada.key_id, NOW_S)
    clock.now_s += 4.9
    assert door.known(ada.key) == identity
    clock.now_s += 0.1
    assert door.known(ada.key) is None
    assert door.was_good(ada.key)
    assert door.look_up(ada.key) is None
    assert not door.was_good(ada.key)


def test_a_look_that_was_under_way_when_rights_changed_is_not_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Authenticator(world.database, world.settings, world.token, lambda: NOW_S)
    ada = person(world, "ada", Role.VIEWER)
    real = access.stored_key

    def late(connection: object, key: str) -> object:
        found = real(connection, key)  # type: ignore[arg-type]
        door.forget()
        return found

    monkeypatch.setattr("service.api.authenticate.stored_key", late)
    assert door.look_up(ada.key) is not None
    assert door.known(ada.key) is None


def test_a_key_for_one_project_submits_to_it_without_naming_it(app: FastAPI, world: World) -> None:
    body = {"name": "a", "command": ["true"], "gpus": 1}
    with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp", "vision", only=("nlp",))) as ada:
        assert ada.post("/v1/jobs", json=body).json()["project"] == "nlp"
        assert ada.post("/v1/jobs", json=body | {"project": "nlp"}).json()["project"] == "nlp"
        assert_problem(ada.post("/v1/jobs", json=body | {"project": "vision"}), "forbidden")
    both = person(world, "ben", Role.SUBMITTER, "nlp", "vision", only=("nlp", "vision"))
    with client_for(app, both) as ben:
        assert_problem(ben.post("/v1/jobs", json=body), "forbidden")


def test_a_wrong_token_is_told_from_a_missing_one(app: FastAPI) -> None:
    with client_of(app, "wrong") as wrong:
        problem = assert_problem(wrong.get("/v1/jobs"), "unauthorized")
    assert problem["detail"].startswith("Wrong token")
    with client_of(app, None) as missing:
        problem = assert_problem(missing.get("/v1/jobs"), "unauthorized")
    assert problem["detail"].startswith("Send 'Authorization: Bearer TOKEN'")
