"""Browsers: signing in and out, what a session opens, how it ends, and that no other page can use it."""

import hashlib
import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from httpx import Client, Response
from sqlalchemy import select

from service.api.authenticate import Authenticator
from service.api.browser import COOKIE, CSRF_HEADER
from service.api.rates import Buckets
from service.db import web_sessions
from service.db.access import revoke_key
from service.db.tables import WEB_SESSIONS
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World, pages_of
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import Person, person

HTML = {"Accept": "text/html,application/xhtml+xml"}
ORIGIN = {"Origin": "http://127.0.0.1:8765"}


@pytest.fixture
def app(world: World) -> FastAPI:
    return pages_of(world)


@pytest.fixture
def browser(app: FastAPI) -> Iterator[Client]:
    with client_of(app, None) as client:
        client.headers.update(HTML)
        yield client


def sign_in(browser: Client, key: str, wanted: str = "") -> Response:
    return browser.post("/sign-in", data={"key": key, "next": wanted}, headers=ORIGIN)


def csrf_of(page: Response) -> str:
    found = re.search(r'name="csrf-token" content="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text
    return found[1]


@pytest.fixture
def ada(world: World) -> Person:
    return person(world, "ada", Role.SUBMITTER, "vision")


def test_a_page_without_a_session_leads_to_the_form_and_back(browser: Client, ada: Person) -> None:
    asked = browser.get("/jobs/12?tab=log")
    assert (asked.status_code, asked.headers["location"]) == (303, "../sign-in?next=jobs%2F12%3Ftab%3Dlog")
    form = browser.get("/sign-in?next=jobs/12%3Ftab%3Dlog")
    assert 'value="jobs/12?tab=log"' in form.text
    answer = sign_in(browser, ada.key, "jobs/12?tab=log")
    assert (answer.status_code, answer.headers["location"]) == (303, "./jobs/12?tab=log")


def test_a_session_opens_what_its_key_opens(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    assert browser.get("/v1/me").json()["user"] == "ada"
    assert_problem(browser.get("/v1/audit"), "forbidden")
    page = browser.get("/jobs")
    assert page.status_code == 200
    assert "ada" in page.text


def test_the_cookie_is_closed_to_scripts_other_sites_and_plain_http(app: FastAPI, ada: Person, browser: Client) -> None:
    cookie = sign_in(browser, ada.key).headers["set-cookie"]
    assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}; HttpOnly; Max-Age=43200; SameSite=strict", cookie)
    with client_of(app, None) as encrypted:
        encrypted.base_url = "https://127.0.0.1:8765"  # type: ignore[assignment]
        answer = encrypted.post("/sign-in", data={"key": ada.key}, headers={"Origin": "https://127.0.0.1:8765"})
        assert answer.headers["set-cookie"].endswith("; Secure")
    # A proxy ends the encryption: the origin is what the browser sees.
    answer = browser.post("/sign-in", data={"key": ada.key}, headers={"Origin": "https://127.0.0.1:8765"})
    assert answer.headers["set-cookie"].endswith("; Secure")


def test_the_key_is_in_no_answer_and_in_no_address(browser: Client, ada: Person) -> None:
    answer = sign_in(browser, ada.key, "jobs")
    assert ada.key not in str(answer.headers)
    assert ada.key not in browser.get("/jobs").text
    wrong = sign_in(browser, "sooner_abcdefghjkmn_" + "x" * 43)
    assert "x" * 43 not in wrong.text


@pytest.mark.parametrize("key", ["", " ", "wrong", "sooner_abcdefghjkmn_" + "x" * 43])
def test_a_wrong_key_opens_nothing(browser: Client, key: str) -> None:
    answer = sign_in(browser, key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text


def test_many_wrong_keys_have_to_wait(browser: Client, app: FastAPI) -> None:
    app.state.failed_logins = Buckets(0.2, 20)
    answers = [sign_in(browser, "sooner_abcdefghjkmn_" + "x" * 43).status_code for _ in range(25)]
    app.state.failed_logins = Buckets(0.2, 1_000_000)
    assert answers[:20] == [401] * 20
    assert set(answers[20:]) == {429}


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "/jobs",
        "https://evil.example",
        "jobs//evil",
        "jobs/../../other-service",
        "jobs/./../x?tab=log",
        "..",
        "../x",
        "\\\\evil",
        "sign-out",
        "jobs\nX: 1",
        "a:b",
    ],
)
def test_the_way_back_leads_nowhere_else(browser: Client, ada: Person, wanted: str) -> None:
    assert sign_in(browser, ada.key, wanted).headers["location"] == "./"


