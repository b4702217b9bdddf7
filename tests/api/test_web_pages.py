"""Pages: what they show of the API, to whom, and that no text of a user becomes anything but text."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import insert, update

from policies.lifecycle import JobState
from policies.model.cluster import Server
from policies.model.ids import AttemptId, JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation, Reason
from service.api.browser import CSRF_HEADER
from service.db.codec import encode
from service.db.limits import StoredLimit, store_limit
from service.db.progress import ProgressPoint, record_progress
from service.db.tables import ATTEMPTS, JOBS, SIMULATIONS
from service.domain.access import Role
from service.engine.limits import LimitOwner, OwnerLimit, Scope
from service.web.app import COMPRESSED_FROM, PAGES
from service.web.pages import cluster
from service.web.pages.cluster import fragments
from service.web.pages.predictions import error_of
from tests.api.client import client_of
from tests.api.conftest import World, pages_of
from tests.api.helpers import admit, plain_job
from tests.api.people import person, submitted
from tests.api.test_predictions import end, said, submit, take_in
from tests.api.test_sign_in import HTML, ORIGIN, csrf_of, sign_in
from tests.api.timelines import with_servers

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{ 7*7 }}\N{ZERO WIDTH SPACE}"
VOID = {"meta", "link", "input", "img", "br", "hr", "path", "rect", "line", "circle"}


class Elements(HTMLParser):
    """The tags, ids and links of a page. Fails for a tag that is not closed, and for an id that is given twice."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.shown: list[str] = []
        self.feed(page)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids)), sorted(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name, value)
            assert name != "style", (tag, value)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src") and value is not None:
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        if tag == "p" and self.open[-1] != "p":
            return
        assert self.open, f"</{tag}> closes nothing"
        last = self.open.pop()
        assert last == tag, f"</{tag}> closes <{last}> at {self.getpos()}"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


@pytest.fixture
def app(world: World) -> FastAPI:
    return pages_of(world)


@pytest.fixture
def jobs(app: FastAPI, world: World) -> list[int]:
    found = submitted(
        app,
        world,
        plain_job(user="ada", project="vision", name=HOSTILE),
        plain_job(user="bob", project="secret", name="bobs-job"),
        plain_job(user="ada", project="vision", name="held", hold=True),
    )
    admit(world)
    return found


@contextmanager
def browser_of(app: FastAPI, key: str) -> Iterator[Client]:
    with client_of(app, None) as browser:
        browser.headers.update(HTML)
        assert sign_in(browser, key).status_code == 303
        yield browser


@pytest.fixture
def admin(app: FastAPI, world: World) -> Iterator[Client]:
    with browser_of(app, world.token) as browser:
        yield browser


def addresses(jobs: list[int]) -> list[str]:
    plain = [page.path for page in PAGES if "{" not in page.path]
    return [
        *plain,
        *(f"/jobs/{job}" for job in jobs),
        "/jobs?state=queued",
        f"/submit?again={jobs[0]}",
        "/usage?group=day",
    ]


def test_every_page_is_whole_and_its_json_answers(admin: Client, jobs: list[int]) -> None:
    for address in addresses(jobs):
        answer = admin.get(address)
        assert answer.status_code in (200, 503 if address == "/queue" else 200), (address, answer.text)
        elements = Elements(answer.text)
        assert {"main", "nav", "h1"} <= elements.tags, address
        document = re.search(r'data-json href="([^"]+)"', answer.text)
        if answer.status_code == 200:
            assert document is not None, address
            path = urljoin(address, document[1].replace("&amp;", "&"))
            assert admin.get(path).status_code == 200, (address, path)


def test_every_link_leads_to_an_answer(admin: Client, jobs: list[int]) -> None:
    seen = set()
    for address in addresses(jobs):
        for link in Elements(admin.get(address).text).links:
            assert not link.startswith(("/", "http", "javascript")), (
                "links are relative, so that a proxy may add a path"
            )
            path = urljoin(address, link).partition("#")[0]
            if path in seen or path.startswith(("/static/", "/docs", "/api")):
                continue
            seen.add(path)
            assert admin.get(path).status_code in (200, 503), (address, link)
    assert f"/jobs/{jobs[0]}" in seen


