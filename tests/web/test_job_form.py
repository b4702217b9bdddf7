"""The form of a job beside the editor: one document, which both show."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import serious_faults
from tests.web.site import Site, json_answer

NAMES = (
    *(
        "name",
        "command",
        "gpus",
        "gpu_type",
        "project",
        "priority",
        "walltime",
        "after",
        "checkpoint",
        "array",
        "image",
    ),
)


def show(tab: Page, site: Site, text: str) -> Any:
    site.routes["GET /v1/openapi.json"] = lambda _: json_answer({"components": {"schemas": {}}})
    inputs = "".join(
        f'<label for="job-{name}">{name}</label><input id="job-{name}" name="{name}" disabled'
        f' data-example="such as" aria-describedby="h-{name}" data-hint="h-{name}"><p id="h-{name}">hint</p>'
        for name in NAMES
    )
    site.show(
        "submit",
        f'<h1>Submit</h1><div id="job-form" data-widget="job-form" data-text="#yaml">{inputs}</div>'
        '<form id="submit" data-submit><div id="editor" data-widget="editor" data-schema="./v1/openapi.json">'
        f'<label for="yaml">The job as YAML</label><textarea id="yaml">{text}</textarea></div>'
        '<p data-errors role="alert"></p><button data-plan="v1/plans">Plan</button>'
        '<button data-submit-to="v1/jobs">Submit</button></form>',
    )
    tab.goto(site.url + "submit")
    for widget in ("job-form", "editor"):
        expect(tab.locator(f"#{widget}")).to_have_attribute("data-mounted", "")
    return tab.get_by_role("textbox", name="The job as YAML")


def text_of(tab: Page) -> str:
    return str(tab.evaluate("document.getElementById('yaml').value"))


def fill(tab: Page, name: str, text: str) -> None:
    field = tab.locator(f"#job-{name}")
    field.fill(text)
    field.blur()


START = "# mine\nname: a  # short\ncommand: [python, train.py]\nlabels: {team: red}\n"


def test_the_form_changes_its_keys_and_leaves_the_rest(tab: Page, site: Site) -> None:
    editor = show(tab, site, START)
    expect(tab.locator("#job-command")).to_have_value("python train.py")
    for name, text in (("name", "b"), ("gpus", "4"), ("walltime", "1 d 2 h 30 min"), ("after", "3, 5")):
        fill(tab, name, text)
    fill(tab, "command", """python train.py --note "two words" 'it'"'"'s'""")
    lines = text_of(tab).splitlines()
    assert lines[:2] == ["# mine", "name: b # short"]
    assert {"labels: {team: red}", "gpus: 4", "walltime_s: 95400", "after: [3, 5]"} <= set(lines)
    sent: list[Any] = []
    site.routes["POST /v1/jobs"] = lambda request: (sent.append(request.json()), json_answer({"id": 7}, 201))[1]
    site.show("jobs/7", "<h1>Job 7</h1>", root="../")
    expect(editor).to_contain_text("walltime_s: 95400")
    tab.get_by_role("button", name="Submit").click()
    tab.wait_for_url(site.url + "jobs/7")
    assert sent == [
        {
            "name": "b",
            "command": ["python", "train.py", "--note", "two words", "it's"],
            "labels": {"team": "red"},
            "gpus": 4,
            "walltime_s": 95400,
            "after": [3, 5],
        }
    ]


def test_the_form_shows_what_the_text_says(tab: Page, site: Site) -> None:
    editor = show(tab, site, START)
    editor.click()
    tab.keyboard.press("Control+a")
    tab.keyboard.insert_text(
        "name: 7\ngpu_types: [H100, A100]\ncheckpoint_period_s: null\nwalltime_s: 5415.5\narray: {count: 3, max_running: 2}\n"
        "after: [{job: 3, when: any}]\ncommand: [echo, 'a b', \"it's\"]\n"
    )
    expected = {
        "name": "7",
        "gpu_type": "H100, A100",
        "checkpoint": "never",
        "walltime": "1 h 30 min 15.5 s",
        "array": "3",
        "command": """echo 'a b' 'it'"'"'s'""",
        "gpus": "",
    }
    for name, value in expected.items():
        expect(tab.locator(f"#job-{name}")).to_have_value(value)
    after = tab.locator("#job-after")
    expect(after).to_be_disabled()
    expect(after).to_have_attribute("placeholder", "as in the text")
    fill(tab, "array", "4")
    fill(tab, "gpu_type", "H100")
    assert "count: 4, max_running: 2" in text_of(tab)
    assert "gpu_type: H100" in text_of(tab)
    assert "gpu_types" not in text_of(tab)
    fill(tab, "checkpoint", "")
    fill(tab, "array", "")
    assert "checkpoint" not in text_of(tab)
    assert "array" not in text_of(tab)


def test_a_change_of_the_form_can_be_undone_in_the_editor(tab: Page, site: Site) -> None:
    editor = show(tab, site, START)
    fill(tab, "priority", "5")
    expect(editor).to_contain_text("priority: 5")
    editor.click()
    tab.keyboard.press("Control+z")
    expect(tab.locator("#job-priority")).to_have_value("")
    assert "priority" not in text_of(tab)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("walltime", "90", "must be a duration such as 2 h 30 min (got 90)"),
        ("checkpoint", "often", "must be a duration such as 2 h 30 min, or never (got often)"),
        ("gpus", "1.5", "must be a whole number of at least 1 (got 1.5)"),
        ("after", "first", "must be numbers of jobs, separated by commas (got first)"),
        ("command", "python 'x", "has a quote that is not closed"),
        ("command", "cd x && ./train", "'&' needs a shell, and none is used; write sh -c '...'"),
        ("command", 'echo "$HOME"', "'$' needs a shell, and none is used; write sh -c '...'"),
    ],
)
def test_a_field_that_is_wrong_says_so_and_changes_nothing(
    tab: Page, site: Site, name: str, text: str, problem: str
) -> None:
    show(tab, site, START)
    fill(tab, name, text)
    expect(tab.locator(f"#job-{name}-error")).to_have_text(problem)
    expect(tab.locator(f"#job-{name}")).to_have_attribute("aria-describedby", f"job-{name}-error")
    assert text_of(tab) == START
    assert serious_faults(tab) == []
    fill(tab, name, "")
    expect(tab.locator(f"#job-{name}-error")).to_have_count(0)


@pytest.mark.parametrize(
    ("text", "note"),
    [("name: [a\n", "not YAML"), ("jobs:\n- name: a\n", "several jobs"), ("- name: a\n", "several jobs")],
)
def test_the_form_rests_while_the_text_is_not_one_job(tab: Page, site: Site, text: str, note: str) -> None:
    show(tab, site, text)
    expect(tab.locator("#job-form [role=status]")).to_contain_text(note)
    expect(tab.locator("#job-name")).to_be_disabled()
    assert text_of(tab) == text


def test_a_command_may_be_one_text(tab: Page, site: Site) -> None:
    editor = show(tab, site, "")
    sent: list[Any] = []
    site.routes["POST /v1/jobs"] = lambda request: (sent.append(request.json()), json_answer({"id": 7}, 201))[1]
    editor.click()
    tab.keyboard.insert_text("jobs:\n- command: python a.py | tee log\n- command: sh -c 'a && b'")
    tab.get_by_role("button", name="Submit").click()
    fault = "Line 2: jobs.0.command: '|' needs a shell, and none is used; write sh -c '...'"
    expect(tab.locator("[data-errors]")).to_contain_text(fault)
    assert sent == []
    tab.keyboard.press("Control+a")
    tab.keyboard.insert_text("command: python train.py --note 'two words' cost=\\$5")
    expect(tab.locator("#job-command")).to_have_value("python train.py --note 'two words' cost=\\$5")
    editor.click()
    tab.keyboard.press("Control+a")
    tab.keyboard.insert_text("command: |\n  python train.py --note 'two words' \\\n    cost=\\$5\n")
    expect(tab.locator("#job-command")).to_have_attribute("placeholder", "as in the text")
    site.show("jobs/7", "<h1>Job 7</h1>", root="../")
    tab.get_by_role("button", name="Submit").click()
    tab.wait_for_url(site.url + "jobs/7")
    assert sent == [{"command": ["python", "train.py", "--note", "two words", "cost=$5"]}]


def test_an_empty_text_becomes_a_job(tab: Page, site: Site) -> None:
    show(tab, site, "")
    fill(tab, "array", "3")
    fill(tab, "name", "first")
    assert text_of(tab) == "array:\n  count: 3\nname: first\n"
    fill(tab, "array", "")
    fill(tab, "name", "")
    assert text_of(tab) == ""
