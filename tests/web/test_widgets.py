"""The editor and what it submits, charts, logs, and pages that are polled."""

import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import serious_faults, until
from tests.web.site import Answer, Request, Site, json_answer

SCHEMAS = {
    "JobBody": {
        "properties": {
            "name": {"type": "string", "description": "What the job is called."},
            "gpus": {"type": "integer"},
            "requeue": {"type": "boolean"},
            "launch": {"anyOf": [{"$ref": "#/components/schemas/Launch"}, {"type": "null"}]},
        }
    },
    "Launch": {"properties": {"schedule": {"enum": ["1f1b", "gpipe"]}}},
}
SUBMIT = (
    '<form id="submit" data-submit><div id="editor" data-widget="editor" data-schema="./v1/openapi.json"'
    ' data-schema-name="JobBody">'
    '<label for="yaml" class="visually-hidden">The job as YAML</label>'
    '<textarea id="yaml" name="yaml">name: a\ngpus: 2\n</textarea></div>'
    '<p data-errors role="alert"></p>'
    '<button data-plan="v1/plans">Plan</button> <button data-submit-to="v1/jobs">Submit</button></form>'
    '<section class="panel" id="plan" aria-live="polite" hidden><h2>Plan</h2><div data-plan-result></div></section>'
)
SPREAD = {"p10": "2031-01-01T10:00:00Z", "p50": "2031-01-01T11:00:00Z", "p90": "2031-01-01T13:00:00Z"}
PLAN = {
    "name": "a",
    "gpus": 2,
    "placement": [{"server": "node1", "gpus": 2}],
    "iteration_s": 0.25,
    "plan": {
        "model": "llama3-8b",
        "gpu_type": "H100",
        "iteration": {"time_s": 0.25, "bottleneck": "pipeline_bubble", "tokens_per_s": 16384.2, "parts_s": {}},
        "memory": {"peak_bytes": 62384000000, "limit_bytes": 80 * 2**30, "stage": 1, "parts_bytes": {}},
        "warnings": ["the model is a guess"],
    },
    "fits_now": True,
    "placement_now": [{"server": "node1", "gpus": 2}],
    "start_at": SPREAD,
    "finish_at": SPREAD,
    "samples": 100,
    "source": "x",
    "reason": None,
    "prediction": {
        "unit": "iterations",
        "p10": 900,
        "p50": 1000,
        "p90": 1400,
        "source": "recurring",
        "model_version": None,
    },
}


def editor(tab: Page, site: Site) -> Any:
    site.routes["GET /v1/openapi.json"] = lambda _: json_answer({"components": {"schemas": SCHEMAS}})
    site.show("submit", SUBMIT)
    tab.goto(site.url + "submit")
    text = tab.get_by_role("textbox", name="The job as YAML")
    expect(tab.locator("#editor")).to_have_attribute("data-mounted", "")
    return text


def retype(tab: Page, text: Any, lines: str) -> None:
    text.click()
    tab.keyboard.press("Control+a")
    tab.keyboard.press("Delete")
    tab.keyboard.insert_text(lines)


def test_the_editor_completes_keys_and_values_of_the_schema(tab: Page, site: Site) -> None:
    text = editor(tab, site)
    retype(tab, text, "name: a\n")
    tab.keyboard.type("lau")
    expect(tab.get_by_role("option", name="launch")).to_be_visible()
    tab.keyboard.press("Escape")
    retype(tab, text, "launch:\n  schedule: ")
    tab.keyboard.press("Control+Space")
    expect(tab.get_by_role("option", name="gpipe")).to_be_visible()
    tab.keyboard.press("Escape")
    assert serious_faults(tab) == []


def test_a_plan_is_shown_before_anything_is_submitted(tab: Page, site: Site) -> None:
    site.routes["POST /v1/plans"] = lambda _: json_answer({"made_at": "2031-01-01T10:00:00Z", "plans": [PLAN]})
    site.routes["POST /v1/jobs"] = lambda _: json_answer({"id": 41}, 201)
    site.show("jobs/41", "<h1>Job 41</h1>", root="../")
    editor(tab, site)
    tab.get_by_role("button", name="Plan").click()
    plan = tab.locator("#plan")
    expect(plan).to_contain_text("1,000 iterations80%: 900 – 1,400; recurring")
    expect(plan).to_contain_text("2 GPUs on node1")
    expect(plan).to_contain_text("1 Jan 2031, 20:0080%: 1 Jan 2031, 19:00 – 1 Jan 2031, 22:00")
    expect(plan).to_contain_text("58.1 GiBof 80 GiB of H100; most in stage 1")
    expect(plan).to_contain_text("250 mslimited by pipeline bubble; 16,384 tokens/s")
    expect(plan.locator(".warn")).to_have_text("the model is a guess")
    assert serious_faults(tab) == []
    assert next(each for each in site.requests if each.path == "/v1/plans").json() == {"name": "a", "gpus": 2}
    tab.get_by_role("button", name="Submit").click()
    tab.wait_for_url(site.url + "jobs/41")


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ([{"server": "node1", "gpus": 2}], "2 GPUs on node1free now"),
        ([{"server": "node2", "gpus": 2}], "2 GPUs on node1free now: 2 GPUs on node2"),
        ([], "2 GPUs on node1not free now"),
    ],
)
def test_a_plan_says_where_gpus_are_free(tab: Page, site: Site, now: list[dict[str, Any]], told: str) -> None:
    plans = [PLAN | {"fits_now": bool(now), "placement_now": now}]
    site.routes["POST /v1/plans"] = lambda _: json_answer({"made_at": "2031-01-01T10:00:00Z", "plans": plans})
    editor(tab, site)
    tab.get_by_role("button", name="Plan").click()
    expect(tab.locator("#plan .card", has_text="Best placement")).to_have_text(f"Best placement{told}")


