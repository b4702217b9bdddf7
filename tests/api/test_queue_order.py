"""The queue in the order of the policy, page by page, for those who see all of it and for those who see a part."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import event

from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.registry import make_policy
from service.api.paging import cursor
from service.client import noun
from service.db.forecasts import NewForecast, store_forecasts
from service.db.queue import queued_ids
from service.domain.access import NO_PROJECT, Identity, Role
from service.domain.forecast_scores import Milestone
from service.engine.engine import Engine, Ports
from service.executors.fake import FakeExecutor
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.sim.predictors import NoPredictor
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job, plans_of
from tests.api.people import client as client_for
from tests.api.people import person, submitted
from tests.null_sink import NullSink
from tests.unit.service.client.both import KINDS, Kind, client_of

OWN = {"user": "ada", "project": "nlp"}
FOREIGN = {"user": "eve", "project": "vision"}


class Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_s(self) -> float:
        return self._world.now_s


def take_in(world: World, policy: str = "fifo_backfill", **options: str) -> None:
    """Cycles of an engine whose servers are drained: nothing starts."""
    if world.engine is None:
        world.say_of_servers({server.name: (True, False) for server in world.servers})
        clock = Clock(world)
        ports = Ports(world.store, FakeExecutor(clock), clock, NoPredictor(), NullSink())
        world.engine = Engine(make_policy(policy, options), Cluster("test", tuple(world.servers)), ports)
    assert not world.engine.cycle().failed


def pages(client: Client, limit: int) -> Iterator[dict[str, Any]]:
    after: dict[str, str] = {}
    for _ in range(20):
        answer = client.get("/v1/queue/jobs", params={"limit": limit, **after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        yield page
        if page["next"] is None:
            return
        after = {"after": page["next"]}
    raise AssertionError("the pages have no end")


def order(client: Client, limit: int = 3) -> list[tuple[int, int | None]]:
    return [(item["job_id"], item["position"]) for page in pages(client, limit) for item in page["items"]]


@pytest.fixture
def crowd(app: FastAPI, world: World) -> list[int]:
    """Jobs of two projects in turn; the third is held, the fourth waits for the first, the sixth comes first of all."""
    jobs = [plain_job(name=f"j{number}", **(FOREIGN if number % 2 else OWN)) for number in range(6)]
    jobs[2]["hold"] = True
    jobs[5]["priority"] = 7
    ids = submitted(app, world, *jobs[:3])
    ids += submitted(app, world, plain_job(name="j3", after=[ids[0]], **FOREIGN))
    ids += submitted(app, world, *jobs[4:])
    take_in(world)
    return ids


def test_the_page_shows_the_order_and_then_what_may_not_start(client: Client, world: World, crowd: list[int]) -> None:
    world.now_s += 90.0
    [page] = pages(client, 10)
    assert {key: page[key] for key in ("next", "total", "ordered", "cycle", "policy", "note")} == {
        "next": None,
        "total": 6,
        "ordered": 4,
        "cycle": 7,
        "policy": "asrpt",
        "note": None,
    }
    assert [(item["job_id"], item["position"], item["reason"]) for item in page["items"]] == [
        (crowd[5], 1, "no_such_servers"),
        (crowd[0], 2, "priority"),
        (crowd[1], 3, "priority"),
        (crowd[4], 4, "priority"),
        (crowd[2], None, "held"),
        (crowd[3], None, "dependency"),
    ]
    assert page["items"][0] == {
        "position": 1,
        "job_id": crowd[5],
        "name": "j5",
        "user": "eve",
        "project": "vision",
        "gpus": plain_job()["gpus"],
        "priority": 7,
        "guarded": False,
        "level": 0,
        "rank": 0.0,
        "held": False,
        "state": "queued",
        "reason": "no_such_servers",
        "reason_sentence": "No set of servers that are up can hold the gang; add, resume or repair servers.",
        "submitted_at": "2026-01-01T00:00:00Z",
        "waiting_s": 90.0,
        "start": None,
        "end": None,
    }
    held = page["items"][4]
    assert (held["held"], held["rank"], held["guarded"], held["level"]) == (True, None, False, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_pages_of_every_length_are_the_same_list(client: Client, crowd: list[int], limit: int) -> None:
    places = [(crowd[5], 1), (crowd[0], 2), (crowd[1], 3), (crowd[4], 4), (crowd[2], None), (crowd[3], None)]
    assert order(client, limit) == places
    assert {(page["total"], page["ordered"]) for page in pages(client, limit)} == {(6, 4)}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_who_sees_a_project_gets_its_jobs_with_their_true_positions(
    app: FastAPI, world: World, crowd: list[int], limit: int
) -> None:
    with client_for(app, person(world, "ada", Role.VIEWER, "nlp")) as ada:
        assert order(ada, limit) == [(crowd[0], 2), (crowd[4], 4), (crowd[2], None)]
        assert {(page["total"], page["ordered"]) for page in pages(ada, limit)} == {(3, 2)}
    with client_for(app, person(world, "eve", Role.SUBMITTER, "vision")) as eve:
        assert order(eve, limit) == [(crowd[5], 1), (crowd[1], 3), (crowd[3], None)]
    with client_for(app, person(world, "bob", Role.OPERATOR, "vision")) as bob:
        assert len(order(bob, limit)) == 6
    with client_for(app, person(world, "max", Role.VIEWER)) as max_:
        assert [page["total"] for page in pages(max_, limit)] == [0]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_the_queue_of_a_part_is_found_by_the_index_of_queued_jobs(world: World) -> None:
    seen = Identity("ada", Role.VIEWER, frozenset({NO_PROJECT, "nlp", "vision"}), "key")
    plans = plans_of(world.database, lambda connection: queued_ids(connection, seen))
    assert len(plans) == 3
    assert all("ix_jobs_queued" in plan for plan in plans), plans


def test_who_is_in_no_project_gets_the_own_jobs_among_those_without_one(
    app: FastAPI, world: World, crowd: list[int]
) -> None:
    own, _ = submitted(app, world, plain_job(user="max", project=""), plain_job(user="eve", project=""))
    with client_for(app, person(world, "max", Role.VIEWER, "", "vision")) as max_:
        seen = [job for job, _ in order(max_)]
    assert sorted(seen) == sorted([crowd[1], crowd[3], crowd[5], own])


def test_paging_goes_on_where_it_was_while_the_queue_changes(client: Client, world: World, crowd: list[int]) -> None:
    """Jobs come in before the place, and the job of the place leaves."""
    walk = pages(client, 2)
    assert [item["job_id"] for item in next(walk)["items"]] == [crowd[5], crowd[0]]
    urgent = [client.post("/v1/jobs", json=plain_job(priority=9)).json()["id"] for _ in range(3)]
    assert client.post(f"/v1/jobs/{crowd[0]}/cancel").status_code == 202
    take_in(world)
    take_in(world)
    page = next(walk)
    assert [(item["job_id"], item["position"]) for item in page["items"]] == [(crowd[1], 5), (crowd[4], 6)]
    assert [(item["job_id"], item["position"]) for item in next(walk)["items"]] == [(crowd[2], None)]
    assert [job for job, _ in order(client)] == [*urgent, crowd[5], crowd[1], crowd[4], crowd[2]]


def test_jobs_that_no_cycle_has_admitted_come_last(client: Client, crowd: list[int]) -> None:
    new = client.post("/v1/jobs", json=plain_job(priority=99)).json()["id"]
    assert order(client)[-1] == (new, None)


def test_a_job_that_has_just_started_is_left_out(client: Client, world: World, crowd: list[int]) -> None:
    """The order was read before the cycle that started it, the rows after."""
    engine = world.engine
    assert engine is not None
    read = engine.queue

    def slow(wanted: Any) -> Any:
        found = read(wanted)
        world.say_of_servers({server.name: (False, False) for server in world.servers})
        world.engine = None
        clock = Clock(world)
        ports = Ports(world.store, FakeExecutor(clock), clock, NoPredictor(), NullSink())
        Engine(make_policy("fifo_backfill"), Cluster("test", tuple(world.servers)), ports).cycle()
        return found

    engine.queue = slow  # type: ignore[method-assign]
    page = client.get("/v1/queue/jobs", params={"limit": 2}).json()
    assert page["next"] is not None
    assert crowd[5] not in [item["job_id"] for item in page["items"]]
    assert len(page["items"]) < 2


def test_the_newest_forecasts_are_shown(client: Client, world: World, crowd: list[int]) -> None:
    def forecast(milestone: Milestone, made_at_s: float, p50_s: float) -> NewForecast:
        job = JobId(crowd[0])
        return NewForecast(job, milestone, made_at_s, 1, "fifo", "", "told", 9, 1, p50_s - 10.0, p50_s, p50_s + 10.0)

    with world.database.writing() as session:
        store_forecasts(
            session.connection(),
            [
                forecast(Milestone.START, NOW_S, NOW_S + 100.0),
                forecast(Milestone.START, NOW_S + 1.0, NOW_S + 40.0),
                forecast(Milestone.FINISH, NOW_S + 1.0, NOW_S + 70.0),
            ],
        )
    [item] = [item for page in pages(client, 9) for item in page["items"] if item["job_id"] == crowd[0]]
    moment = "2026-01-01T00:0{}Z".format
    assert item["start"] == {"p10": moment("0:30"), "p50": moment("0:40"), "p90": moment("0:50")}
    assert item["end"] == {"p10": moment("1:00"), "p50": moment("1:10"), "p90": moment("1:20")}


def test_a_kept_forecast_is_shown_in_place_of_an_older_record(client: Client, world: World, crowd: list[int]) -> None:
    first, second, third = (JobId(each) for each in crowd[:3])
    with world.database.writing() as session:
        records = [
            NewForecast(job, Milestone.START, NOW_S, 1, "fifo", "", "told", 9, 1, NOW_S, NOW_S + 10.0, NOW_S + 20.0)
            for job in (first, second, third)
        ]
        store_forecasts(session.connection(), records)
    spread = Spread(NOW_S + 30.0, NOW_S + 40.0, NOW_S + 50.0)
    told = {
        first: JobForecast(first, spread, spread, 20, "told"),
        second: JobForecast(second, None, None, 20, "told", "It is held."),
    }

    def starts(made_at_s: float) -> list[str | None]:
        world.forecast = Forecast(made_at_s, 20, told)
        items = {item["job_id"]: item for page in pages(client, 9) for item in page["items"]}
        return [items[job]["start"] and items[job]["start"]["p50"][-4:] for job in (first, second, third)]

    assert starts(NOW_S + 1.0) == [":40Z", None, ":10Z"], "the third came after it"
    assert starts(NOW_S - 1.0) == [":10Z"] * 3, "a record that is newer"


def test_a_page_takes_few_statements_however_long_it_is(client: Client, world: World, crowd: list[int]) -> None:
    def statements(limit: int) -> int:
        counted = [0]

        def count(*_: object) -> None:
            counted[0] += 1

        event.listen(world.database.engine, "before_cursor_execute", count)
        client.get("/v1/queue/jobs", params={"limit": limit})
        event.remove(world.database.engine, "before_cursor_execute", count)
        return counted[0]

    assert statements(1) == statements(3)
    assert statements(6) <= statements(1) + 1


@pytest.mark.parametrize(
    "key",
    [
        (1, 0, 0, float("nan"), 0.0, 1),
        (3, 0, 0, 0.0, 0.0, 1),
        (1, 2**63, 0, 0.0, 0.0, 1),
        (1, 0, 0, 0.0, float("inf"), 1),
        (1, 0, 0, 0.0, 0.0, -1),
        (1, 0, 0, "0", 0.0, 1),
        (1, 0, 0, 0.0, 0.0),
    ],
)
def test_a_forged_cursor_is_refused(client: Client, crowd: list[int], key: tuple[Any, ...]) -> None:
    answer = client.get("/v1/queue/jobs", params={"after": cursor("queue", key)})
    assert assert_problem(answer, "invalid-parameter")["errors"][0]["parameter"] == "after"
    foreign = client.get("/v1/queue/jobs", params={"after": cursor("jobs", (1, 0, 0, 0.0, 0.0, 1))})
    assert_problem(foreign, "invalid-parameter")


def test_an_infinite_rank_has_a_cursor(client: Client, crowd: list[int]) -> None:
    """And the last place that a cursor can name has nothing after it."""
    answer = client.get("/v1/queue/jobs", params={"after": cursor("queue", (1, 0, 0, float("inf"), 0.0, 1))})
    assert [item["position"] for item in answer.json()["items"]] == [None, None]
    last = client.get("/v1/queue/jobs", params={"after": cursor("queue", (2, 0, 0, 0.0, 0.0, crowd[-1]))}).json()
    assert (last["items"], last["next"], last["total"]) == ([], None, 6)


def test_a_standby_lets_the_leader_answer(app: FastAPI, world: World, client: Client) -> None:
    world.leads = False
    assert_problem(client.get("/v1/queue/jobs"), "no-leader")


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_walks_through_the_pages(
    app: FastAPI, world: World, crowd: list[int], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noun, "PAGE_SIZE", 2)
    with client_of(kind, app, world.token) as client:
        places = [(job["job_id"], job["position"]) for job in client.queue.jobs()]
        assert [job for job, _ in places] == [crowd[number] for number in (5, 0, 1, 4, 2, 3)]
        assert [position for _, position in places] == [1, 2, 3, 4, None, None]
        assert [job["job_id"] for job in client.queue.jobs(limit=3)] == [crowd[5], crowd[0], crowd[1]]
