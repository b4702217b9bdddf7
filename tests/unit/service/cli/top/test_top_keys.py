"""The keys of ``sooner top``: what they change here and at the service, who may press them, and what follows a failure."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from service.cli.top import app as view
from service.cli.top.app import Top
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


def cluster() -> FakeService:
    """A running job of ben and a queue of three users."""
    return FakeService([running_job(11, user="ben")], [queued_job(number) for number in range(21, 27)])


@pytest.mark.parametrize("key", ["f9", "k"])
def test_a_job_is_cancelled_only_after_a_yes(key: str) -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("down", key)
        await until_shown(pilot, "Cancel job 22, sweep-22, of ben?")
        for no in ("n", "escape", "enter", "q"):
            await pilot.press(no)
            await until_overview(pilot)
            assert service.changes == []
            await pilot.press(key)
            await until_shown(pilot, "Cancel job 22")
        await pilot.press("y")
        await until(pilot, lambda: service.changes, "the request")
        await until_shown(pilot, "cancel of job 22: accepted")

    drive(service, look)
    assert [path for path, _ in service.changes] == ["POST /v1/jobs/22/cancel"]


def test_a_running_job_is_cancelled_with_a_warning_about_its_gpus() -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        app.running.focus()
        await pilot.press("k")
        await until_shown(pilot, "It holds 4 GPUs.")
        await pilot.press("y")
        await until(pilot, lambda: service.changes, "the request")

    drive(service, look)
    assert service.changes[0][0] == "POST /v1/jobs/11/cancel"


def test_hold_release_and_priority_are_sent() -> None:
    service = cluster()
    service.queue[1]["held"] = True

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("o", "r", "f8", "down", "f8")
        await until(pilot, lambda: len(service.changes) == 4, "four requests")
        await answer(pilot, "f7", "-5x")
        await until(pilot, lambda: len(service.changes) == 5, "the priority")
        await pilot.press("p")
        await until_focused(pilot, Input)
        await pilot.press("escape")
        await until_overview(pilot)

    drive(service, look)
    assert sorted(path for path, _ in service.changes[:4]) == [
        "POST /v1/jobs/21/hold",
        "POST /v1/jobs/21/hold",
        "POST /v1/jobs/21/release",
        "POST /v1/jobs/22/release",
    ]
    assert service.changes[4] == ("PUT /v1/jobs/22/priority", '{"priority":-5}')


def test_a_refusal_is_said_and_changes_nothing_else() -> None:
    service = cluster()
    service.refuses["/v1/jobs/21/hold"] = (409, "Job 21 has ended.\x1b[31m [red]")

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("o")
        await until_shown(pilot, "Job 21 has ended.?[31m [red]", "6 waiting")

    drive(service, look)


@pytest.mark.parametrize(
    ("role", "user", "shown", "works"),
    [
        ("viewer", "ben", False, False),
        ("submitter", "ada", True, False),
        ("submitter", "ben", True, True),
        ("operator", "ada", True, True),
        ("admin", None, True, True),
    ],
)
def test_changes_are_offered_as_far_as_the_role_goes(role: str, user: str | None, shown: bool, works: bool) -> None:
    service = cluster()
    service.role, service.user = role, user

    async def look(app: Top, pilot: Pilot[None]) -> None:
        app.running.focus()
        await until(pilot, lambda: app.target() == service.running[0], "the running job")
        await until_shown(pilot, "F9 Cancel" if shown else "F1 Help")
        assert ("F9 Cancel" in screen(app)) is shown
        await pilot.press("k")
        if works:
            await until_shown(pilot, "Cancel job 11")
        else:
            assert len(app.screen_stack) == 1
        await pilot.press("n", "o")
        await pilot.pause()

    drive(service, look)
    if not works:
        assert service.changes == []


def test_search_moves_to_a_match_goes_on_and_opens_a_job_by_its_number() -> None:
    service = cluster()
    service.ended.append(running_job(77, name="early", state="succeeded"))

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await answer(pilot, "slash", "cleo")
        await until_job(pilot, 23)
        await pilot.press("n")
        await until_job(pilot, 26)
        await pilot.press("n")
        await until_job(pilot, 23)
        await answer(pilot, "f3", "train-11")
        await until_job(pilot, 11)
        await answer(pilot, "f3", "nowhere")
        await until_shown(pilot, "Nothing on this page has 'nowhere'")
        await answer(pilot, "f3", "77")
        await until_shown(pilot, "Job 77  early  succeeded")
        await pilot.press("escape")
        await until_overview(pilot)
        await answer(pilot, "f3", "78")
        await until_shown(pilot, "There is no job 78")
        await until_overview(pilot)

    drive(service, look)


def test_sorting_inverting_and_grouping_change_the_page_that_is_shown() -> None:
    service = cluster()
    for gpus, job in enumerate(service.queue, start=1):
        job["gpus"] = gpus

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("f6")
        await until_shown(pilot, "Sort this page of the queue by")
        await until_focused(pilot, OptionList)
        await pilot.press(*["down"] * 5, "enter")
        await until_shown(pilot, "1-6 of 6, this page by GPUS")
        assert app.queue.jobs == [26, 25, 24, 23, 22, 21]
        await pilot.press("I")
        await until_shown(pilot, "by GPUS, inverted")
        assert app.queue.jobs == [21, 22, 23, 24, 25, 26]
        await pilot.press("less_than_sign")
        await until_focused(pilot, OptionList)
        await pilot.press("home", "enter")
        await until_overview(pilot)
        await pilot.press("I")
        await until_shown(pilot, "in the order of asrpt")
        await pilot.press("f5")
        await until_shown(pilot, "cleo: 2 jobs")
        assert app.queue.jobs == [21, 24, 22, 25, 23, 26]
        app.queue.move_cursor(row=0)
        assert app.target() is None, "the head of a user is no job"
        await pilot.press("k", "o", "enter", "t")
        await until(pilot, lambda: app.queue.jobs == [21, 22, 23, 24, 25, 26], "the order of the policy")

    drive(service, look)
    assert service.changes == []


def test_arrows_lead_through_both_tables_and_enter_opens_a_job_and_back() -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("up")
        await until(pilot, lambda: app.running.has_focus, "the upper table")
        await pilot.press("down")
        await until(pilot, lambda: app.queue.has_focus, "the lower table")
        await pilot.press("down", "enter")
        await until_shown(
            pilot,
            "Job 22  sweep-22  queued",
            "It needs 8 GPUs on at most 2 servers",
            "Will preempt job 12 at ",
            "75% of the predicted total, 3,000 of 4,000 iterations",
            "from 200 sampled futures",
            "There is no prediction",
            "iterations 0 to 3,000",
            "queued -> starting",
            "epoch 2",
        )
        service.log += b"epoch 3\n"
        app.look()
        await until_shown(pilot, "epoch 3")
        await pilot.press("f9")
        await until_shown(pilot, "Cancel job 22")
        await pilot.press("y")
        await until(pilot, lambda: service.changes == [("POST /v1/jobs/22/cancel", "")], "the request")
        await pilot.press("escape")
        await until_shown(pilot, "1-6 of 6")
        await until_job(pilot, 22)

    drive(service, look)


def test_the_story_says_why_a_part_is_missing() -> None:
    service = cluster()
    service.refuses["/v1/jobs/11/logs"] = (403, "Only the owner may read the output.")
    service.refuses["/v1/jobs/11/forecast"] = (409, "The queue is too long to be forecast.")

    async def look(app: Top, pilot: Pilot[None]) -> None:
        app.running.focus()
        await pilot.press("enter")
        await until_shown(pilot, "Only the owner may read the output.", "The queue is too long to be forecast.")

    drive(service, look)


@pytest.mark.parametrize("key", ["f1", "h", "question_mark"])
def test_help_lists_the_keys(key: str) -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until_shown(pilot, "cancel, after a question")
        await pilot.press("escape")
        await until_overview(pilot)

    drive(cluster(), look)


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c"])
def test_quitting_ends_the_view_with_exit_code_0(key: str) -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: app._exit, "the end")
        assert app.return_code in (0, None)

    drive(cluster(), look)


def test_what_arrives_while_the_view_ends_shows_nothing() -> None:
    """Its screens are gone then, and messages of their widgets may be left."""

    async def look(app: Top, pilot: Pilot[None]) -> None:
        screens = app._screen_stack.copy()
        app._screen_stack.clear()
        app.on_descendant_focus()
        app.on_resize()
        app._show()
        app._screen_stack.extend(screens)

    drive(cluster(), look)


def test_nothing_reads_any_more_when_the_connections_are_closed() -> None:
    reading = []

    async def look(app: Top, pilot: Pilot[None]) -> None:
        close = app.client.close

        async def closing() -> None:
            reading.append([worker.name for worker in app.workers if not worker.is_cancelled])
            await close()

        app.client.close = closing  # type: ignore[method-assign]

    drive(cluster(), look)
    assert reading == [[]]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view looks ten times a second."""
    for name in ("RETRY_S", "PERIOD_S"):
        monkeypatch.setattr(view, name, 0.1)


