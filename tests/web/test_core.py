"""What every page does: stay fresh, keep what the reader does, call the API, answer keys, follow the theme."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import until
from tests.web.site import Answer, Request, Site, json_answer, page

HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.exe \x1b[31mred'


def wait_live(tab: Page) -> None:
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "live")


def test_times_are_in_the_readers_zone(tab: Page, site: Site) -> None:
    today = datetime.now(UTC)
    site.show(
        "",
        '<time id="old" datetime="2019-03-02T20:30:00Z">x</time>'
        '<time id="day" data-as="date" datetime="2019-03-02T20:30:00Z">x</time>'
        f'<time id="ago" data-as="ago" datetime="{(today - timedelta(minutes=5, seconds=20)).isoformat()}">x</time>'
        f'<time id="ahead" data-as="ago" datetime="{(today + timedelta(hours=1, minutes=50, seconds=20)).isoformat()}">x</time>'
        f'<time id="since" data-as="since" datetime="{(today - timedelta(days=5, hours=12, minutes=10)).isoformat()}">x</time>'
        '<time id="bad" datetime="soon">soon</time>',
    )
    tab.goto(site.url)
    expect(tab.locator("#old")).to_have_text("3 Mar 2019, 05:30")
    expect(tab.locator("#old")).to_have_attribute("title", "Sunday, 3 March 2019 at 05:30:00 GMT+9")
    expect(tab.locator("#day")).to_have_text("3 Mar 2019")
    expect(tab.locator("#ago")).to_have_text("5 min ago")
    expect(tab.locator("#ahead")).to_have_text("in 1 h 50 min")
    expect(tab.locator("#since")).to_have_text("5 d 12 h")
    expect(tab.locator("#bad")).to_have_text("soon")


def test_an_event_refreshes_the_page_and_keeps_what_the_reader_does(tab: Page, site: Site) -> None:
    count = 0

    def main() -> str:
        nonlocal count
        count += 1
        rows = "".join(
            f'<tr id="job-{n}"><td>{n}</td><td>row {n} of answer {count}</td></tr>' for n in range(count, 60)
        )
        return (
            f'<p id="count">answer {count}</p><details id="more"><summary>More</summary>{count}</details>'
            '<label>Name <input id="name" value="old"></label><label>Other <input id="other" value="old"></label>'
            f'<button id="{"stay"}">Stay</button><div id="box" tabindex="0" style-none>{"<p>line</p>" * 80}</div>'
            f'<table class="data" id="jobs"><tbody>{rows}</tbody></table>'
        )

    site.show("", main, live="changes")
    tab.goto(site.url)
    wait_live(tab)
    tab.locator("summary").click()
    tab.fill("#name", "typed by the reader")
    tab.locator("#stay").focus()
    tab.evaluate("window.scrollTo(0, 700); window.row = document.getElementById('job-50')")
    tab.evaluate("getSelection().selectAllChildren(document.querySelector('#job-55 td'))")
    before = count
    site.emit("changes", {"changed": ["jobs"]})
    until(tab, lambda: tab.locator("#count").inner_text() > f"answer {before}")
    assert tab.evaluate("document.getElementById('more').open")
    assert tab.input_value("#name") == "typed by the reader"
    assert tab.evaluate("document.activeElement.id") == "stay"
    assert tab.evaluate("getSelection().toString()") == "55"
    assert tab.evaluate("window.row === document.getElementById('job-50')")
    assert tab.evaluate("scrollY") > 500
    expect(tab.locator("#job-1")).to_have_count(0)


def test_many_events_cost_few_requests(tab: Page, site: Site) -> None:
    answers: list[float] = []

    def main() -> str:
        answers.append(datetime.now(UTC).timestamp())
        return f'<p id="count">{len(answers)}</p>'

    site.show("", main, live="jobs")
    tab.goto(site.url)
    wait_live(tab)
    for _ in range(200):
        site.emit()
    until(tab, lambda: len(answers) >= 2)
    for _ in range(200):
        site.emit()
    until(tab, lambda: len(answers) >= 3)
    gaps = [later - earlier for earlier, later in pairwise(answers[1:])]
    assert min(gaps) >= 0.9, gaps


def test_the_page_reconnects_after_a_restart_and_misses_nothing(tab: Page, site: Site) -> None:
    text = ["before"]
    site.show("", lambda: f'<p id="text">{text[0]}</p>', live="jobs")
    tab.goto(site.url)
    wait_live(tab)
    site.stop()
    state = tab.locator("[data-live-state]")
    expect(state).to_have_attribute("data-live-state", "reconnecting")
    expect(state).to_have_attribute("data-live-state", "offline")
    expect(state).to_contain_text("Not connected. This is as of")
    text[0] = "while the page was alone"
    site.start()
    expect(tab.locator("#text")).to_have_text("while the page was alone", timeout=60_000)
    wait_live(tab)


def test_a_page_that_fails_is_marked_as_out_of_date(tab: Page, site: Site) -> None:
    fails = [False]
    site.routes["GET /"] = lambda _: Answer(page("<p>text</p>", live="jobs"), 503 if fails[0] else 200)
    tab.goto(site.url)
    wait_live(tab)
    fails[0] = True
    site.emit()
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "stale")
    fails[0] = False
    wait_live(tab)


def test_an_ended_session_leads_to_signing_in_and_back(tab: Page, site: Site) -> None:
    ended = [False]

    def jobs(_: Request) -> Answer:
        if ended[0]:
            return Answer(status=303, headers={"Location": "/proxy/sign-in"})
        return Answer(page("<p>text</p>", live="jobs", root="./"))

    site.routes["GET /jobs"] = jobs
    site.show("sign-in", "<h1>Sign in</h1>")
    tab.goto(site.url + "jobs?state=running")
    wait_live(tab)
    ended[0] = True
    site.emit()
    tab.wait_for_url(site.url + "sign-in?next=jobs%3Fstate%3Drunning")


def test_a_refused_stream_asks_the_page_whether_the_session_has_ended(tab: Page, site: Site) -> None:
    site.refuse_streams = 401
    answers = [Answer(page("<p>text</p>", live="jobs"))]
    site.routes["GET /"] = lambda _: answers.pop() if answers else Answer(status=401)
    site.show("sign-in", "<h1>Sign in</h1>")
    tab.goto(site.url)
    tab.wait_for_url(site.url + "sign-in*")


_ASKED_MS = """() => performance.getEntriesByType('resource').filter(
    (entry) => entry.name.includes('/v1/events')).map((entry) => entry.startTime)"""


def test_streams_that_are_refused_are_asked_for_ever_more_rarely(tab: Page, site: Site) -> None:
    site.refuse_streams = 429
    site.show("", "<p>text</p>", live="jobs")
    tab.goto(site.url)
    until(tab, lambda: len(tab.evaluate(_ASKED_MS)) >= 3)
    asked_ms = tab.evaluate(_ASKED_MS)
    assert asked_ms[1] - asked_ms[0] >= 1000
    assert asked_ms[2] - asked_ms[1] >= 2000
    site.refuse_streams = None
    wait_live(tab)


def test_a_hidden_tab_holds_no_stream(tab: Page, site: Site) -> None:
    site.show("", "<p>text</p>", live="jobs servers")
    tab.goto(site.url)
    wait_live(tab)
    assert site.open_streams == 2
    hide = "hidden => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    tab.evaluate(hide, True)
    tab.evaluate(tell)
    until(tab, lambda: site.open_streams == 0)
    asked = len(site.requests)
    tab.evaluate(hide, False)
    tab.evaluate(tell)
    wait_live(tab)
    until(tab, lambda: site.open_streams == 2 and len(site.requests) >= asked + 3)


def test_a_service_on_this_machine_is_live_without_a_network(tab: Page, site: Site) -> None:
    site.show("", "<p>text</p>", live="jobs")
    tab.goto(site.url)
    wait_live(tab)
    tab.evaluate("Object.defineProperty(navigator, 'onLine', {value: false, configurable: true})")
    asked = len(site.requests)
    tab.evaluate("dispatchEvent(new Event('offline'))")
    until(tab, lambda: len(site.requests) > asked)
    wait_live(tab)


def test_a_change_whose_answer_is_lost_is_not_made_twice(tab: Page, site: Site) -> None:
    answers = [json_answer({"detail": "No answer."}, 502), json_answer({}, 202), json_answer({}, 202)]
    site.routes["POST /v1/keys"] = lambda _: answers.pop(0)
    site.show(
        "", '<button data-action="POST v1/keys" data-body="{}" data-then="stay" data-done="Done.">Create</button>'
    )
    tab.goto(site.url)
    for count in range(1, 4):
        tab.get_by_role("button", name="Create").click()
        expect(tab.locator("#messages .message")).to_have_count(count)
    keys = [each.headers["Idempotency-Key"] for each in site.requests if each.method == "POST"]
    assert keys[0] == keys[1] != keys[2]


def test_a_form_shows_what_the_service_has_after_its_change(tab: Page, site: Site) -> None:
    value = [5]

    def change(request: Request) -> Answer:
        value[0] = request.json()["priority"] + 1
        return json_answer({}, 202)

    site.routes["PUT /v1/jobs/1/priority"] = change
    site.show(
        "",
        lambda: (
            '<form data-action="PUT v1/jobs/1/priority"><label>Priority'
            f' <input name="priority" type="number" value="{value[0]}"></label><button>Change</button></form>'
        ),
        live="job:1",
    )
    tab.goto(site.url)
    wait_live(tab)
    field = tab.get_by_label("Priority")
    field.fill("7")
    tab.get_by_role("button", name="Change").click()
    expect(field).to_have_value("8")
    value[0] = 11
    site.emit()
    expect(field).to_have_value("11")


def test_a_fault_inside_a_value_is_shown_at_its_field_beside_the_hint(tab: Page, site: Site) -> None:
    faults = [{"pointer": f"/policies/{place}", "detail": f"policy {place} is unknown"} for place in (0, 1)]
    site.routes["POST /v1/simulations"] = lambda _: json_answer({"detail": "Invalid.", "errors": faults}, 422)
    site.show(
        "",
        '<form data-action="POST v1/simulations"><label for="p">Policies</label>'
        '<input id="p" name="policies" data-type="list" value="a, b" aria-describedby="hint"><p id="hint">By commas.</p>'
        "<p data-errors></p><button>Simulate</button></form>",
    )
    tab.goto(site.url)
    field = tab.get_by_label("Policies")
    for _ in range(2):
        tab.get_by_role("button", name="Simulate").click()
        expect(field).to_have_accessible_description("By commas. policy 0 is unknown policy 1 is unknown")
    expect(tab.get_by_role("alert")).to_contain_text("Invalid.")
    site.routes["POST /v1/simulations"] = lambda _: json_answer({}, 202)
    tab.get_by_role("button", name="Simulate").click()
    expect(field).to_have_accessible_description("By commas.")


def test_an_action_asks_first_and_sends_the_token(tab: Page, site: Site) -> None:
    state = ["running"]

    def cancel(_: Request) -> Answer:
        state[0] = "cancelled"
        return json_answer({"id": 12}, 202)

    site.routes["POST /v1/jobs/12/cancel"] = cancel
    site.show(
        "",
        lambda: (
            f'<p id="state">{state[0]}</p>'
            '<button data-action="POST v1/jobs/12/cancel" data-danger data-body=\'{"reason": "x"}\''
            ' data-confirm="Cancel job 12?" data-done="Job {id} was cancelled.">Cancel</button>'
        ),
    )
    tab.goto(site.url)
    button = tab.locator("[data-action]")
    button.click()
    expect(tab.get_by_role("dialog", name="Cancel job 12?")).to_be_visible()
    expect(tab.get_by_role("button", name="Back")).to_be_focused()
    tab.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    assert state[0] == "running"
    button.press("Enter")
    tab.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(tab.locator("#state")).to_have_text("cancelled")
    expect(tab.locator("#messages")).to_contain_text("Job 12 was cancelled.")
    sent = next(request for request in site.requests if request.method == "POST")
    assert sent.headers["X-CSRF-Token"] == "token-1"
    assert len(sent.headers["Idempotency-Key"]) == 32
    assert sent.json() == {"reason": "x"}


def test_a_form_shows_each_fault_at_its_field(tab: Page, site: Site) -> None:
    faults = [{"pointer": "/gpus", "detail": "must be at most 64"}, {"pointer": "/labels", "detail": HOSTILE}]
    site.routes["POST /v1/jobs"] = lambda _: json_answer(
        {"title": "x", "detail": "The body is invalid.", "errors": faults}, 422
    )
    site.show(
        "",
        '<form data-action="POST v1/jobs" data-then="jobs/{id}"><label>GPUs <input name="gpus" type="number" value="65"></label>'
        '<label>Name <input name="name" value="a"></label><input type="checkbox" name="requeue" aria-label="Requeue" checked>'
        '<label>Policy <input name="limits.time_s" type="number" value="60"></label><input name="empty" aria-label="Empty">'
        '<label>Tags <input name="tags" data-type="list" value="a, b"></label><button>Submit</button></form>',
    )
    tab.goto(site.url)
    tab.get_by_role("button", name="Submit").click()
    field = tab.get_by_label("GPUs")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(tab.locator("#error-gpus")).to_have_text("must be at most 64")
    expect(tab.get_by_role("alert")).to_contain_text("The body is invalid.")
    expect(tab.get_by_role("alert")).to_contain_text("<img src=x")
    sent = next(request for request in site.requests if request.method == "POST")
    assert sent.json() == {"gpus": 65, "name": "a", "requeue": True, "limits": {"time_s": 60}, "tags": ["a", "b"]}
    site.routes["POST /v1/jobs"] = lambda _: json_answer({"id": 7}, 201)
    site.show("jobs/7", "<h1>Job 7</h1>", root="../")
    tab.get_by_role("button", name="Submit").click()
    tab.wait_for_url(site.url + "jobs/7")


def test_a_service_that_does_not_answer_is_named(tab: Page, site: Site) -> None:
    site.show("", '<button data-action="POST v1/jobs/12/hold">Hold</button>')
    tab.goto(site.url)
    site.stop()
    tab.get_by_role("button", name="Hold").click()
    expect(tab.get_by_role("alert")).to_contain_text("The service does not answer.")


def test_keys_open_pages_search_and_help(tab: Page, site: Site) -> None:
    for path, title in (("", "Overview"), ("queue", "Queue"), ("jobs", "Jobs")):
        site.show(path, f"<h1>{title}</h1>", title=title)
    tab.goto(site.url)
    tab.keyboard.press("g")
    tab.keyboard.press("q")
    tab.wait_for_url(site.url + "queue")
    tab.keyboard.press("/")
    expect(tab.locator("[data-search]")).to_be_focused()
    tab.keyboard.type("gq?")
    assert tab.input_value("[data-search]") == "gq?"
    tab.locator("main").focus()
    tab.keyboard.press("?")
    dialog = tab.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("g j")
    for _ in range(4):
        tab.keyboard.press("Tab")
        # The focus may leave for the browser's own controls, never for the page behind.
        assert tab.evaluate("!document.querySelector('main, header').contains(document.activeElement)")
    tab.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_table_sorts_and_filters_and_keeps_both(tab: Page, site: Site) -> None:
    rows = [(3, "b", "9"), (1, "a", "10"), (2, "c", "–")]

    def main() -> str:
        cells = "".join(f'<tr id="r{n}"><td>{n}</td><td>{name}</td><td>{wait}</td></tr>' for n, name, wait in rows)
        return (
            '<input data-filter="jobs" aria-label="Filter"><span id="jobs-count"></span>'
            '<table class="data" id="jobs" data-sortable><thead>'
            f'<tr><th>Job</th><th>Name</th><th data-sort="number">Wait</th></tr></thead><tbody>{cells}</tbody></table>'
        )

    site.show("", main, live="jobs")
    tab.goto(site.url)
    wait_live(tab)

    def shown() -> list[str]:
        return tab.locator("#jobs tbody tr:visible td:nth-child(2)").all_inner_texts()

    tab.get_by_role("button", name="Wait").click()
    assert shown() == ["a", "b", "c"]
    tab.get_by_role("button", name="Wait").press("Enter")
    assert shown() == ["b", "a", "c"]
    expect(tab.locator("th").nth(2)).to_have_attribute("aria-sort", "ascending")
    rows.append((4, "a2", "1"))
    site.emit()
    expect(tab.locator("#r4")).to_be_visible()
    assert shown() == ["a2", "b", "a", "c"]
    tab.fill("[data-filter]", "A")
    assert shown() == ["a2", "a"]
    expect(tab.locator("#jobs-count")).to_have_text("2 of 4 rows")


def test_numbers_as_people_write_them_are_sorted_by_size(tab: Page, site: Site) -> None:
    cells = ("1,234", "× 1.30", "80%", "–", "1e-05", "-7")
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    site.show(
        "", f'<table id="t" data-sortable><thead><tr><th data-sort="number">Size</th></tr></thead><tbody>{rows}</table>'
    )
    tab.goto(site.url)
    tab.get_by_role("button", name="Size").click()
    assert tab.locator("td").all_inner_texts() == ["1,234", "80%", "× 1.30", "1e-05", "-7", "–"]
    tab.get_by_role("button", name="Size").click()
    assert tab.locator("td").all_inner_texts() == ["-7", "1e-05", "× 1.30", "80%", "1,234", "–"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_reader_chooses(tab: Page, site: Site, scheme: str) -> None:
    site.show("", "<h1>Text</h1>")
    tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    tab.goto(site.url)

    def dark() -> bool:
        return bool(tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 21, 25)")

    assert dark() == (scheme == "dark")
    toggle = tab.get_by_role("button", name="Theme: auto")
    toggle.click()
    assert not dark()
    tab.get_by_role("button", name="Theme: light").click()
    assert dark()
    tab.reload()
    assert dark()
    assert tab.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_row_is_a_block_of_named_values_on_a_narrow_page(tab: Page, site: Site) -> None:
    heads = "".join(f"<th>Head {number}</th>" for number in range(12))
    cells = "".join(f"<td>{'–' if number == 5 else f'value-{number}'}</td>" for number in range(12))
    site.show("", f'<table class="data"><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table>')
    tab.set_viewport_size({"width": 360, "height": 800})
    tab.goto(site.url)
    last = tab.get_by_text("value-11")
    box = last.bounding_box()
    assert box is not None
    assert 0 <= box["x"] < box["x"] + box["width"] <= 360
    assert last.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Head 11"'
    expect(tab.locator("td").nth(5)).to_be_hidden()
    tab.set_viewport_size({"width": 1280, "height": 800})
    expect(tab.locator("td").nth(5)).to_be_visible()
    assert last.evaluate("cell => getComputedStyle(cell, '::before').content") == "none"


@pytest.mark.parametrize("frame", ["{}", '<section class="panel">{}</section>'])
def test_a_wide_table_scrolls_inside_a_narrow_page(tab: Page, site: Site, frame: str) -> None:
    cells = "".join(f"<td>column-{number}</td>" for number in range(20))
    site.show(
        "", frame.format(f'<div class="scroll"><table class="data"><tbody><tr>{cells}</tr></tbody></table></div>')
    )
    tab.set_viewport_size({"width": 360, "height": 800})
    tab.goto(site.url)
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    assert tab.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")
