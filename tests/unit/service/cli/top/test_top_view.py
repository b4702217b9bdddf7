"""What ``sooner top`` shows: the strip, the map, the tables, on any terminal and whatever jobs are called."""

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from service.cli.top.app import Top
from service.cli.top.data import PAGE_JOBS, SCAN_JOBS
from tests.unit.service.cli.top import fake_service
from tests.unit.service.cli.top.driven import (
    answer,
    drive,
    screen,
    until,
    until_focused,
    until_job,
    until_overview,
    until_shown,
)
from tests.unit.service.cli.top.fake_service import FakeService, queued_job, running_job

HOSTILE = "\x1b[31mred\x07 \u202egnihton [bold red]loud[/] \x9b2J\r\n<b>"
VISIBLE = "?[31mred? ?gnihton [bold red]loud[/] ?2J??<b>"


def small() -> FakeService:
    """Two servers, two running jobs, three waiting ones."""
    running = [running_job(11), running_job(12, gpus=6, user="ben", iterations_done=4400.0, servers=["s0001", "s0002"])]
    return FakeService(running, [queued_job(number) for number in (21, 22, 23)])


def test_the_overview_shows_utilisation_queue_loop_jobs_and_their_forecasts() -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        text = await until_shown(
            pilot,
            "10/16 busy 62%",
            "6 free",
            "3 waiting",
            "oldest waits 5 h 12 min (job 21)",
            "Cycle 1,234",
            "Policy asrpt",
            "Leader head-1",
            "Model m-12, 3 d 11 h old",
            "1-3 of 3, in the order of asrpt",
            " train-12 ",
            " sweep-23 ",
        )
        lines = text.splitlines()
        assert any("s0001 AAAABBBB" in line and "s0002 BB······" in line for line in lines), text
        first = next(line for line in lines if " train-11 " in line)
        assert first.startswith("A"), "the letter of the map stands before the job"
        assert "75%" in first and "3,000/4,000" in first and "2 h 10 min" in first
        assert "110%" in next(line for line in lines if " train-12 " in line), "longer than predicted"
        order = [line.split()[1] for line in lines if " sweep-" in line]
        assert order == ["21", "22", "23"]
        assert "resources" in next(line for line in lines if " sweep-21 " in line)

    drive(small(), look, (150, 40))


def test_what_needs_attention_and_an_unhealthy_loop_are_said() -> None:
    service = small()
    texts = ["1 server is down: s0008.", "Predictions have drifted.", "The queue is paused."]
    service.overview = {
        "attention": [{"kind": "drift", "text": text, "link": "cluster"} for text in texts],
        "cycle": {"number": 7, "at": None, "age_s": None, "healthy": False, "duration_s": None},
        "leader": None,
        "model": None,
    }

    async def look(app: Top, pilot: Pilot[None]) -> None:
        attention = ("! 1 server is down: s0008.", "! Predictions have drifted. (and 1 more)")
        await until_shown(pilot, *attention, "Cycle 7, NOT HEALTHY", "Leader none")

    drive(service, look)


def test_servers_without_a_leader_and_without_jobs_are_shown() -> None:
    service = FakeService()
    service.overview = {
        "gpus": {"total": 0, "usable": 0, "busy": 0, "free": None, "down": 0, "drained": 0, "reserved": 0}
    }

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until_shown(pilot, "0/0 busy 0%", "no job waits")
        await pilot.press("k", "enter", "p", "o", "r", "f6")
        await until_focused(pilot, OptionList)
        await pilot.press("escape")
        await until_overview(pilot)
        await pilot.press("f5", "down", "up", "tab", "n")
        await until_shown(pilot, "no job waits")

    drive(service, look)
    assert service.changes == []


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (60, 20), (40, 12), (20, 6)])
def test_every_size_keeps_its_lines_within_the_terminal(size: tuple[int, int]) -> None:
    service = small()
    service.servers = 40

    async def look(app: Top, pilot: Pilot[None]) -> None:
        for width, height in (size, (90, 30), size):
            await pilot.resize_terminal(width, height)
            await until(pilot, lambda: app.queue.size.width == width, "the new layout")  # noqa: B023
            await pilot.pause()
            lines = screen(app).split("\n")
            assert len(lines) == height
            assert max(map(len, lines)) <= width
        if size >= (60, 20):
            await until_shown(pilot, "sweep-21", "train-11", "F1 Help")

    drive(service, look, size)