def test_text_of_users_is_shown_as_text(admin: Client, jobs: list[int]) -> None:
    for address in addresses(jobs):
        page = admin.get(address).text
        elements = Elements(page)
        assert "img" not in elements.tags, address
        assert "49" not in "".join(elements.shown) or HOSTILE not in page
        if not address.startswith("/submit"):
            assert "\N{ZERO WIDTH SPACE}" not in page, address
    page = admin.get(f"/jobs/{jobs[0]}").text
    assert "".join(Elements(page).shown).count("<img src=x onerror=alert(1)>") >= 1


def test_a_member_sees_its_projects_alone(app: FastAPI, world: World, jobs: list[int]) -> None:
    ada = person(world, "ada", Role.SUBMITTER, "vision")
    with browser_of(app, ada.key) as browser:
        listed = browser.get("/jobs").text
        assert "bobs-job" not in listed
        assert "held" in listed
        missing = browser.get(f"/jobs/{jobs[1]}")
        assert missing.status_code == 404
        assert "There is no job" in missing.text
        Elements(missing.text)


def test_actions_are_offered_to_those_who_may(app: FastAPI, world: World, jobs: list[int]) -> None:
    viewer = person(world, "eve", Role.VIEWER, "vision")
    owner = person(world, "ada", Role.SUBMITTER, "vision")
    with browser_of(app, viewer.key) as browser:
        assert "data-action" not in browser.get(f"/jobs/{jobs[0]}").text
        assert 'href="../submit' not in browser.get(f"/jobs/{jobs[0]}").text
        assert "data-action" not in browser.get("/cluster").text
        assert "Audit" not in browser.get("/admin").text
    with browser_of(app, owner.key) as browser:
        page = browser.get(f"/jobs/{jobs[0]}").text
        assert f'data-action="POST v1/jobs/{jobs[0]}/cancel"' in page
        assert f'data-action="POST v1/jobs/{jobs[2]}/release"' in browser.get(f"/jobs/{jobs[2]}").text


def test_a_number_in_the_search_is_a_name_too_and_hides_no_filter(
    app: FastAPI, world: World, admin: Client, jobs: list[int]
) -> None:
    [named] = submitted(app, world, plain_job(user="ada", project="vision", name=str(jobs[1])))
    page = admin.get(f"/jobs?name={jobs[1]}").text
    assert page.index(f'id="job-{jobs[1]}"') < page.index(f'id="job-{named}"')
    page = admin.get(f"/jobs?name={jobs[1]}&user=ada").text
    assert f'id="job-{named}"' in page
    assert f'id="job-{jobs[1]}"' not in page


def test_a_state_that_does_not_exist_is_an_error_and_not_ignored(admin: Client, jobs: list[int]) -> None:
    answer = admin.get("/jobs?state=runing")
    assert answer.status_code == 422
    assert f'id="job-{jobs[0]}"' not in answer.text


def test_the_json_of_the_usage_has_the_period_of_the_page(admin: Client) -> None:
    page = admin.get("/usage?group=day&from=2026-11-01&to=2026-11-05").text
    assert "v1/usage?group=day&amp;from=2026-11-01&amp;to=2026-11-05" in page


def test_a_number_in_the_search_finds_the_job(admin: Client, jobs: list[int]) -> None:
    page = admin.get(f"/jobs?name={jobs[1]}").text
    assert "bobs-job" in page
    assert "1 job" in page or f'id="job-{jobs[1]}"' in page
    assert f'id="job-{jobs[0]}"' not in page


def test_a_page_without_a_leader_says_so(admin: Client, jobs: list[int], world: World) -> None:
    world.leads = False
    for address in ("/cluster", "/queue"):
        answer = admin.get(address)
        assert answer.status_code == 503, address
        assert 'role="alert"' in answer.text
        Elements(answer.text)
    assert admin.get("/").status_code == 200, "the overview says that no service leads"


def test_a_bad_filter_is_an_error_that_names_it(admin: Client, jobs: list[int]) -> None:
    answer = admin.get("/jobs?after=nonsense")
    assert answer.status_code == 422
    assert "after" in answer.text


def test_pages_share_documents_only_between_the_same_callers(app: FastAPI, world: World, jobs: list[int]) -> None:
    with browser_of(app, world.token) as browser:
        assert "bobs-job" in browser.get("/jobs").text
    ada = person(world, "ada", Role.SUBMITTER, "vision")
    with browser_of(app, ada.key) as browser:
        assert "bobs-job" not in browser.get("/jobs").text


