"""The dashboards of two services on one database: any of them serves a session, and the leader answers for the standby."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from httpx import Client

from service.api import forwarding
from service.api.browser import COOKIE, CSRF_HEADER
from service.db.services import Registered, ServiceNow
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import NOW_S, make_world, pages_of
from tests.api.helpers import admit, assert_problem, plain_job
from tests.api.people import person, submitted
from tests.api.test_forwarding import LEADER_URL, Two
from tests.api.test_sign_in import HTML, ORIGIN, csrf_of, sign_in
from tests.api.test_web_pages import Elements


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """A leader and a standby, both with pages. Neither trusts what it has read of a key or a session before."""
    leading = make_world(tmp_path, key_cached_s=0.0)
    leading.host = "a"
    leading.services = [ServiceNow(Registered("a", "a", LEADER_URL, "1", 60.0), True, 0.0, NOW_S, 0.0, False)]
    standing = replace(leading, token="another-token", leads=False, logs={}, host="b")
    leader, standby = pages_of(leading), pages_of(standing, "standby with pages")

    def client(timeout: httpx.Timeout, _: Path | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(leader))

    monkeypatch.setattr(forwarding, "make_client", client)
    yield Two(leading, leader, standing, standby)
    leading.database.close()


@pytest.fixture
def browser(two: Two) -> Iterator[Client]:
    """A browser at the standby."""
    with client_of(two.standby, None) as client:
        client.headers.update(HTML)
        yield client


@pytest.fixture
def beside(two: Two) -> Iterator[Client]:
    """A browser at the leader."""
    with client_of(two.leader, None) as client:
        client.headers.update(HTML)
        yield client


def test_a_session_of_one_is_valid_at_the_other_until_it_ends(two: Two, browser: Client, beside: Client) -> None:
    ada = person(two.leading, "ada", Role.SUBMITTER, "vision")
    sign_in(browser, ada.key)
    beside.cookies.set(COOKIE, browser.cookies[COOKIE])
    page = beside.get("/jobs")
    assert page.status_code == 200
    assert csrf_of(page) == csrf_of(browser.get("/jobs"))
    beside.post("/sign-out", data={"csrf": csrf_of(page)}, headers=ORIGIN)
    assert browser.get("/jobs").headers["location"] == "./sign-in?next=jobs"


def test_a_code_of_one_signs_in_at_the_other_once(two: Two, browser: Client, beside: Client) -> None:
    ada = person(two.leading, "ada", Role.VIEWER, "vision")
    with client_of(two.leader, ada.key) as program:
        code = program.post("/v1/sign-in-codes").json()["code"]
    assert browser.post("/sign-in", data={"code": code}, headers=ORIGIN).status_code == 303
    assert beside.post("/sign-in", data={"code": code}, headers=ORIGIN).status_code == 401


def test_pages_of_a_standby_show_what_the_leader_answers(two: Two, browser: Client, beside: Client) -> None:
    submitted(two.leader, two.leading, plain_job(user="ada", project="vision", name="job-of-ada"))
    submitted(two.leader, two.leading, plain_job(user="bob", project="secret", name="job-of-bob"))
    admit(two.leading)
    ada = person(two.leading, "ada", Role.SUBMITTER, "vision")
    two.leading.held_gpus = 7
    sign_in(browser, ada.key)
    overview, servers, queue = (browser.get(path) for path in ("/", "/cluster", "/queue"))
    assert [page.status_code for page in (overview, servers, queue)] == [200, 200, 200]
    for page in (overview, servers, queue):
        Elements(page.text)
        assert "job-of-bob" not in page.text
    assert "7<span" in overview.text
    assert "led by" in overview.text
    assert servers.text.count('id="server-') == len(two.leading.servers)
    assert "job-of-ada" in queue.text


def test_a_change_at_the_standby_is_made_by_the_leader_in_the_name_of_the_session(two: Two, browser: Client) -> None:
    operator = person(two.leading, "ann", Role.OPERATOR)
    sign_in(browser, operator.key)
    token = csrf_of(browser.get("/jobs"))
    assert_problem(browser.post("/v1/models/train", json={}, headers=ORIGIN), "forbidden")
    answer = browser.post("/v1/models/train", json={}, headers={**ORIGIN, CSRF_HEADER: token})
    assert (answer.status_code, two.leading.trainings) == (202, 1)
    with client_of(two.leader, two.leading.token) as admin:
        newest = admin.get("/v1/audit").json()["items"][0]
    assert (newest["user"], newest["key_id"]) == ("ann", operator.key_id)


@pytest.mark.parametrize("how", ["revoked", "disabled"])
def test_what_ends_a_key_at_one_ends_its_sessions_at_the_other(two: Two, browser: Client, how: str) -> None:
    ada = person(two.leading, "ada", Role.VIEWER, "vision")
    sign_in(browser, ada.key)
    assert browser.get("/jobs").status_code == 200
    with client_of(two.leader, two.leading.token) as admin:
        if how == "revoked":
            admin.post(f"/v1/keys/{ada.key_id}/revoke").raise_for_status()
        else:
            admin.put("/v1/users/ada", json={"disabled": True}).raise_for_status()
    assert browser.get("/jobs").headers["location"] == "./sign-in?next=jobs"
    assert_problem(browser.get("/v1/me", headers={"Accept": "application/json"}), "unauthorized")
    if how == "disabled":
        with client_of(two.leader, two.leading.token) as admin:
            admin.put("/v1/users/ada", json={"disabled": False}).raise_for_status()
        assert browser.get("/jobs").status_code == 200, "the session goes on with the user"