def test_hostile_names_are_text_in_every_view() -> None:
    service = FakeService(
        [running_job(11, name=HOSTILE, user="[red]x[/red]", servers=[HOSTILE])],
        [queued_job(21, name=HOSTILE, user="[@click=app.q]q", reason_sentence=HOSTILE)],
        log=HOSTILE.encode() + b"\n\x1b]0;title\x07[/nothing]\nstep 1\rstep 2\r\n" + b"x" * 100_000,
    )
    service.overview = {"attention": [{"kind": "drift", "text": HOSTILE, "link": ""}], "policy": HOSTILE}

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("f5")
        assert_plain(await until_shown(pilot, VISIBLE, "[@click=app.q]q: 1 job"))
        await pilot.press("f5", "k")
        assert_plain(await until_shown(pilot, "Cancel job 21", "?[31mred?"))
        await pilot.press("n")
        await until_overview(pilot)
        await answer(pilot, "slash", "11")
        await until_job(pilot, 11)
        await until_overview(pilot)
        await pilot.press("enter")
        text = await until_shown(pilot, f"Job 11  {VISIBLE}", "Log, last lines", "?]0;title?[/nothing]", "step 2")
        assert "step 1" not in text
        assert_plain(text)

    drive(service, look, (200, 60))


def assert_plain(text: str) -> None:
    """No character of the screen controls a terminal or the direction of text."""
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


def test_a_long_queue_is_read_a_page_at_a_time() -> None:
    service = FakeService([], [queued_job(number) for number in range(1, 10_001)])

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until_shown(pilot, "1-100 of 10,000")
        assert len(app.queue.jobs) == PAGE_JOBS
        await pilot.press("right_square_bracket")
        await until_shown(pilot, "101-200 of 10,000")
        assert app.queue.jobs[0] == 101
        app.queue.move_cursor(row=PAGE_JOBS - 1)
        await pilot.press("down")
        await until_shown(pilot, "201-300 of 10,000")
        await until_job(pilot, 201)
        await pilot.press("up")
        await until_shown(pilot, "101-200 of 10,000")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until_shown(pilot, "1-100 of 10,000")

    drive(service, look)
    pages = [line for line in service.asked if "/v1/queue/jobs" in line]
    assert pages and all(f"limit={PAGE_JOBS}" in line for line in pages)
    looks = [line for line in service.asked if "/v1/overview" in line]
    assert len(pages) <= len(looks), "a look reads one page"


def test_a_filter_reads_on_until_it_has_a_page_and_goes_on_from_there() -> None:
    queue = [queued_job(number, name="rare" if number % 100 == 0 else "common") for number in range(1, 10_001)]
    service = FakeService([running_job(20_001)], queue)

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await answer(pilot, "f4", "RARE")
        await until_shown(pilot, "50 jobs with 'RARE' among 1-5,000 of 10,000", "0 of 1 job")
        assert app.queue.jobs[:2] == [100, 200]
        await pilot.press("right_square_bracket")
        await until_shown(pilot, "among 5,001-10,000 of 10,000")
        assert app.queue.jobs[0] == 5100
        await pilot.press("escape")
        await until_shown(pilot, "1-100 of 10,000")

    drive(service, look)
    assert all(
        f"limit={SCAN_JOBS}" in line or f"limit={PAGE_JOBS}" in line for line in service.asked if "/queue/jobs" in line
    )


