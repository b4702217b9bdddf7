"""Parts of the queue of policies that do not have one list of ranks, or none at all. The order itself: tests/conformance."""

from typing import Any

import pytest

from policies.base import queue_of
from policies.decision import queue_order
from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.ids import JobId
from policies.registry import make_policy
from service.engine.watch import WatchingPolicy
from tests.scenarios.dsl import Story, policy

EVERYTHING = QueueWanted(None, 100)


class Closed:
    """A plugged-in policy without an order."""

    name = "closed"


def test_a_policy_that_states_no_order_has_only_others() -> None:
    chosen, nothing = Closed(), None
    view: Any = nothing
    note = "Policy closed does not state the order of its queue."
    wanted = QueueWanted(None, 5, [JobId(3), JobId(4)])
    for each in (chosen, WatchingPolicy(chosen)):  # type: ignore[arg-type, list-item]
        asked: Any = each
        assert queue_of(asked, view, nothing, wanted) == QueueSlice((), 0, (JobId(3), JobId(4)), note)
        assert queue_of(asked, view, nothing, EVERYTHING) == QueueSlice((), 0, (), note)


def test_a_policy_that_is_watched_has_the_order_of_its_own() -> None:
    story = Story("1x1", WatchingPolicy(make_policy("sjf")))
    story.job("now", runs_s=100).until(0)
    story.job("long", runs_s=50).job("short", runs_s=20).until(0)
    assert [place.key.job for place in story.engine.queue(EVERYTHING).jobs] == [story.ids["short"], story.ids["long"]]


@pytest.mark.parametrize(
    ("name", "options", "note"),
    [
        ("sjf", {}, ""),
        ("fifo", {}, "No job may pass the first one that cannot start."),
        (
            "easy",
            {},
            "A job after the first one that cannot start may start only if that does not delay the first one.",
        ),
        ("asrpt", {"preemption": "never"}, "No job may pass the first one that cannot start."),
        (
            "asrpt",
            {"preemption": "never", "release": "early"},
            "Jobs that the virtual machine has completed come before all others, whatever the ranks.",
        ),
        (
            "asrpt",
            {"fill": "server_filling"},
            "Servers are filled: of the first jobs that together fill the cluster, the widest gangs are placed first "
            "where that saves time.",
        ),
        ("asrpt", {}, ""),
    ],
)
def test_what_the_order_alone_does_not_show(name: str, options: dict[str, str], note: str) -> None:
    story = Story("1x1", policy(name, **options)).job("now", runs_s=9).job("then").until(0)
    assert story.engine.queue(EVERYTHING).note == note


def test_guarded_jobs_come_first_and_keep_the_rank_of_the_policy() -> None:
    story = Story("1x4", policy("sjf", guard_share=1, guard_wait_s=10, preemption="never"))
    story.job("now", gpus=4, runs_s=100).until(0)
    story.job("old", gpus=4, runs_s=90).until(1)
    story.job("short", gpus=4, runs_s=20).until(50)
    first, second = story.engine.queue(EVERYTHING).jobs
    assert (first.key.job, first.key.tier, first.rank) == (story.ids["old"], 0, 90.0)
    assert (second.key.job, second.key.tier, second.rank) == (story.ids["short"], 1, 20.0)


def test_jobs_that_may_not_start_are_others_in_the_order_asked_for() -> None:
    story = Story("1x1", policy("fifo"))
    story.job("now", runs_s=9).job("held", hold=True).job("after", after=("now",)).job("next").until(0)
    ids = [story.ids[name] for name in ("after", "next", "held")]
    found = story.engine.queue(QueueWanted(None, 9, [*ids, JobId(99)]))
    assert [place.key.job for place in found.jobs] == [story.ids["next"]]
    assert (found.ordered, found.others) == (1, (story.ids["after"], story.ids["held"], 99))


@pytest.mark.parametrize("among", [False, True])
def test_a_job_that_the_last_cycle_has_started_is_not_in_the_queue(among: bool) -> None:
    """The index of the policy lets go of it with the next decision only."""
    story = Story("1x1", policy("fifo")).job("now", runs_s=9).job("then").job("last")
    story.clock.advance(0.0)
    assert story.cycle().actions
    ids = list(story.ids.values())
    for limit in (1, 2, 9):
        found = story.engine.queue(QueueWanted(None, limit, ids if among else None))
        assert [(place.key.job, place.position) for place in found.jobs] == [(ids[1], 1), (ids[2], 2)][:limit]
        assert (found.ordered, found.others) == (2, ())


def test_the_jobs_of_some_owners_are_found_without_the_one_that_has_just_started() -> None:
    story = Story("1x1", policy("fifo"))
    for name in ("now", "then", "last", "held"):
        story.job(name, user="ada" if name != "last" else "eve", hold=name == "held")
    story.clock.advance(0.0)
    assert story.cycle().actions
    for sees, names in (
        (lambda _, user: user == "ada", ["then"]),
        (lambda *_: True, ["then", "last"]),
        (lambda *_: False, []),
    ):
        found = story.engine.queue(QueueWanted(None, 9, sees=sees))
        assert [place.key.job for place in found.jobs] == [story.ids[name] for name in names]
        assert (found.ordered, found.others) == (len(names), ())


@pytest.mark.parametrize("ratio", [0, 1, 10])
def test_some_jobs_are_found_by_a_walk_or_by_looking_at_each(ratio: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare jobs at the end of the queue are found too, whatever the walk reaches."""
    monkeypatch.setattr(queue_order, "WALKED_RATIO", ratio)
    story = Story("1x1", policy("fifo")).job("now", runs_s=9)
    for number in range(30):
        story.job(f"job {number}", gpus=1, user=f"user {number}")
    story.until(0)
    whole = story.engine.queue(EVERYTHING).jobs
    ids = [place.key.job for place in whole]
    for among in (ids[-2:], ids[::7], ids[:3] + ids[-1:]):
        places = tuple(place for place in whole if place.key.job in among)
        for past in (None, whole[0].key, whole[-2].key):
            after = tuple(place for place in places if past is None or place.key > past)
            found = story.engine.queue(QueueWanted(past, 2, among))
            assert (found.jobs, found.ordered, found.others) == (after[:2], len(among), ())
            users = {story.engine.world.jobs[job].spec.user for job in among}
            found = story.engine.queue(QueueWanted(past, 2, sees=lambda _, user, users=users: user in users))
            assert (found.jobs, found.ordered, found.others) == (after[:2], len(among), ())


def test_a_few_jobs_of_a_long_queue_are_found_without_a_walk_through_it() -> None:
    """Whoever looks at the queue holds up the next cycle."""
    story = Story("1x1", policy("fifo")).job("now", runs_s=9)
    for number in range(300):
        story.job(f"job {number}", gpus=1)
    story.until(0)
    index = story.engine._state.waiting
    walked: list[JobId] = []
    for jobs in ([story.ids["job 299"]], []):
        walked.clear()

        def is_one(job: JobId, jobs: list[JobId] = jobs) -> bool:
            walked.append(job)
            return job in jobs

        found = queue_order._first(index, is_one, len(jobs), jobs, QueueWanted(None, 50))
        assert [key.job for key in found] == jobs
        assert len(walked) <= queue_order.WALKED_RATIO + 1