def _gone(service: FakeService) -> None:
    service.down = True


def _refusing(service: FakeService) -> None:
    service.refuses["/v1/overview"] = (401, "The key is revoked.")


@pytest.mark.parametrize(
    ("breaks", "words"), [(_gone, "DISCONNECTED: connection refused."), (_refusing, "NO NEW DATA: The key is revoked")]
)
def test_data_that_are_stale_stay_marked_until_the_service_answers_again(
    breaks: Callable[[FakeService], None], words: str, soon: None
) -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        breaks(service)
        await until_shown(pilot, words, "trying again every 0.1 s", "sweep-21")
        assert app.screen.has_class("stale")
        service.queue.pop(0)
        service.down = False
        service.refuses.clear()
        await until(pilot, lambda: words not in screen(app), "a connection without a key pressed")
        await until(pilot, lambda: "sweep-21" not in screen(app), "new data")
        await until(pilot, lambda: not app.screen.has_class("stale"), "the end of the mark")

    drive(service, look)


def test_a_job_page_that_closes_is_not_written_to(soon: None) -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until_shown(pilot, "epoch 2")
        # As when the application ends: the page is on top, and its widgets are gone.
        await app.screen.remove_children()
        service.down = True
        await until(pilot, lambda: app.screen_stack[0].has_class("stale"), "the broken connection")
        service.down = False
        await until(pilot, lambda: not app.screen_stack[0].has_class("stale"), "the connection")

    drive(service, look)


def test_a_job_page_says_that_it_is_stale(soon: None) -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until_shown(pilot, "epoch 2")
        service.down = True
        await until_shown(pilot, "DISCONNECTED: connection refused.", "epoch 2")
        service.down = False
        await until(pilot, lambda: "DISCONNECTED" not in screen(app), "the connection")

    drive(service, look)
