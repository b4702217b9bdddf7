"""A page that is open while the rights behind its session end: its stream ends, and it leads to the form."""

from collections.abc import Callable, Iterator

import pytest
from fastapi import FastAPI
from httpx import Client

from service.api.browser import COOKIE
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import World, pages_of
from tests.api.helpers import admit, plain_job
from tests.api.people import Person, person
from tests.api.test_events import stream
from tests.api.test_sign_in import HTML, ORIGIN, csrf_of, sign_in


@pytest.fixture
def app(world: World) -> FastAPI:
    world.stopping = False
    return pages_of(world)


@pytest.fixture
def ada(world: World) -> Person:
    return person(world, "ada", Role.SUBMITTER, "vision")


@pytest.fixture
def browser(app: FastAPI, ada: Person) -> Iterator[Client]:
    with client_of(app, None) as client:
        client.headers.update(HTML)
        assert sign_in(client, ada.key).status_code == 303
        yield client


@pytest.fixture
def admin(app: FastAPI, world: World) -> Iterator[Client]:
    with client_of(app, world.token) as client:
        yield client


def session_of(browser: Client) -> str:
    return f"{COOKIE}={browser.cookies[COOKIE]}"


def _revoke(admin: Client, ada: Person) -> None:
    admin.post(f"/v1/keys/{ada.key_id}/revoke").raise_for_status()


def _disable(admin: Client, ada: Person) -> None:
    admin.put("/v1/users/ada", json={"disabled": True}).raise_for_status()


@pytest.mark.parametrize("end", [_revoke, _disable])
def test_a_page_ends_with_the_key_of_its_session(
    app: FastAPI, browser: Client, admin: Client, ada: Person, end: Callable[[Client, Person], None]
) -> None:
    assert browser.get("/jobs").status_code == 200
    cookie = session_of(browser)
    found = stream(app, "", cookie=cookie, until=lambda events, text: False, meanwhile=lambda: end(admin, ada))
    assert found == [], "the stream ended by itself"
    assert browser.get("/jobs").headers["location"] == "./sign-in?next=jobs"
    assert browser.get("/v1/events", headers={"Accept": "text/event-stream"}).status_code == 401
    again = sign_in(browser, ada.key)
    assert again.status_code == 401
    assert "Wrong token" in again.text


def test_a_page_ends_with_the_sign_out_in_another_window(app: FastAPI, browser: Client) -> None:
    token = csrf_of(browser.get("/jobs"))
    cookie = session_of(browser)

    def leave() -> None:
        assert browser.post("/sign-out", data={"csrf": token}, headers=ORIGIN).status_code == 303

    assert stream(app, "", cookie=cookie, until=lambda events, text: False, meanwhile=leave) == []


def test_pages_of_others_stay_open_when_somebody_signs_out(
    app: FastAPI, browser: Client, admin: Client, world: World
) -> None:
    bob = person(world, "bob", Role.VIEWER, "vision")

    def leave_and_submit() -> None:
        with client_of(app, None) as other:
            other.headers.update(HTML)
            sign_in(other, bob.key)
            other.post("/sign-out", data={"csrf": csrf_of(other.get("/jobs"))}, headers=ORIGIN)
        admin.post("/v1/jobs", json=plain_job(user="ada", project="vision", name="later")).raise_for_status()
        admit(world)

    cookie = session_of(browser)
    found = stream(app, "", cookie=cookie, until=lambda events, text: len(events) >= 1, meanwhile=leave_and_submit)
    assert [event["data"]["name"] for event in found] == ["later"]


def test_fewer_projects_show_on_the_next_page(app: FastAPI, browser: Client, admin: Client, world: World) -> None:
    admin.post("/v1/jobs", json=plain_job(user="bob", project="vision", name="bobs-job")).raise_for_status()
    admit(world)
    assert "bobs-job" in browser.get("/jobs").text
    admin.delete("/v1/projects/vision/members/ada").raise_for_status()
    assert "bobs-job" not in browser.get("/jobs").text