def test_large_documents_and_scripts_are_compressed_and_pages_are_not(admin: Client, world: World) -> None:
    """The compressed length of a page would tell of its CSRF token."""
    with_servers(world, *(Server(f"server-{number}", 8) for number in range(300)))
    packed = {"Accept-Encoding": "gzip"}
    for path in ("/v1/timeline", "/static/core.js"):
        answer, plain = admin.get(path, headers=packed), admin.get(path, headers={"Accept-Encoding": "identity"})
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.content == plain.content
        assert "Content-Encoding" not in plain.headers
        assert answer.headers["Vary"] == "Accept-Encoding"
    page = admin.get("/cluster", headers=packed)
    assert len(page.content) > COMPRESSED_FROM
    assert "Content-Encoding" not in page.headers
    assert "Content-Encoding" not in admin.get("/v1/overview", headers=packed).headers, "it is small"


def test_a_page_after_a_change_shows_it(admin: Client, world: World) -> None:
    person(world, "ada", Role.SUBMITTER, "vision")
    page = admin.get("/admin")
    assert ">Disable<" in page.text
    change = admin.put("/v1/users/ada", json={"disabled": True}, headers={**ORIGIN, CSRF_HEADER: csrf_of(page)})
    assert change.status_code == 200
    assert ">Enable<" in admin.get("/admin").text


def test_a_smaller_page_of_the_api_makes_smaller_pages(world: World, jobs: list[int]) -> None:
    world.settings = world.settings.model_copy(update={"page_size_max": 2, "page_size_default": 2})
    with browser_of(pages_of(world), world.token) as browser:
        for address in addresses(jobs):
            assert browser.get(address).status_code == 200, address


def test_many_servers_are_shown_a_page_at_a_time(admin: Client, world: World) -> None:
    world.servers = [Server(f"node{number}", 8, rack=f"rack{number // 50}") for number in range(250)]
    first = admin.get("/cluster").text
    Elements(first)
    assert first.count('id="server-') == 100
    assert "1 to 100 of 250" in first
    assert 'href="./cluster?page=2"' in first
    last = admin.get("/cluster?page=3").text
    assert (last.count('id="server-'), "node249" in last, 'rel="next"' in last) == (50, True, False)
    found = admin.get("/cluster?name=RACK4&state=up").text
    assert (found.count('id="server-'), "node200" in found, "node199" in found) == (50, True, False)
    assert "No server matches" in admin.get("/cluster?name=none&page=7").text
    assert "No server matches" in admin.get("/cluster?state=down").text
    for page in ("0", "-1", "x", "9" * 40, "4"):
        assert admin.get(f"/cluster?page={page}").status_code == 200, page


