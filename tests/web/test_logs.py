"""Logs of real jobs on a real service."""

import sys
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.harness import LiveService
from tests.web.live import sign_in, wait_live

HOSTILE = r"""
import sys
out = sys.stdout.buffer
out.write(b"<img src=x onerror=\"document.title=1\"> <script>document.title=2</script>\n")
out.write(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\r10%\r20%\r\n")
out.write("\N{RIGHT-TO-LEFT OVERRIDE}exe.gnp \N{ZERO WIDTH NO-BREAK SPACE}\n".encode() + b"\xff\xfe\x00\n")
out.write(b"y" * (1 << 20) + b"\nthe end\n")
"""
FOLLOWED = """
import pathlib, sys, time
print("before", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("after", flush=True)
"""


def test_a_hostile_log_is_text_and_its_long_line_is_cut(browser_tab: Page, workshop: LiveService) -> None:
    tab = browser_tab
    job = workshop.submit(name="hostile", gpus=1, command=[sys.executable, "-c", HOSTILE])
    workshop.until_state(job, "succeeded")
    sign_in(tab, workshop, f"jobs/{job}")
    title = tab.title()
    lines = tab.locator("#log .line")
    expect(lines).to_have_text(["the end"])
    earlier = tab.get_by_role("button", name="Earlier")
    for _ in range(5):
        # 256 KiB at a time: the long line comes in pieces.
        before = lines.count()
        earlier.click()
        expect(lines).not_to_have_count(before)
    expect(earlier).to_be_hidden()
    expect(lines.nth(0)).to_have_text('<img src=x onerror="document.title=1"> <script>document.title=2</script>')
    expect(lines.nth(1)).to_have_text("␛[31mred␛[0m ␛]0;title␇ ␛[2J␍10%␍20%")
    expect(lines.nth(2)).to_have_text("⟨U+202E⟩exe.gnp ⟨U+FEFF⟩")
    expect(lines.nth(3)).to_have_text("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}␀")
    expect(lines.nth(5)).to_contain_text("258,144 more bytes")
    assert max(map(len, lines.all_inner_texts())) < 4100
    assert tab.locator("#log").locator("img, script").count() == 0
    assert tab.title() == title
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_output_of_a_running_job_is_followed(browser_tab: Page, workshop: LiveService, tmp_path: Path) -> None:
    tab = browser_tab
    go = tmp_path / "go"
    job = workshop.submit(name="followed", gpus=1, command=[sys.executable, "-c", FOLLOWED, str(go)])
    workshop.until_state(job, "running")
    sign_in(tab, workshop, f"jobs/{job}")
    wait_live(tab)
    lines = tab.locator("#log .line")
    expect(lines).to_have_text(["before"])
    go.touch()
    expect(lines).to_have_text(["before", "after"])
    expect(tab.locator("h1")).to_contain_text("succeeded")