def test_a_change_needs_the_token_of_the_page(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    job = plain_job(project="vision")
    assert_problem(browser.post("/v1/jobs", json=job, headers=ORIGIN), "forbidden")
    assert_problem(browser.post("/v1/jobs", json=job, headers={**ORIGIN, CSRF_HEADER: "0" * 64}), "forbidden")
    assert browser.get("/v1/jobs").json()["items"] == []
    token = csrf_of(browser.get("/jobs"))
    assert browser.post("/v1/jobs", json=job, headers={**ORIGIN, CSRF_HEADER: token}).status_code == 201


def test_another_sites_page_can_do_nothing(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    token = csrf_of(browser.get("/jobs"))
    for origin in ("https://evil.example", "null"):
        headers = {"Origin": origin, CSRF_HEADER: token}
        assert_problem(browser.post("/v1/jobs", json=plain_job(), headers=headers), "origin-not-allowed")
        assert_problem(browser.post("/sign-out", data={"csrf": token}, headers=headers), "origin-not-allowed")
        assert_problem(browser.post("/sign-in", data={"key": ada.key}, headers=headers), "origin-not-allowed")


def test_signing_out_ends_the_session(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    cookie = browser.cookies[COOKIE]
    token = csrf_of(browser.get("/jobs"))
    without = browser.post("/sign-out", data={}, headers=ORIGIN)
    assert without.status_code == 303
    assert browser.get("/v1/me").status_code == 200
    answer = browser.post("/sign-out", data={"csrf": token}, headers=ORIGIN)
    assert answer.headers["location"] == "./sign-in"
    browser.cookies.set(COOKIE, cookie)
    assert_problem(browser.get("/v1/me", headers={"Accept": "application/json"}), "unauthorized")


def test_a_session_ends_by_age(browser: Client, ada: Person, world: World) -> None:
    long_lived = person(world, "eve", Role.VIEWER, expires_at_s=None)
    sign_in(browser, long_lived.key)
    world.now_s = NOW_S + 43_199.0
    assert browser.get("/v1/me").status_code == 200
    world.now_s = NOW_S + 43_200.0
    assert browser.get("/jobs").headers["location"] == "./sign-in?next=jobs"


def test_a_session_ends_with_its_key(browser: Client, ada: Person, world: World, app: FastAPI) -> None:
    sign_in(browser, ada.key)
    world.now_s = NOW_S + 3600.0
    assert browser.get("/v1/me").status_code == 401, "the key has expired"
    other = person(world, "eve", Role.VIEWER)
    world.now_s = NOW_S
    sign_in(browser, other.key)
    with world.database.writing() as session:
        revoke_key(session.connection(), other.key_id, NOW_S)
    app.state.authenticator.forget()
    assert browser.get("/v1/me").status_code == 401


def test_only_digests_are_stored(browser: Client, ada: Person, world: World) -> None:
    sign_in(browser, ada.key)
    with world.database.reading() as session:
        rows = session.connection().execute(select(WEB_SESSIONS)).all()
    assert [row.token_sha256 for row in rows] == [hashlib.sha256(browser.cookies[COOKIE].encode()).hexdigest()]
    assert browser.cookies[COOKIE] not in str(rows)


def test_signing_in_and_out_is_on_record(browser: Client, ada: Person, world: World, app: FastAPI) -> None:
    sign_in(browser, ada.key)
    browser.post("/sign-out", data={"csrf": csrf_of(browser.get("/jobs"))}, headers=ORIGIN)
    with client_of(app, world.token) as admin:
        entries = admin.get("/v1/audit", params={"user": "ada"}).json()["items"]
    assert [(entry["action"], entry["target"]) for entry in entries] == [
        ("POST /sign-out", f"key {ada.key_id}"),
        ("POST /sign-in", f"key {ada.key_id}"),
    ]


def cookies(browser: Client, text: str) -> dict[str, str]:
    """The header of a browser with these cookies alone."""
    browser.cookies.clear()
    return {"Cookie": text}


def test_cookies_of_other_services_do_no_harm(browser: Client, ada: Person) -> None:
    """A browser sends those of all services of a host, the one of the longest path first."""
    sign_in(browser, ada.key)
    mine, other = browser.cookies[COOKIE], "x" * 43
    for text in (
        f'seen={{"a": [1, 2]}}; {COOKIE}={mine}; a[b]=c',
        f"odd; =; {COOKIE}={mine}; {COOKIE}={other}",
        f"{COOKIE}=; {COOKIE}={mine}",
    ):
        assert browser.get("/v1/me", headers=cookies(browser, text)).status_code == 200, text
    assert browser.get("/v1/me", headers=cookies(browser, f"{COOKIE}={other}; {COOKIE}={mine}")).status_code == 401


def test_the_password_of_a_proxy_is_no_token(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    basic = {"Authorization": "Basic YTpi"}
    assert browser.get("/v1/me", headers=basic).json()["user"] == "ada"
    assert_problem(browser.post("/v1/jobs", json=plain_job(), headers={**basic, **ORIGIN}), "forbidden")


def test_a_token_counts_before_a_cookie(browser: Client, ada: Person, world: World) -> None:
    sign_in(browser, ada.key)
    bob = person(world, "bob", Role.VIEWER)
    assert browser.get("/v1/me", headers={"Authorization": f"Bearer {bob.key}"}).json()["user"] == "bob"
    assert browser.get("/v1/me", headers={"Authorization": "Bearer wrong"}).status_code == 401
    both = [("Authorization", f"Bearer {bob.key}"), ("Authorization", "Basic YTpi")]
    assert browser.get("/v1/me", headers=both).status_code == 401


def test_a_session_is_no_bearer_token(browser: Client, ada: Person, app: FastAPI) -> None:
    sign_in(browser, ada.key)
    assert browser.get("/v1/me").status_code == 200, "and so it is cached"
    for token in (browser.cookies[COOKIE], f"session {browser.cookies[COOKIE]}"):
        with client_of(app, token) as program:
            assert program.get("/v1/me").status_code == 401


def test_signing_out_ends_ones_own_streams_alone(browser: Client, ada: Person, app: FastAPI, world: World) -> None:
    sign_in(browser, ada.key)
    authenticator: Authenticator = app.state.authenticator
    mine, other = authenticator.watch(browser.cookies[COOKIE]), authenticator.watch("x" * 43)
    programs = authenticator.watch(None)
    browser.post("/sign-out", data={"csrf": csrf_of(browser.get("/jobs"))}, headers=ORIGIN)
    assert (mine(), other(), programs()) == (True, False, False)
    authenticator.forget()
    assert (other(), programs()) == (True, True)


def test_a_look_up_during_the_sign_out_is_not_trusted(
    browser: Client, ada: Person, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(browser, ada.key)
    door: Authenticator = app.state.authenticator
    real = web_sessions.find_session

    def late(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        door.forget_session(browser.cookies[COOKIE])
        return found

    monkeypatch.setattr("service.api.authenticate.find_session", late)
    assert door.look_up_session(browser.cookies[COOKIE]) is not None
    assert door.known_session(browser.cookies[COOKIE]) is None


def test_the_oldest_sessions_of_a_key_end(
    browser: Client, ada: Person, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_sessions, "OPEN_MAX", 3)
    bob = person(world, "bob", Role.VIEWER)
    sign_in(browser, bob.key)
    made = [browser.cookies[COOKIE]]
    for number in range(5):
        world.now_s = NOW_S + number
        sign_in(browser, ada.key)
        made.append(browser.cookies[COOKIE])
    answers = [browser.get("/v1/me", headers=cookies(browser, f"{COOKIE}={each}")).status_code for each in made]
    assert answers == [200, 401, 401, 200, 200, 200]
    with world.database.reading() as session:
        assert len(session.connection().execute(select(WEB_SESSIONS)).all()) == 4


def test_signing_in_counts_as_a_request_of_the_key(browser: Client, ada: Person, app: FastAPI) -> None:
    app.state.key_requests = Buckets(0.01, 2)
    answers = [sign_in(browser, ada.key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [303, 303, 429]
    assert int(answers[2].headers["retry-after"]) > 0
    assert "requests per second of one key" in answers[2].text
    assert "set-cookie" not in answers[2].headers


def test_a_link_on_another_site_opens_the_page(browser: Client, ada: Person) -> None:
    """The cookie is strict, so the browser leaves it out of that first request and of those it is sent on to."""
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    first = browser.get("/jobs/12?tab=log", headers=elsewhere)
    second = browser.get(f"/{first.headers['location'].removeprefix('../')}", headers=elsewhere)
    found = re.search(r'http-equiv="refresh" content="0; url=\./([^"]+)"', second.text)
    assert found is not None, second.text
    address = f"/{found[1].replace('&amp;', '&')}"
    assert "API key" in browser.get(address, headers=elsewhere).text, "asked once"
    sign_in(browser, ada.key)
    assert browser.get(address).headers["location"] == "./jobs/12?tab=log"
    assert browser.get("/sign-in?next=//evil.example").headers["location"] == "./"


class TestCodes:
    """``sooner dashboard``: a code in the address instead of a key."""

    def test_a_code_signs_one_browser_in_as_its_caller(self, browser: Client, ada: Person, app: FastAPI) -> None:
        with client_of(app, ada.key) as program:
            made = program.post("/v1/sign-in-codes").json()
        assert made["path"] == f"sign-in?code={made['code']}"
        assert "ada" in browser.get(f"/{made['path']}").text
        assert browser.post("/sign-in", data={"code": made["code"]}, headers=ORIGIN).status_code == 303
        assert browser.get("/v1/me").json()["user"] == "ada"
        again = browser.post("/sign-in", data={"code": made["code"]}, headers=ORIGIN)
        assert again.status_code == 401
        assert "expired or was used" in again.text

    def test_looking_at_the_form_uses_no_code(self, browser: Client, ada: Person, app: FastAPI) -> None:
        with client_of(app, ada.key) as program:
            code = program.post("/v1/sign-in-codes").json()["code"]
        for _ in range(3):
            browser.get(f"/sign-in?code={code}")
        assert browser.post("/sign-in", data={"code": code}, headers=ORIGIN).status_code == 303

    def test_it_expires(self, browser: Client, ada: Person, app: FastAPI, world: World) -> None:
        with client_of(app, ada.key) as program:
            code = program.post("/v1/sign-in-codes").json()["code"]
        world.now_s = NOW_S + 60.0
        assert browser.post("/sign-in", data={"code": code}, headers=ORIGIN).status_code == 401
        assert "expired" in browser.get(f"/sign-in?code={code}").text

    def test_it_is_no_session_and_no_token(self, browser: Client, ada: Person, app: FastAPI) -> None:
        with client_of(app, ada.key) as program:
            code = program.post("/v1/sign-in-codes").json()["code"]
        browser.cookies.set(COOKIE, code)
        assert browser.get("/v1/me").status_code == 401
        with client_of(app, code) as bearer:
            assert bearer.get("/v1/me").status_code == 401

    def test_the_local_token_makes_codes_of_its_own(self, browser: Client, app: FastAPI, world: World) -> None:
        with client_of(app, world.token) as program:
            code = program.post("/v1/sign-in-codes").json()["code"]
        browser.post("/sign-in", data={"code": code}, headers=ORIGIN)
        me = browser.get("/v1/me").json()
        assert (me["user"], me["role"]) == (None, "admin")


def test_pages_allow_scripts_and_styles_of_this_service_alone(browser: Client, ada: Person) -> None:
    sign_in(browser, ada.key)
    page = browser.get("/jobs")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*(src=|application/json))|\son\w+=|\sstyle=", page.text)


def test_a_broken_form_opens_nothing(browser: Client, ada: Person) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", **ORIGIN}
    for body in (b"\xff\xfe", b"key=" + b"x" * 20_000, b"&" * 5_000, b"key"):
        assert browser.post("/sign-in", content=body, headers=form).status_code == 401
    assert_problem(browser.post("/sign-in", json={"key": ada.key}, headers=ORIGIN), "unsupported-media-type")
    assert_problem(browser.post("/v1/jobs", data={"name": "x"}, headers=ORIGIN), "unsupported-media-type")