def test_the_map_of_a_very_large_cluster_has_the_servers_of_the_page(
    admin: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MAPPED_MAX", 149)
    with_servers(world, *(Server(f"node{number}", 2, rack=f"rack{number // 50}") for number in range(150)))
    first, second = admin.get("/cluster").text, admin.get("/cluster?page=2").text
    assert "Of the servers in the list below." in first
    assert [text.count('id="gpus-') for text in (first, second)] == [100, 50]
    assert "No server matches" in admin.get("/cluster?name=none").text
    monkeypatch.setattr(cluster, "MAPPED_MAX", 150)
    whole = admin.get("/cluster?page=2").text
    assert (whole.count('id="gpus-'), "Of the servers in the list below." in whole) == (150, False)


def test_long_tables_of_limits_are_folded(admin: Client, app: FastAPI, world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(cluster, "ROWS", 2)
    with client_of(app, world.token) as operator:
        for name in ("a", "b", "c"):
            operator.put(f"/v1/quotas/user/{name}", json={"jobs_queued_max": 5}).raise_for_status()
    page = admin.get("/usage").text
    Elements(page)
    assert page[page.index('<h2 id="quotas-title"') :].count('<tr id="quota-') == 2
    assert "These are the first 2 of 3." in page


@pytest.mark.parametrize(
    ("owner", "offered"), [(LimitOwner(Scope.PROJECT, "vision"), "pause"), (LimitOwner(Scope.QUEUE), "resume")]
)
def test_the_whole_queue_is_paused_or_resumed(admin: Client, world: World, owner: LimitOwner, offered: str) -> None:
    with world.database.writing() as session:
        limit = StoredLimit(owner, OwnerLimit(paused=True, pause_reason=""), None)
        store_limit(session.connection(), limit, world.now_s)
    assert re.findall(r'data-action="POST v1/queue/(\w+)"', admin.get("/queue").text) == [offered]


def test_a_long_curve_is_shown_to_its_end(admin: Client, world: World, jobs: list[int]) -> None:
    with world.database.writing() as session:
        attempt = AttemptId(f"{jobs[0]}.1")
        record_progress(session, [ProgressPoint(attempt, world.now_s + at, float(at)) for at in range(1201)])
    page = admin.get(f"/jobs/{jobs[0]}").text
    chart = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    assert chart["iteration"][-1] == 1200.0
    assert 200 < len(chart["iteration"]) <= 300


def test_the_losses_of_a_job_are_drawn_beside_those_of_similar_past_jobs(
    client: Client, world: World, app: FastAPI
) -> None:
    past, silent, job = (submit(client) for _ in range(3))
    end(world, [past, silent])
    take_in(world, job, said())
    # More reports than one read brings: the line of a past job must reach its end.
    losses = {past: (4.0, *(2.0 for _ in range(1198)), 0.5), job: (4.0, 3.0)}
    with world.database.writing() as session:
        for each, theirs in losses.items():
            attempt = AttemptId(f"{each}.1")
            points = [ProgressPoint(attempt, world.now_s, float(at), loss=loss) for at, loss in enumerate(theirs, 1)]
            record_progress(session, points)
    with browser_of(app, world.token) as browser:
        page, other = (browser.get(f"/jobs/{each}").text for each in (job, silent))
    Elements(page)
    assert f"Loss of this job: 3 after 2 iterations; of job {past}: 0.5 after 1,200" in page
    assert page.count("<polyline") == 2
    assert 'id="loss-chart"' not in other


def test_a_page_does_without_what_the_service_is_too_busy_for(world: World) -> None:
    world.settings = world.settings.model_copy(update={"caller_heavy_requests_max": 0})
    with browser_of(pages_of(world), world.token) as browser:
        page = browser.get("/predictions")
    assert page.status_code == 200
    assert "computing other answers" in page.text


@pytest.mark.parametrize("path", ["/no-such-page", "/jobs/x", "/docs/no-such-page.html", "/static/none.js"])
def test_a_missing_page_is_said_as_a_page(admin: Client, path: str) -> None:
    answer = admin.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert "There is no such" in answer.text or "has no file" in answer.text
    Elements(answer.text)
    program = admin.get(path, headers={"Accept": "application/json"})
    assert program.headers["content-type"] == "application/problem+json"


def test_a_refusal_before_the_sign_in_is_said_as_a_page(app: FastAPI) -> None:
    with client_of(app, None) as stranger:
        answer = stranger.get("/jobs", headers={**HTML, "Host": "elsewhere.example"})
    assert (answer.status_code, answer.headers["content-type"]) == (421, "text/html; charset=utf-8")
    assert "allowed_hosts" in answer.text
    assert "<nav" not in answer.text
    Elements(answer.text)


def test_a_number_of_thousands_of_digits_is_no_job(admin: Client) -> None:
    assert admin.get(f"/jobs/{'9' * 5000}").status_code == 404
    assert admin.get(f"/jobs/{'9' * 18}").status_code in (404, 422)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ([4, 4], [(1, 8, 8), (2, 4, 4), (4, 2, 2), (8, 0, 1)]),
        ([1, 1, 1, 1], [(1, 4, 4), (2, 0, 2), (4, 0, 1), (8, 0, 0)]),
        ([], []),
    ],
)
def test_room_for_gangs_is_counted_on_single_servers_and_in_all(
    free: list[int], expected: list[tuple[int, int, int]]
) -> None:
    servers = [{"state": "up", "free_gpus": each, "gpus": 8} for each in free]
    servers += [{"state": "down", "free_gpus": 8, "gpus": 8}] if free else []
    assert [(each["gpus"], each["on_one"], each["in_all"]) for each in fragments(servers)] == expected


