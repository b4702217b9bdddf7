"""What operators do on pages of a real service, and what pages show when there is nothing, not yet, no more or not now."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from playwright.sync_api import Page, Response, Route, expect

from service.db.lease import LEADER_LEASE, acquire, release
from service.db.session import open_database
from tests.e2e.harness import LiveService
from tests.web.conftest import until
from tests.web.live import LONG, addresses, sign_in, submitted, wait_live


def test_a_server_is_drained_and_resumed(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "cluster")
    wait_live(tab)
    row = tab.locator("#server-1")
    row.get_by_role("button", name="Drain").click()
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_contain_text("Running jobs go on")
    dialog.get_by_role("button", name="Drain").click()
    expect(row).to_contain_text("drained by operator")
    expect(tab.locator("#card-servers")).to_contain_text("1 drained")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".badge")).to_have_text("up")
    assert [each["state"] for each in service.get("/v1/cluster")["servers"]] == ["up", "up"]


def test_a_simulation_is_made_followed_and_reported_in_place(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    jobs = [submitted(service, f"past-{number}", gpus=2) for number in range(3)]
    for job in jobs:
        service.until_state(job, "succeeded")
    sign_in(tab, service, "what-if")
    options = tab.get_by_label("With options")
    options.fill("nonsense")
    tab.get_by_role("button", name="Simulate").click()
    expect(options).to_have_attribute("aria-invalid", "true")
    expect(tab.locator("#error-policies")).to_contain_text("nonsense")
    options.fill("asrpt:preemption=never")
    tab.get_by_label("Since").fill("2001-02-03T04:05:06")
    tab.get_by_label("Predictions").select_option("oracle")
    tab.get_by_role("button", name="Simulate").click()
    tab.wait_for_url("**/what-if/*")
    expect(tab.locator("h1")).to_contain_text("succeeded", timeout=120_000)
    report = tab.locator("#report tbody tr")
    expect(report).to_have_count(4)
    expect(report.nth(0)).to_contain_text("as it was")
    expect(report.nth(3)).to_contain_text("asrpt:preemption=never")
    (made,) = service.get("/v1/simulations")["items"]
    assert made["request"]["policies"] == ["current", "fifo", "asrpt:preemption=never"]
    assert made["request"]["predictor"] == "oracle"
    # The browser's zone is not UTC.
    assert made["request"]["since"] == tab.evaluate("new Date('2001-02-03T04:05:06').toISOString()")
    expect(tab.locator("#under-way")).to_have_count(0)


def test_limits_and_webhooks_are_made_and_removed(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "usage")
    tab.locator("#new-quota summary").click()
    tab.get_by_label("Of a").select_option("project")
    tab.get_by_label("Name").fill("nlp ä")
    tab.get_by_label("GPUs running at most").fill("3")
    tab.get_by_role("button", name="Set").click()
    row = tab.locator("#quota-1")
    expect(row).to_contain_text("nlp ä")
    (quota,) = service.get("/v1/quotas")["quotas"]
    assert (quota["scope"], quota["name"]) == ("project", "nlp ä")
    assert (quota["gpus_running_max"], quota["jobs_queued_max"]) == (3, None)
    row.get_by_role("button", name="Remove").click()
    tab.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(tab.locator("#quotas")).to_have_count(0)
    assert service.get("/v1/quotas")["quotas"] == []

    tab.goto(f"{service.url}/admin")
    tab.locator("#new-webhook summary").click()
    url = tab.get_by_label("URL")
    url.fill("ftp://example.org")
    tab.get_by_role("button", name="Add").click()
    expect(url).to_have_attribute("aria-invalid", "true")
    url.fill("https://hooks.example.org/sooner")
    tab.get_by_label("job.started").check()
    tab.get_by_label("job.cancelled").uncheck()
    tab.get_by_role("button", name="Add").click()
    expect(tab.locator("#new-webhook [data-result]")).not_to_be_empty()
    (webhook,) = service.get("/v1/webhooks")["items"]
    assert webhook["url"] == "https://hooks.example.org/sooner"
    assert set(webhook["events"]) == {"job.started", "job.succeeded", "job.failed"}


def test_no_page_has_a_silent_fault(browser_tab: Page, service: LiveService) -> None:
    """Neither an answer of 400 or more nor, by the tab, an error in the console or a request of another origin."""
    tab = browser_tab
    running = submitted(service, "shown", **LONG)
    sign_in(tab, service)
    answers: list[str] = []

    def note(response: Response) -> None:
        if response.status >= 400:
            answers.append(f"{response.status} {response.url}")

    tab.on("response", note)
    for path in addresses(service):
        response = tab.goto(f"{service.url}/{path}")
        assert response is not None and response.status == 200, path
        expect(tab.locator("[data-widget]:not([data-mounted=''])")).to_have_count(0)
        if tab.locator("body[data-live]").count():
            wait_live(tab)
    assert answers == []
    service.request("POST", f"/v1/jobs/{running}/cancel")


def test_pages_without_anything_to_show_say_so(browser_tab: Page, service: LiveService) -> None:
    """Those of a user whose project has no job."""
    tab = browser_tab
    made = service.request("POST", "/v1/keys", {"user": "newcomer", "role": "submitter", "projects": ["empty"]}).json()
    tab.goto(f"{service.url}/queue")
    tab.get_by_label("API key").fill(made["key"])
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.locator(".empty")).to_contain_text("No job waits.")
    for path, text in (
        ("", "No job is running. Submit one."),
        ("jobs", "No job matches."),
        ("predictions", "No job with a prediction has ended yet."),
        ("usage", "No GPU was held"),
    ):
        tab.goto(f"{service.url}/{path}")
        expect(tab.locator(".empty").filter(has_text=text)).to_be_visible()


def test_the_timeline_says_that_it_loads_and_that_it_could_not(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    asked: list[Route] = []
    problem = {"title": "Unavailable", "detail": "The database does not answer."}

    def answer(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.fulfill(status=503, json=problem)

    tab.route("**/v1/timeline", answer)
    sign_in(tab, service)
    until(tab, lambda: bool(asked))
    expect(tab.locator("#gantt")).to_contain_text("Loading the attempts.")
    asked[0].fulfill(status=503, json=problem)
    expect(tab.locator("#gantt")).to_contain_text("could not be loaded")
    expect(tab.locator("#messages")).to_contain_text("The database does not answer.")
    tab.unroute("**/v1/timeline", answer)
    submitted(service, "the page is read again")
    expect(tab.locator("#gantt")).to_have_attribute("data-ready", "")


@contextmanager
def without_leader(service: LiveService) -> Iterator[None]:
    """Restart the service while another holder has the lease that makes it lead."""
    service.stop()
    with closing(open_database(f"sqlite:///{service.data_dir / 'sooner.db'}")) as database:
        lease = service.until(lambda: acquire(database, LEADER_LEASE, "another", 3600.0), 30.0, "the lease is free")
        service.start()
        try:
            yield
        finally:
            release(database, lease)


def leads(service: LiveService) -> bool:
    return bool(service.get("/readyz")["role"] == "leader")


def test_a_page_that_the_service_cannot_make_says_why_and_comes_by_itself(
    browser_tab: Page, service: LiveService
) -> None:
    tab = browser_tab
    sign_in(tab, service)
    wait_live(tab)
    with without_leader(service):
        response = tab.goto(f"{service.url}/queue")
        assert response is not None and response.status == 503
        expect(tab.locator("main [role=alert]")).to_contain_text("No service leads at the moment")
        tab.evaluate("window.same = true")
        tab.context.new_page().goto(f"{service.url}/")
        overview = tab.context.pages[-1]
        expect(overview.locator("main")).to_contain_text("No service leads, so there is no order.")
        overview.close()
    expect(tab.locator("h1")).to_have_text("Queue")
    wait_live(tab)
    assert tab.evaluate("window.same") is True, "the page was not loaded again"
    service.until(lambda: leads(service), 30.0, "it leads again")


def test_a_page_that_is_no_longer_answered_is_marked_as_out_of_date(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "queue")
    wait_live(tab)

    def fail(route: Route) -> None:
        route.fulfill(status=503, body="")

    address = f"{service.url}/queue"
    tab.route(address, fail)
    submitted(service, "unseen")
    expect(tab.locator("[data-live-state]")).to_contain_text("Out of date. This is as of")
    tab.unroute(address, fail)
    wait_live(tab)
