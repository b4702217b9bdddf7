"""What the list of jobs finds, and where the JSON links of pages lead."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urljoin

import pytest
from fastapi import FastAPI
from httpx import Client

from service.domain.forecast_scores import Milestone
from tests.api.conftest import World, pages_of
from tests.api.helpers import admit, plain_job
from tests.api.people import submitted
from tests.api.test_web_pages import browser_of
from tests.api.timelines import forecast


@pytest.fixture
def app(world: World) -> FastAPI:
    return pages_of(world)


@pytest.fixture
def jobs(app: FastAPI, world: World) -> list[int]:
    users = (("ada", "vision"), ("bob", "secret"), ("ada", "vision"))
    found = submitted(app, world, *(plain_job(user=user, project=project) for user, project in users))
    admit(world)
    return found


@pytest.fixture
def admin(app: FastAPI, world: World) -> Iterator[Client]:
    with browser_of(app, world.token) as browser:
        yield browser


def listed(browser: Client, address: str) -> list[int]:
    """The jobs in the table of a page, in its order."""
    return [int(number) for number in re.findall(r'<tr id="job-(\d+)"', browser.get(address).text)]


def json_link(page: str) -> str:
    """Where the link "This page as JSON" leads."""
    (address,) = re.findall('data-json href="(.*?)"', page)
    return unescape(address)


def test_a_job_whose_name_is_a_number_is_found_below_the_job_of_that_number(
    admin: Client, app: FastAPI, world: World, jobs: list[int]
) -> None:
    (named,) = submitted(app, world, plain_job(name=str(jobs[1])))
    assert listed(admin, f"/jobs?name={jobs[1]}") == [jobs[1], named]
    (named_as_itself,) = submitted(app, world, plain_job(name=str(named + 1)))
    assert listed(admin, f"/jobs?name={named_as_itself}") == [named_as_itself], "once"


@pytest.mark.parametrize("other", ["state=running", "user=bob", "project=none"])
def test_a_number_in_the_search_finds_no_job_that_the_other_filters_exclude(
    admin: Client, jobs: list[int], other: str
) -> None:
    assert listed(admin, f"/jobs?name={jobs[0]}&{other}") == []


def test_the_json_link_of_a_page_leads_to_what_it_shows(world: World, jobs: list[int]) -> None:
    world.settings = world.settings.model_copy(update={"page_size_max": 1, "page_size_default": 1})
    with browser_of(pages_of(world), world.token) as browser:
        (next_page,) = re.findall('rel="next" href="(.*?)"', browser.get("/jobs?user=ada").text)
        (next_queued,) = re.findall('rel="next" href="(.*?)"', browser.get("/queue").text)
        for path in (unescape(next_page), unescape(next_queued)):
            page = browser.get(urljoin("/", path))
            document = browser.get(urljoin("/", json_link(page.text))).json()
            shown = [job["id"] if "id" in job else job["job_id"] for job in document["items"]]
            assert shown == [int(number) for number in re.findall(r'<tr id="[a-z]+-(\d+)"', page.text)], path
        period = "/usage?group=day&from=2025-12-30&to=2025-12-31"
        usage = browser.get(urljoin("/", json_link(browser.get(period).text))).json()
    assert (usage["group"], usage["first_day"], usage["last_day"]) == (["day"], "2025-12-30", "2025-12-31")


def test_an_expected_time_that_has_passed_is_overdue(admin: Client, world: World, jobs: list[int]) -> None:
    late, ahead = jobs[:2]
    for milestone in Milestone:
        forecast(world, late, -60.0, -30.0, 90.0, milestone=milestone)
        forecast(world, ahead, 60.0, 90.0, 120.0, milestone=milestone)
    for address, count in (("/jobs", 1), ("/queue", 2), ("/", 1), (f"/jobs/{late}", 1), (f"/jobs/{ahead}", 0)):
        page = admin.get(address).text
        assert page.count(">overdue</span>") == count, address
        assert page.count("It was expected at 2025-12-31T23:59:30Z") == count, address
    assert "as of 20" in admin.get(f"/jobs/{late}").text
