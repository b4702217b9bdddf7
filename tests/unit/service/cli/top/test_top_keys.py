"""The keys of ``sooner top``: what they change here and at the service, who may press them, and what follows a failure."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from service.cli.top.app import Top
from tests.unit.service.cli.top.driven import drive, screen, until, until_shown
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
            await until(pilot, lambda: len(app.screen_stack) == 1, "the end of the question")
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
        await pilot.press("f7", "backspace", *"-5x", "enter")
        await until(pilot, lambda: len(service.changes) == 5, "the priority")
        await pilot.press("p", "escape")
        await pilot.pause()

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
        await until_shown(pilot, "Job 21 has ended.?[31m [red]")
        assert "3 waiting" in screen(app) or "6 waiting" in screen(app)

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

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"cleo", "enter")
        assert app.target()["job_id"] == 23  # type: ignore[index]
        await pilot.press("n")
        assert app.target()["job_id"] == 26  # type: ignore[index]
        await pilot.press("n")
        assert app.target()["job_id"] == 23  # type: ignore[index]
        await pilot.press("f3", "ctrl+u", *"train-11", "enter")
        await until(pilot, lambda: app.table is app.running, "the other table")
        await pilot.press("f3", "ctrl+u", *"nowhere", "enter")
        await until_shown(pilot, "Nothing on this page has 'nowhere'")
        service.running.append(running_job(77, name="late"))
        await pilot.press("f3", "ctrl+u", *"77", "enter")
        await until_shown(pilot, "Job 77  late  running")
        await pilot.press("escape", "f3", "ctrl+u", *"78", "enter")
        await until_shown(pilot, "There is no job 78")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the overview")

    drive(service, look)


def test_sorting_inverting_and_grouping_change_the_page_that_is_shown() -> None:
    service = cluster()
    for gpus, job in enumerate(service.queue, start=1):
        job["gpus"] = gpus

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("f6")
        await until_shown(pilot, "Sort this page of the queue by")
        await pilot.press(*["down"] * 5, "enter")
        await until_shown(pilot, "1-6 of 6, by GPUS")
        assert app.queue.jobs == [26, 25, 24, 23, 22, 21]
        await pilot.press("I")
        assert app.queue.jobs == [21, 22, 23, 24, 25, 26]
        await until_shown(pilot, "by GPUS, inverted")
        await pilot.press("less_than_sign")
        await until_shown(pilot, "Sort this page")
        await pilot.press("home", "enter", "I")
        await until_shown(pilot, "in the order of asrpt")
        await pilot.press("f5")
        assert app.queue.jobs == [21, 24, 22, 25, 23, 26]
        await until_shown(pilot, "cleo: 2 jobs")
        app.queue.move_cursor(row=0)
        await pilot.pause()
        assert app.target() is None, "the head of a user is no job"
        await pilot.press("k", "o", "enter", "t")
        assert app.queue.jobs == [21, 22, 23, 24, 25, 26]

    drive(service, look)
    assert service.changes == []


def test_arrows_lead_through_both_tables_and_enter_opens_a_job_and_back() -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("up")
        assert app.table is app.running
        await pilot.press("down")
        assert app.table is app.queue
        await pilot.press("down", "enter")
        await until_shown(pilot, "Job 22  sweep-22  queued")
        for words in (
            "It needs 8 GPUs on at most 2 servers",
            "Will preempt job 12 at ",
            "75% of the predicted total, 3,000 of 4,000 iterations",
            "from 200 sampled futures",
            "There is no prediction",
            "iterations 0 to 3,000",
            "queued -> starting",
            "epoch 2",
        ):
            await until_shown(pilot, words)
        service.log += b"epoch 3\n"
        app.look()
        await until_shown(pilot, "epoch 3")
        await pilot.press("f9")
        await until_shown(pilot, "Cancel job 22")
        await pilot.press("y")
        await until(pilot, lambda: service.changes == [("POST /v1/jobs/22/cancel", "")], "the request")
        await pilot.press("escape")
        await until_shown(pilot, "1-6 of 6")
        assert app.target()["job_id"] == 22  # type: ignore[index]

    drive(service, look)


def test_the_story_says_why_a_part_is_missing() -> None:
    service = cluster()
    service.refuses["/v1/jobs/11/logs"] = (403, "Only the owner may read the output.")
    service.refuses["/v1/jobs/11/forecast"] = (409, "The queue is too long to be forecast.")

    async def look(app: Top, pilot: Pilot[None]) -> None:
        app.running.focus()
        await pilot.press("enter")
        await until_shown(pilot, "Only the owner may read the output.")
        await until_shown(pilot, "The queue is too long to be forecast.")

    drive(service, look)


@pytest.mark.parametrize("key", ["f1", "h", "question_mark"])
def test_help_lists_the_keys(key: str) -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until_shown(pilot, "cancel, after a question")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the overview")

    drive(cluster(), look)


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c"])
def test_quitting_ends_the_view_with_exit_code_0(key: str) -> None:
    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: app._exit, "the end")
        assert app.return_code in (0, None)

    drive(cluster(), look)


def _gone(service: FakeService) -> None:
    service.down = True


def _refusing(service: FakeService) -> None:
    service.refuses["/v1/overview"] = (401, "The key is revoked.")


@pytest.mark.parametrize(
    ("breaks", "words"), [(_gone, "DISCONNECTED: connection refused."), (_refusing, "NO NEW DATA: The key is revoked")]
)
def test_data_that_are_stale_stay_marked_until_the_service_answers_again(
    breaks: Callable[[FakeService], None], words: str
) -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        breaks(service)
        app.look()
        await until_shown(pilot, words)
        await until_shown(pilot, "trying again every")
        await until_shown(pilot, "sweep-21")
        assert app.screen.has_class("stale")
        service.queue.pop(0)
        service.down = False
        service.refuses.clear()
        await until(pilot, lambda: words not in screen(app), "a connection without a key pressed")
        await until(pilot, lambda: "sweep-21" not in screen(app), "new data")
        assert not app.screen.has_class("stale")

    drive(service, look)


def test_a_job_page_says_that_it_is_stale() -> None:
    service = cluster()

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until_shown(pilot, "epoch 2")
        service.down = True
        app.look()
        await until_shown(pilot, "DISCONNECTED: connection refused.")
        await until_shown(pilot, "epoch 2")
        service.down = False
        await until(pilot, lambda: "DISCONNECTED" not in screen(app), "the connection")

    drive(service, look)