def test_faults_name_their_line(tab: Page, site: Site) -> None:
    faults = [{"pointer": "/gpus", "detail": "must be at most 64"}, {"pointer": "/command", "detail": "is missing"}]
    site.routes["POST /v1/jobs"] = lambda _: json_answer({"detail": "The body is invalid.", "errors": faults}, 422)
    text = editor(tab, site)
    tab.get_by_role("button", name="Submit").click()
    alert = tab.get_by_role("alert")
    expect(alert).to_contain_text("Line 2: gpus: must be at most 64")
    expect(alert).to_contain_text("Line 1: command: is missing")
    retype(tab, text, "name: [a\n")
    tab.get_by_role("button", name="Submit").click()
    expect(alert).to_contain_text("The text is not YAML.")
    bomb = "a: &a [1, 1, 1, 1]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [[*c, *c], [*c, *c], [*c, *c], [*c, *c]]\n"
    retype(tab, text, bomb)
    tab.get_by_role("button", name="Submit").click()
    expect(alert).to_contain_text("alias")
    assert sum(each.method == "POST" for each in site.requests) == 1


CHARTS = (
    '<div id="progress" data-widget="chart"><script type="application/json">{"kind": "progress", "at": ["2031-01-01T10:00:00Z",'
    ' "2031-01-01T10:10:00Z", "2031-01-01T10:25:00Z"], "iteration": [0, 400, 900], "predicted": [900, 1000, 1400]}</script></div>'
    '<div id="scatter" data-widget="chart"><script type="application/json">{"kind": "scatter", "actual": [10, 1000, 30, 500],'
    ' "predicted": [12, 400, 31, 700]}</script></div>'
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_draw_and_say_the_same_in_words(tab: Page, site: Site, scheme: Any) -> None:
    tab.emulate_media(color_scheme=scheme)
    site.show("", CHARTS)
    tab.goto(site.url)
    expect(tab.locator("#progress canvas")).to_be_visible()
    expect(tab.locator("#progress")).to_contain_text(
        "900 iterations done. Predicted in all: 900, 1k, 1.4k (10%, 50%, 90%)."
    )
    expect(tab.locator("#scatter")).to_contain_text("4 jobs; 3 of them predicted within a factor of two")
    drawn = "id => new Set(document.querySelector(`#${id} canvas`).getContext('2d').getImageData(60, 20, 200, 160).data).size"
    assert all(tab.evaluate(drawn, name) > 8 for name in ("progress", "scatter"))
    tab.locator("#scatter summary").click()
    expect(tab.locator("#scatter tbody tr")).to_have_count(4)
    assert serious_faults(tab) == []


class Output:
    """A log as the API serves it. An answer ends where one of its files does."""

    def __init__(self, data: bytes, file_bytes: int = 1 << 30) -> None:
        self.data = data
        self._file_bytes = file_bytes

    def __call__(self, request: Request) -> Answer:
        asked = dict(part.split("=") for part in request.query.split("&"))
        offset = int(asked["offset"])
        start = max(len(self.data) + offset, 0) if offset < 0 else offset
        start = min(start, len(self.data))
        part = self.data[start : min(start + int(asked["limit"]), (start // self._file_bytes + 1) * self._file_bytes)]
        sizes = {"Sooner-Next-Offset": start + len(part), "Sooner-Log-Bytes": len(self.data)}
        return Answer(part, kind="text/plain; charset=utf-8", headers={name: str(size) for name, size in sizes.items()})


def log(tab: Page, site: Site, output: Output, stream: str = "follow") -> Any:
    site.routes["GET /v1/jobs/1/logs"] = output
    site.show("", f'<div id="log" data-widget="log" data-source="./v1/jobs/1/logs" data-stream="{stream}"></div>')
    tab.goto(site.url)
    expect(tab.locator("#log")).to_have_attribute("data-mounted", "")
    return tab.locator("#log .log")


def test_a_log_is_followed_and_searched(tab: Page, site: Site) -> None:
    output = Output("".join(f"step {number} loss 0.5\n" for number in range(20)).encode() + b"half a li")
    lines = log(tab, site, output)
    expect(lines).to_contain_text("half a li")
    output.data += b"ne\nthe end\n"
    expect(lines).to_contain_text("half a line")
    expect(lines).to_contain_text("the end")
    assert lines.locator(".line").count() == 22
    tab.get_by_label("Search the output").fill("step 1")
    expect(tab.locator("#log [role=status]")).to_have_text("1 of 11 lines")
    tab.keyboard.press("Enter")
    expect(tab.locator("#log [role=status]")).to_have_text("2 of 11 lines")
    output.data += b"step 1 once more\n"
    expect(tab.locator("#log [role=status]")).to_have_text("2 of 12 lines")
    assert serious_faults(tab) == []


def test_hostile_output_is_text_and_bounded(tab: Page, site: Site) -> None:
    data = (
        b"<script>throw 1</script>\x1b[31mred\x07\n"
        + "\u202eexe.gnp\n".encode()
        + b"\xff\xfe\n"
        + b"x" * 200_000
        + b"\n"
    )
    lines = log(tab, site, Output(data))
    expect(lines).to_contain_text("<script>throw 1</script>␛[31mred␇")
    expect(lines).to_contain_text("⟨U+202E⟩exe.gnp")
    expect(lines).to_contain_text("… 196,000 more bytes")
    assert lines.locator("script").count() == 0


def test_a_long_log_starts_at_its_end_and_keeps_few_lines(tab: Page, site: Site) -> None:
    lines = log(tab, site, Output("".join(f"{number}\n" for number in range(200_000)).encode()))
    expect(lines).to_contain_text("199999")
    assert lines.locator(".line").count() <= 5000
    first = lines.locator(".line").first.inner_text()
    tab.get_by_role("button", name="Earlier").click()
    until(tab, lambda: lines.locator(".line").first.inner_text() != first)
    assert lines.locator(".line").count() <= 5000


def test_a_log_in_several_files_is_shown_to_its_end(tab: Page, site: Site) -> None:
    text = "".join(f"step {number}\n" for number in range(20_000))
    lines = log(tab, site, Output(text.encode() + b"Traceback: the end\n", file_bytes=100_000), stream="")
    expect(lines).to_contain_text("Traceback: the end")


def numbers(lines: Any) -> list[int]:
    return [int(text) for text in lines.locator(".line").all_inner_texts()]


def test_earlier_lines_join_those_that_are_shown(tab: Page, site: Site) -> None:
    text = "".join(f"{number}\n" for number in range(200_000))
    lines = log(tab, site, Output(text.encode(), file_bytes=100_000))
    assert numbers(lines) == list(range(195_000, 200_000))
    for _ in range(2):
        tab.get_by_role("button", name="Earlier").click()
    until(tab, lambda: lines.locator(".line").first.inner_text() == "191000")
    assert numbers(lines) == list(range(191_000, 196_000))
    expect(tab.locator("#log [role=status]")).to_contain_text("of 1,288,890")
    tab.get_by_label("Follow").check()
    expect(lines).to_contain_text("199999")
    assert numbers(lines) == list(range(195_000, 200_000))


def test_another_attempt_has_a_log_of_its_own(tab: Page, site: Site) -> None:
    output = Output(b"of the first attempt\n" * 9)
    lines = log(tab, site, output)
    expect(lines.locator(".line")).to_have_count(9)
    output.data = b"of the second attempt\n"
    expect(lines.locator(".line")).to_have_text(["of the second attempt"])


def test_a_polled_page_is_refreshed_until_it_no_longer_asks(tab: Page, site: Site) -> None:
    count = 0

    def main() -> str:
        nonlocal count
        count += 1
        return f'<p id="state">{count}</p>' + ('<p data-poll="1">under way</p>' if count < 3 else "")

    site.show("", main)
    started_s = time.monotonic()
    tab.goto(site.url)
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "live")
    expect(tab.locator("#state")).to_have_text("3")
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "still")
    assert time.monotonic() - started_s > 1.9


def test_a_polled_page_says_that_the_service_is_away(tab: Page, site: Site) -> None:
    site.show("", '<p data-poll="1">under way</p>')
    tab.goto(site.url)
    site.stop()
    state = tab.locator("[data-live-state]")
    expect(state).to_contain_text("Not connected. This is as of")
    site.start()
    expect(state).to_have_attribute("data-live-state", "live")


def test_a_key_is_shown_once(tab: Page, site: Site) -> None:
    site.routes["POST /v1/keys"] = lambda _: json_answer({"key": "sk-1"}, 201)
    form = '<form data-action="POST v1/keys" data-show="key" data-then="stay">'
    form += "<output data-result></output><button>Create</button></form>"
    site.show("", form)
    tab.goto(site.url)
    tab.get_by_role("button", name="Create").click()
    expect(tab.locator("[data-result]")).to_have_text("sk-1")