def test_errors_of_predictions_by_hand() -> None:
    def job(predicted: float, actual: float) -> dict[str, object]:
        from math import log

        inside = {"p10": predicted / 1.5, "p90": predicted * 1.5, "actual": actual}
        return {"prediction": {**inside, "log_error": log(predicted / actual)}}

    found = error_of([job(100, 100), job(300, 100), job(100, 180)])
    assert found["jobs"] == 3
    assert found["factor"] == pytest.approx(1.8)
    assert found["twice"] == pytest.approx(2 / 3)
    assert found["inside"] == pytest.approx(1 / 3)
    assert found["too_long"] == pytest.approx(1 / 3)


def test_forms_are_posted_with_their_origin(admin: Client, app: FastAPI) -> None:
    """A browser sends the origin "null" with a form of a page whose referrer policy is no-referrer."""
    assert admin.get("/jobs").headers["referrer-policy"] == "same-origin"
    with client_of(app, None) as stranger:
        assert stranger.get("/sign-in").headers["referrer-policy"] == "same-origin"
    assert admin.post("/sign-out", data={}, headers=ORIGIN).status_code == 303


RESULT = {
    "policy": "fifo",
    "mean_jct_s": 7200.0,
    "median_jct_s": 60.0,
    "p99_jct_s": 90_000.0,
    "mean_queueing_delay_s": 0.0,
    "mean_slowdown": 1.5,
    "preemptions": 3,
    "utilization_ratio": 0.5,
}
WHAT_IF = {
    "schema": "sooner.sim.whatif/1",
    "jobs": 12,
    "servers": 3,
    "gpus": 24,
    "left_out": {"cancelled": 2},
    "actual": RESULT | {"policy": "actual"},
    "runs": [RESULT, RESULT | {"policy": "srtf", "mean_jct_s": 3600.0}],
}
OUTLOOK = {
    "schema": "sooner.sim.outlook/1",
    "cycle": 7,
    "current": "asrpt",
    "samples": 16,
    "unfinished": 4,
    "policies": [
        {"policy": "asrpt", "mean_jct_s": 60.0, "mean_jct_p10_s": 50.0, "mean_jct_p90_s": 70.0, "better_in": None},
        {"policy": "fifo", "mean_jct_s": 90.0, "mean_jct_p10_s": 80.0, "mean_jct_p90_s": 100.0, "better_in": 0.25},
    ],
}


def simulation(app: FastAPI, world: World, **values: object) -> int:
    with client_of(app, world.token) as operator:
        number = operator.post("/v1/simulations", json={"policies": ["current", "fifo"]}).json()["id"]
    world.database.execute(update(SIMULATIONS).where(SIMULATIONS.c.id == number).values(values))
    assert isinstance(number, int)
    return number


def test_the_overview_lists_jobs_that_are_being_stopped(admin: Client, app: FastAPI, world: World) -> None:
    """They hold their GPUs, which the page counts as busy."""
    [job] = submitted(app, world, plain_job())
    world.database.execute(update(JOBS).where(JOBS.c.id == job).values(state=JobState.PREEMPTING.value))
    page = admin.get("/").text
    assert "0 running, 1 being stopped" in page
    assert f'id="running-{job}"' in page
    assert '<span class="badge state-preempting">preempting</span>' in page
    assert "No job is running" not in page


def test_a_simulation_is_followed_while_it_runs(admin: Client, app: FastAPI, world: World) -> None:
    number = simulation(app, world, state="running", started_at_s=world.now_s, starts=1, done=3, total=12, eta_s=4.0)
    page = admin.get(f"/what-if/{number}").text
    Elements(page)
    assert "data-poll" in page
    assert "3 of 12, about 4 s left" in page
    assert f'data-action="POST v1/simulations/{number}/cancel"' in page
    assert f'href="./what-if/{number}"' in admin.get("/what-if").text


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (WHAT_IF, ("12 jobs on 3 servers with 24 GPUs", "2 cancelled", "as it was", "best")),
        (WHAT_IF | {"jobs": 1, "servers": 1, "gpus": 1}, ("1 job on 1 server with 1 GPU.",)),
        (OUTLOOK, ("16 sampled", "25%")),
        (OUTLOOK | {"samples": 1, "unfinished": 1}, ("1 unfinished job, 1 sampled future from cycle 7.",)),
    ],
)
def test_a_report_is_shown_in_place(
    admin: Client, app: FastAPI, world: World, report: object, expected: tuple[str, ...]
) -> None:
    number = simulation(app, world, state="succeeded", ended_at_s=world.now_s, report=report)
    page = admin.get(f"/what-if/{number}").text
    Elements(page)
    assert "data-poll" not in page
    for text in expected:
        assert text in page