def test_one_is_counted_as_one_and_a_reason_that_repeats_the_cause_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    event, attempt = fake_service._event, fake_service._attempt
    monkeypatch.setattr(fake_service, "_event", lambda job: event(job) | {"cause": "started", "reason": "started"})
    monkeypatch.setattr(
        fake_service, "_attempt", lambda job: attempt(job) | {"state": "preempted", "reason": "preempted"}
    )
    service = FakeService([running_job(11, gpus=1)], [queued_job(21), queued_job(22)])

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await answer(pilot, "f4", "sweep-21")
        await until_shown(pilot, "1 job with 'sweep-21' among 1-2 of 2")
        await answer(pilot, "f4", "")
        app.running.focus()
        await pilot.press("enter")
        text = await until_shown(pilot, "; 1 GPU on ", "-> starting    started", "1  preempted  from")
        assert "started, started" not in text
        await pilot.press("k")
        await until_shown(pilot, "It holds 1 GPU.")

    drive(service, look)


def test_the_strip_is_drawn_while_the_page_of_a_job_has_no_widgets_yet() -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        app._open(11)
        app._show_strip()  # what the timer does, before the page is composed
        await until_shown(pilot, "Job 11  train-11", "; 4 GPUs on ")

    drive(small(), look)


def test_a_page_that_is_gone_and_a_cursor_of_another_service_lead_back() -> None:
    service = FakeService([], [queued_job(number) for number in range(1, 301)])

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("right_square_bracket")
        await until_shown(pilot, "101-200 of 300")
        del service.queue[50:]
        app.look()
        await until_shown(pilot, "1-50 of 50")
        service.queue += [queued_job(number) for number in range(400, 600)]
        app.look()
        await until_shown(pilot, "of 250")
        await pilot.press("right_square_bracket")
        await until_shown(pilot, "101-200 of 250")
        service.refuses_cursors = True
        app.look()
        await until_shown(pilot, "1-100 of 250")

    drive(service, look)


def test_what_the_order_alone_does_not_show_stands_beside_it_and_not_beside_another_order() -> None:
    service = small()
    service.note = "No job may pass the first one that cannot start.\x1b"

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until_shown(pilot, "in the order of asrpt  No job may pass the first one that cannot start.?")
        await pilot.press("I")
        assert "No job may pass" not in await until_shown(pilot, "1-3 of 3, this page inverted")

    drive(service, look)


def test_new_data_keep_the_cursor_on_its_job() -> None:
    service = FakeService([], [queued_job(number) for number in range(1, 60)])

    async def look(app: Top, pilot: Pilot[None]) -> None:
        app.queue.move_cursor(row=9)
        await until_job(pilot, 10)
        del service.queue[:4]
        app.look()
        await until(pilot, lambda: app.queue.jobs[0] == 5, "the new queue")
        await until_job(pilot, 10)
        service.queue.insert(0, queued_job(99))
        app.look()
        await until(pilot, lambda: app.queue.jobs[0] == 99, "the new queue")
        await until_job(pilot, 10)
        del service.queue[1:]
        app.look()
        await until(pilot, lambda: app.queue.jobs == [99], "the new queue")
        await until_job(pilot, 99)

    drive(service, look)


def test_the_map_tells_free_unusable_hidden_and_chosen_gpus_apart() -> None:
    service = small()
    service.cells = {("s0002", 6): ("unusable", None), ("s0002", 7): ("held", None)}

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until_shown(pilot, "s0002 BB····x#")
        app.running.focus()
        await pilot.press("down")
        await until(pilot, lambda: _reversed_cells(app) == "BBBBBB", "the GPUs of the chosen job in reverse")

    drive(service, look)


def _reversed_cells(app: Top) -> str:
    """The cells of the map that are shown in reverse."""
    strips = app.screen._compositor.render_strips()
    top, bottom = app.map.region.y, app.map.region.bottom
    return "".join(
        segment.text
        for strip in strips[top:bottom]
        for segment in strip
        if segment.style is not None and segment.style.reverse
    )