def test_a_failed_simulation_says_why(admin: Client, app: FastAPI, world: World) -> None:
    number = simulation(app, world, state="failed", ended_at_s=world.now_s, error=f"no past {HOSTILE}")
    page = admin.get(f"/what-if/{number}").text
    assert "img" not in Elements(page).tags
    assert "no past" in page


def test_simulations_are_for_operators(app: FastAPI, world: World) -> None:
    ada = person(world, "ada", Role.SUBMITTER, "vision")
    with browser_of(app, ada.key) as browser:
        assert "what-if" not in browser.get("/jobs").text
        refused = browser.get("/what-if")
        assert refused.status_code == 403
        assert "operator" in refused.text


def test_the_form_offers_what_the_cluster_and_the_caller_have(app: FastAPI, world: World) -> None:
    ada = person(world, "ada", Role.SUBMITTER, "vision")
    with browser_of(app, ada.key) as browser:
        page = browser.get("/submit").text
    Elements(page)
    assert (
        '<datalist id="job-gpu_type-choices"><option value="T4"></option><option value="V100"></option></datalist>'
        in page
    )
    assert '<option value="vision"></option>' in page
    assert 'aria-describedby="job-walltime-hint"' in page


@pytest.mark.parametrize(("period", "expected"), [(None, "checkpoint_period_s: null"), (60, "checkpoint_period_s: 60")])
def test_a_job_that_cannot_checkpoint_is_submitted_again_as_one(
    admin: Client, app: FastAPI, world: World, period: int | None, expected: str
) -> None:
    (job,) = submitted(app, world, plain_job(checkpoint_period_s=period))
    assert expected in admin.get(f"/submit?again={job}").text


def test_a_preemption_that_is_foreseen_is_on_the_page_with_a_link_and_its_time(
    admin: Client, world: World, jobs: list[int]
) -> None:
    waits, runs = JobId(jobs[0]), JobId(jobs[1])
    at_s = 1_800_000_000.0
    world.explanations[waits] = Explanation(Reason.RESOURCES, 4, 0, 0, will_preempt=(runs,), preemption_at_s=at_s)
    world.explanations[runs] = Explanation(Reason.STARTED, 4, 0, 0, will_be_preempted_by=waits, preemption_at_s=at_s)
    time = "2027-01-15 08:00:00 UTC"
    first = " ".join("".join(Elements(admin.get(f"/jobs/{waits}").text).shown).split())
    assert f"Will preempt job {runs} at {time}, if nothing changes before." in first
    assert first.count("preempt") == 1
    page = admin.get(f"/jobs/{runs}").text
    second = " ".join("".join(Elements(page).shown).split())
    assert f"Job {waits} will preempt it at {time}, if nothing changes before." in second
    assert second.count("preempt") == 1
    assert f"../jobs/{waits}" in Elements(page).links


def test_the_newest_of_many_attempts_are_on_the_page(admin: Client, world: World, jobs: list[int]) -> None:
    rows = [
        {"id": f"{jobs[0]}.{number}", "job_id": jobs[0], "number": number, "state": "failed", "reason": "started"}
        | {"placement": encode(Placement(())), "gpu_ids": [], "opened_at_s": 1.0 * number, "host": ""}
        for number in range(1, 651)
    ]
    with world.database.writing() as session:
        session.connection().execute(insert(ATTEMPTS), rows)
        session.connection().execute(update(JOBS).where(JOBS.c.id == jobs[0]).values(attempts=650))
    page = admin.get(f"/jobs/{jobs[0]}").text
    shown = [each for each in Elements(page).ids if each.startswith("attempt-")]
    assert shown == [f"attempt-{number}" for number in range(551, 651)]
    assert "These are the newest 100 of 650." in " ".join(page.split())
    assert 'data-attempt="650"' in page
