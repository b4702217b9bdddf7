"""The timeline: complete over pages and increments, merged without loss, and anonymous where it must be."""

import base64
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.model.server_reservation import ServerReservation
from policies.registry import make_policy
from service.api.documents import instant, seconds_of
from service.db import timeline
from service.db.rows import attempt_values, new_job_values
from service.db.servers import enroll
from service.db.tables import ATTEMPTS, JOBS
from service.db.timeline import Position, Run, runs
from service.domain.access import Role
from service.domain.forecast_scores import Milestone
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, RequestKind
from service.engine.record import AttemptRecord, JobRecord
from service.executors.fake import DURATION_LABEL, FakeExecutor
from service.sim.predictors import NoPredictor
from tests.api import people
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem
from tests.api.people import person
from tests.api.test_paging import forged
from tests.api.timelines import Entry, Held, ask, clear, entries, forecast, pages, put
from tests.null_sink import NullSink

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&amp;'\"\\u0000"


def test_an_attempt_is_a_row_and_a_bar_for_each_run_of_gpus(client: Client, world: World) -> None:
    put(world, 7, -60.0, held=((0, (0, 1, 3)), (2, (1,))), name=HOSTILE, user="ada", project="")
    forecast(world, 7, 1.0, 2.0, 3.0)
    forecast(world, 7, 10.0, 20.0, 30.0)
    forecast(world, 7, 5.0, 5.0, 5.0, milestone=Milestone.START)
    world.say_of_servers({"b": (True, False), "c": (True, True)})
    document = ask(client)
    assert document["attempts"] == {
        "id": ["7.1"],
        "job": [7],
        "name": [HOSTILE],
        "user": ["ada"],
        "project": [None],
        "state": ["running"],
        "reason": [None],
        "starts_s": [NOW_S - 60.0],
        "stop_requested_s": [None],
        "ends_s": [None],
        "p10_s": [NOW_S + 10.0],
        "p50_s": [NOW_S + 20.0],
        "p90_s": [NOW_S + 30.0],
    }
    bars = {"attempt": [0, 0, 0], "server": [0, 0, 2], "first_gpu": [0, 3, 1], "gpus": [2, 1, 1]}
    assert document["bars"] == bars
    server = {"rack": "r1", "gpus": 4, "gpu_type": "V100", "reservation": None}
    assert document["servers"] == [
        server | {"name": "a", "state": "up"},
        server | {"name": "b", "state": "drained"},
        server | {"name": "c", "state": "down", "rack": "r2", "gpus": 2, "gpu_type": "T4"},
    ]
    assert (document["at"], document["until"]) == (instant(NOW_S), instant(NOW_S))
    assert (document["since"], document["next"]) == (instant(NOW_S - 86_400.0), None)
    assert (document["left_out"], document["increment"], document["reservations"]) == (0, False, [])


def test_the_gpus_that_the_engine_reported_count(client: Client, world: World) -> None:
    put(world, 1, -1.0, held=((0, (0, 1)),), got=((2, 3),))
    assert entries(ask(client))["1.1"]["bars"] == {("a", 2, 2)}


def test_ended_attempts_have_no_predicted_end(client: Client, world: World) -> None:
    put(world, 1, -9.0, -5.0)
    put(world, 1, -4.0, number=2)
    forecast(world, 1, 1.0, 2.0, 3.0)
    found = entries(ask(client))
    assert (found["1.1"]["p50_s"], found["1.2"]["p50_s"]) == (None, NOW_S + 2.0)
    assert (found["1.1"]["state"], found["1.1"]["reason"], found["1.1"]["ends_s"]) == (
        "completed",
        "completed",
        NOW_S - 5,
    )


def test_reservations_of_the_period_and_the_current_one(client: Client, world: World) -> None:
    for starts_s, ends_s, server in ((-50.0, 50.0, 1), (60.0, 70.0, 1), (-99.0, -98.0, 0)):
        window = ServerReservation(0, (ServerIndex(server),), NOW_S + starts_s, NOW_S + ends_s)
        with world.database.writing() as session:
            request = EngineRequest(0, RequestKind.RESERVATION_MADE, NOW_S, window=window, note="secret")
            world.store.add_request(session, request)
    found = ask(client, since=instant(NOW_S - 60))
    assert [(each["servers"], each["starts_s"]) for each in found["reservations"]] == [([1], NOW_S - 50.0)]
    assert [each["reservation"] for each in found["servers"]] == [None, found["reservations"][0]["id"], None]
    later = ask(client, until=instant(NOW_S + 65), server="b")
    assert [each["servers"] for each in later["reservations"]] == [[0], [0]]
    assert [each["name"] for each in later["servers"]] == ["b"]


TIMES = st.integers(-20, 0)
LIFE = st.tuples(TIMES, st.none() | st.integers(0, 12))
HELD: st.SearchStrategy[Held] = st.sampled_from(
    (((0, (0,)),), ((1, (0, 1, 2)),), ((0, (0, 2)), (1, (3,))), ((0, (1,)), (1, (1,)), (2, (0, 1))))
)
OF_A_TEST = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, suppress_health_check=OF_A_TEST)
@given(
    lives=st.lists(st.tuples(LIFE, HELD), max_size=14),
    since=TIMES,
    length=st.integers(1, 20) | st.none(),
    limit=st.integers(1, 6),
    server=st.sampled_from([None, "a", "c"]),
)
def test_the_pages_of_a_period_are_all_attempts_that_overlap_it(
    client: Client, world: World, lives: Any, since: int, length: int | None, limit: int, server: str | None
) -> None:
    clear(world)
    world.now_s = NOW_S + 1.0
    expected: dict[str, set[tuple[str, int, int]]] = {}
    until = math.inf if length is None else since + length
    for job, ((opened, lasts), held) in enumerate(lives, start=1):
        ended = None if lasts is None else opened + lasts
        name = put(world, job, opened, ended, held)
        bars = {("abc"[at], run.first_gpu, run.gpus) for at, ids in held for run in _runs(at, ids)}
        bars = {bar for bar in bars if server in (None, bar[0])}
        under_way = opened < since and (ended is None or ended > since)
        if bars and (under_way or since <= opened < until):
            expected[name] = bars
    times = {"since": instant(NOW_S + since), "until": None if length is None else instant(NOW_S + until)}
    found: dict[str, set[tuple[str, int, int]]] = {}
    order: list[tuple[float, str]] = []
    for page in pages(client, **times, limit=limit, server=server):
        part = entries(page)
        assert len(page["bars"]["attempt"]) <= limit or len(part) == 1
        assert not found.keys() & part.keys()
        order += [(entry["starts_s"], entry["id"]) for entry in part.values()]
        found |= {name: entry["bars"] for name, entry in part.items()}
    assert found == expected
    assert order == sorted(order)


def _runs(server: int, ids: tuple[int, ...]) -> list[Run]:
    """Each GPU that has no left neighbour begins a run, which ends before the first gap."""
    firsts = [gpu for gpu in ids if gpu - 1 not in ids]
    return [Run(server, gpu, next(n for n in range(1, 9) if gpu + n not in ids)) for gpu in firsts]


@settings(max_examples=40, deadline=None, suppress_health_check=OF_A_TEST)
@given(lives=st.lists(st.tuples(LIFE, HELD), max_size=14), resolution=st.integers(1, 6), limit=st.integers(1, 40))
def test_merging_keeps_the_number_and_the_extent_of_short_attempts(
    client: Client, world: World, lives: Any, resolution: int, limit: int
) -> None:
    clear(world)
    short: list[tuple[float, float, Held]] = []
    long = set()
    for job, ((opened, lasts), held) in enumerate(lives, start=1):
        name = put(world, job, opened, None if lasts is None else opened + lasts, held)
        if lasts is not None and lasts < resolution:
            short.append((NOW_S + opened, NOW_S + opened + lasts, held))
        else:
            long.add(name)
    found: set[str] = set()
    groups: list[tuple[Any, ...]] = []
    left_out = 0
    for page in pages(
        client, since=instant(NOW_S - 99), until=instant(NOW_S + 99), resolution_s=resolution, limit=limit
    ):
        found |= entries(page).keys()
        left_out += page["left_out"]
        groups += zip(*page["merged"].values(), strict=True)
    assert (found, left_out) == (long, len(short))
    pieces = [(run, starts_s, ends_s) for starts_s, ends_s, held in short for at, ids in held for run in _runs(at, ids)]
    assert sum(group[5] for group in groups) == len(pieces)
    for run, starts_s, ends_s in pieces:
        assert any(group[:3] == run and group[3] <= starts_s and ends_s <= group[4] for group in groups)
    for *run, starts_s, ends_s, _ in groups:
        assert starts_s in [piece[1] for piece in pieces if list(piece[0]) == run]
        assert ends_s in [piece[2] for piece in pieces if list(piece[0]) == run]
        assert ends_s - starts_s < 2 * resolution


class Machine:
    """An engine on the database of a world, whose clock only moves when it is told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        cluster = Cluster("test", tuple(world.servers))
        self.executor = FakeExecutor(self, launch_s=2.0, stop_s=3.0)
        ports = Ports(world.store, self.executor, self, NoPredictor(), NullSink())
        self.engine = Engine(make_policy("fifo"), cluster, ports)

    def now_s(self) -> float:
        return self.world.now_s

    def submit(self, gpus: int, lasts_s: int) -> None:
        spec = JobSpec("n", "u", gpus, "p", labels={DURATION_LABEL: str(lasts_s)})
        with self.world.database.writing() as session:
            self.world.store.submit(session, [spec], self.world.now_s)

    def request(self, kind: RequestKind, job: int) -> None:
        with self.world.database.writing() as session:
            request = EngineRequest(0, kind, self.world.now_s, JobId(job), preempt=True)
            self.world.store.add_request(session, request)

    def cycle(self) -> None:
        assert not self.engine.cycle().failed


STEP = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 4), st.integers(1, 15)),
    st.tuples(st.sampled_from(["cancel", "hold", "release", "forecast"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.sampled_from(["wait", "away"]), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("ask"), st.just(0), st.just(0)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=OF_A_TEST)
@given(steps=st.lists(STEP, min_size=5, max_size=40))
def test_increments_of_a_real_history_lose_nothing(client: Client, world: World, steps: Any) -> None:
    """A client that begins with an empty answer, and puts each increment in place, has what a new client gets."""
    clear(world)
    world.now_s = NOW_S
    machine = Machine(world)
    since = instant(NOW_S - 10)
    first = ask(client, since=since)
    known, mark = entries(first), first["mark"]
    for what, one, other in [*steps, ("ask", 0, 0)]:
        if what == "submit":
            machine.submit(one, other)
        elif what in ("wait", "away"):
            world.now_s += one
            if what == "away":
                # What has ended meanwhile has ended then, and the engine learns of it now.
                machine.engine.recover()
        elif what == "ask":
            document = ask(client, since=instant(world.now_s - 1), changed_since=mark)
            assert document["increment"]
            known |= entries(document)
            mark = document["mark"]
            everything = ask(client, since=since)
            assert known == entries(everything)
            assert everything["mark"] == mark
        else:
            _about_a_job(world, machine, what, one)
        machine.cycle()
    known |= entries(ask(client, changed_since=mark))
    with world.database.reading() as session:
        assert known.keys() == set(session.connection().execute(select(ATTEMPTS.c.id)).scalars())


def _about_a_job(world: World, machine: Machine, what: str, position: int) -> None:
    with world.database.reading() as session:
        jobs = session.connection().execute(select(JOBS.c.id).order_by(JOBS.c.id)).scalars().all()
    if position < len(jobs):
        if what == "forecast":
            forecast(world, jobs[position], position, position + 1.0, position + 2.0)
        else:
            machine.request(RequestKind[what.upper()], jobs[position])


def test_an_increment_holds_only_what_changed(client: Client, world: World) -> None:
    machine = Machine(world)
    for _ in range(3):
        machine.submit(2, 1000)
        machine.cycle()
    mark = ask(client)["mark"]
    assert entries(ask(client, changed_since=mark)) == {}
    world.now_s += 5.0
    machine.request(RequestKind.CANCEL, 2)
    machine.cycle()
    forecast(world, 3, 1.0, 2.0, 3.0)
    forecast(world, 1, 4.0, 5.0, 6.0, milestone=Milestone.START)
    document = ask(client, changed_since=mark, resolution_s=999)
    found = entries(document)
    assert {name: (entry["state"], entry["p50_s"]) for name, entry in found.items() if name != "1.1"} == {
        "2.1": ("stopping", None),
        "3.1": ("running", NOW_S + 2.0),
    }
    assert (document["increment"], document["next"], document["left_out"]) == (True, None, 0)


def test_an_increment_leaves_out_what_had_ended_before(client: Client, world: World) -> None:
    machine = Machine(world)
    machine.submit(2, 1000)
    for kind in (None, RequestKind.HOLD, None, RequestKind.RELEASE, None):
        if kind is not None:
            machine.request(kind, 1)
        machine.cycle()
        world.now_s += 5.0
    mark = ask(client)["mark"]
    machine.request(RequestKind.CANCEL, 1)
    machine.cycle()
    assert {name: entry["state"] for name, entry in entries(ask(client, changed_since=mark)).items()} == {
        "1.2": "stopping"
    }


def test_an_increment_is_never_merged_or_cut(client: Client, world: World) -> None:
    machine = Machine(world)
    mark = ask(client)["mark"]
    for gpus in (6, 2):
        machine.submit(gpus, 1)
    for _ in range(5):
        machine.cycle()
        world.now_s += 2.0
    document = ask(client, changed_since=mark, resolution_s=999, limit=2)
    assert (document["increment"], document["left_out"], document["next"]) == (True, 0, None)
    bars = {name: entry["bars"] for name, entry in entries(document).items()}
    assert bars == {"1.1": {("a", 0, 4), ("b", 0, 2)}, "2.1": {("b", 2, 2)}}


def test_everything_is_sent_again_where_too_much_has_changed(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(world)
    mark = ask(client)["mark"]
    for _ in range(3):
        machine.submit(1, 1000)
    machine.cycle()
    assert ask(client, changed_since=mark)["increment"]
    full = ask(client, changed_since=mark, limit=2)
    assert (full["increment"], len(full["attempts"]["id"]), full["next"] is None) == (False, 2, False)
    rest = ask(client, changed_since=mark, limit=2, after=full["next"])
    assert (rest["attempts"]["id"], rest["next"], rest["mark"]) == (["3.1"], None, full["mark"])
    monkeypatch.setattr(timeline, "EVENTS_MAX", 5)
    assert not ask(client, changed_since=mark)["increment"]
    ahead = f"{10**9}-0"
    assert not ask(client, changed_since=ahead)["increment"], "a restored database"
    assert not ask(client, changed_since="0-9999")["increment"]


def test_all_pages_have_the_mark_of_the_first(client: Client, world: World) -> None:
    """What changes while a client reads pages is in the next increment."""
    machine = Machine(world)
    for _ in range(3):
        machine.submit(1, 1000)
    machine.cycle()
    known: dict[str, Entry] = {}
    marks = set()
    for page in pages(client, limit=1):
        known |= entries(page)
        marks.add(page["mark"])
        machine.request(RequestKind.CANCEL, 1)
        machine.cycle()
        world.now_s += 2.0
    assert known["1.1"]["state"] == "launching"
    (mark,) = marks
    known |= entries(ask(client, changed_since=mark))
    assert known["1.1"]["state"] == "cancelled"


def test_jobs_of_others_are_anonymous(app: FastAPI, client: Client, world: World) -> None:
    ours = put(world, 1, -50.0, project="nlp", user="ada")
    put(world, 2, -40.0, -30.0, ((1, (0, 1)),), project="secret", user="eve", name="moonshot")
    put(world, 3, -20.0, project="", user="eve", held=((2, (0,)),))
    for job in (1, 2, 3):
        forecast(world, job, 1.0, 2.0, 3.0)
    with people.client(app, person(world, "ada", Role.VIEWER, "nlp")) as viewer:
        document = ask(viewer)
        again = ask(viewer, since=instant(NOW_S - 45), limit=1)
        text = viewer.get("/v1/timeline").text
    found = entries(document)
    assert found.pop(ours)["p50_s"] == NOW_S + 2.0
    assert [name[0] for name in found] == ["~", "~"]
    anonymous = dict.fromkeys(("job", "name", "user", "project", "state", "reason", "stop_requested_s"))
    anonymous |= dict.fromkeys(("p10_s", "p50_s", "p90_s"))
    ended, running = found.values()
    assert ended == anonymous | {
        "id": ended["id"],
        "starts_s": NOW_S - 40.0,
        "ends_s": NOW_S - 30.0,
        "bars": {("b", 0, 2)},
    }
    assert running == anonymous | {"id": running["id"], "starts_s": NOW_S - 20.0, "ends_s": None, "bars": {("c", 0, 1)}}
    assert "moonshot" not in text
    assert "eve" not in text
    assert "2.1" not in "".join(found), "no id of theirs"
    assert [entries(again).get(ours, {}).get("id")] == [ours], "under way since before"
    assert entries(ask(client)).keys() == {"1.1", "2.1", "3.1"}


def test_a_page_of_a_server_may_be_empty_before_the_last(client: Client, world: World) -> None:
    for job in (1, 2, 3, 4):
        put(world, job, -9.0 + job, held=((0, (0,)),) if job < 4 else ((1, (0,)),))
    found = [page["attempts"]["id"] for page in pages(client, server="b", limit=1)]
    assert found[0] == []
    assert [name for part in found for name in part] == ["4.1"]


def test_a_hidden_attempt_keeps_its_name_in_increments(app: FastAPI, world: World) -> None:
    machine = Machine(world)
    machine.submit(1, 1000)
    machine.cycle()
    with people.client(app, person(world, "ada", Role.VIEWER, "nlp")) as viewer:
        first = ask(viewer)
        machine.request(RequestKind.CANCEL, 1)
        for _ in range(3):
            machine.cycle()
            world.now_s += 4.0
        second = ask(viewer, changed_since=first["mark"])
    assert entries(first).keys() == entries(second).keys()
    assert next(iter(entries(second).values()))["ends_s"] is not None


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"since": "2026-01-01T00:00:00Z"}, "since"),
        ({"since": "2025-12-31T10:00:00Z", "until": "2025-12-31T10:00:00Z"}, "since"),
        ({"since": "2025-12-31T10:00:00Z", "until": "2025-12-31T09:00:00Z"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2025-12-31T10:00:00"}, "since"),
        ({"until": "1767225600"}, "until"),
        ({"until": "0001-01-01T00:00:00+14:00"}, "until"),
        ({"until": "0001-01-01T00:00:00Z"}, "since"),
        ({"resolution_s": "-1"}, "resolution_s"),
        ({"resolution_s": "nan"}, "resolution_s"),
        ({"resolution_s": "inf"}, "resolution_s"),
        ({"limit": "0"}, "limit"),
        ({"limit": "20001"}, "limit"),
        ({"server": "absent"}, "server"),
        ({"server": ["a"] * 501}, "server"),
        ({"changed_since": "2026-01-01T00:00:00Z"}, "changed_since"),
        ({"changed_since": "1"}, "changed_since"),
        ({"changed_since": "9999999999999999999-1"}, "changed_since"),
        ({"after": "x"}, "after"),
        ({"cursor": "x"}, "cursor"),
    ],
)
def test_bad_parameters_are_named(client: Client, query: dict[str, Any], parameter: str) -> None:
    document = assert_problem(client.get("/v1/timeline", params=query), "invalid-parameter")
    assert {fault["parameter"] for fault in document["errors"]} == {parameter}


def test_a_cursor_belongs_to_its_query_and_cannot_be_forged(client: Client, world: World) -> None:
    for job in (1, 2):
        put(world, job, -9.0)
    after = ask(client, limit=1)["next"]
    assert ask(client, limit=1, after=after)["attempts"]["id"] == ["2.1"]
    for other in ({"since": instant(NOW_S - 99)}, {"resolution_s": 5}, {"server": "a"}, {"until": instant(NOW_S)}):
        assert_problem(client.get("/v1/timeline", params={"after": after, **other}), "invalid-parameter")
    assert_problem(client.get("/v1/jobs", params={"after": after}), "invalid-parameter")
    wrong = ([NOW_S], [-1e300, None, 1, 1, 1.0, "a"], [NOW_S, 1e300, 1, 1, 1.0, "a"], [NOW_S, None, -1, 1, 1.0, "a"])
    scope = _mark_of(after)
    for parts in wrong:
        assert_problem(client.get("/v1/timeline", params={"after": forged(scope, *parts)}), "invalid-parameter")


def _mark_of(cursor: str) -> str:
    return str(json.loads(base64.b64decode(cursor, altchars=b"-_"))[0])


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_period_is_read_by_the_indexes_of_its_times(world: World) -> None:
    plans: list[str] = []
    with world.database.reading() as session:
        connection = session.connection()

        def explain(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            if "FROM attempts" in statement and not statement.startswith("EXPLAIN"):
                rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plans.extend(str(row[3]) for row in rows if "attempts" in str(row[3]))

        event.listen(world.database.engine, "before_cursor_execute", explain)
        timeline.overlapping(connection, NOW_S, NOW_S + 1, None, 10)
        timeline.overlapping(connection, NOW_S, NOW_S + 1, Position(NOW_S + 0.5, "1.1"), 10)
        event.remove(world.database.engine, "before_cursor_execute", explain)
    ended, opened = "ix_attempts_ended_at_s_opened_at_s", "ix_attempts_opened_at_s_id"
    assert [next((name for name in (ended, opened) if name in plan), plan) for plan in plans] == [
        ended,
        ended,
        opened,
        opened,
    ]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_an_increment_reads_only_the_end_of_the_logs(world: World) -> None:
    plans: list[str] = []
    with world.database.reading() as session:
        connection = session.connection()

        def explain(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(str(row[3]) for row in rows)

        event.listen(world.database.engine, "before_cursor_execute", explain)
        timeline.changed(connection, timeline.Mark(0, 0), timeline.Mark(1, 1), None, 10)
        event.remove(world.database.engine, "before_cursor_execute", explain)
    logs = [plan for plan in plans if "job_events" in plan or "forecasts" in plan]
    assert len(logs) == 2
    assert all("USING INTEGER PRIMARY KEY (rowid>?)" in plan for plan in logs), plans


def test_2000_gpus_and_20000_attempts_are_one_small_answer(client: Client, world: World) -> None:
    """The size is asserted here; ``python -m benchmarks.views`` measures the time."""
    servers = [Server(f"node{at:03}", 8) for at in range(250)]
    enroll(world.database, Cluster("test", (*world.servers, *servers)))
    spec = JobSpec("train", "ada", 1, "nlp")
    jobs, attempts = [], []
    for job in range(1, 20_001):
        gpu, slot = job % 2000, job // 2000
        record = JobRecord(JobId(job), spec, NOW_S, state=JobState.SUCCEEDED)
        jobs.append(new_job_values(spec, NOW_S, record) | {"id": job})
        share = place([ServerShare(ServerIndex(3 + gpu // 8), 1)])
        opened_s = NOW_S - 80_000.0 + slot * 7000.0
        attempts.append(
            attempt_values(
                AttemptRecord(
                    AttemptId(f"{job}.1"),
                    JobId(job),
                    1,
                    AttemptState.COMPLETED,
                    share,
                    ((gpu % 8,),),
                    opened_s,
                    ended_at_s=opened_s + 6000.0,
                )
            )
        )
    with world.database.writing() as session:
        session.connection().execute(insert(JOBS), jobs)
        session.connection().execute(insert(ATTEMPTS), attempts)
    answer = client.get("/v1/timeline")
    document = answer.json()
    assert (len(document["bars"]["attempt"]), document["next"]) == (20_000, None)
    assert len(answer.content) < 2_500_000
    assert ask(client, resolution_s=6001)["left_out"] == 20_000


def test_runs_of_gpus() -> None:
    placement = '{"v":1,"shares":[[4,3,[]],[7,1,[2,1]]]}'
    assert runs(placement, "[[5,0,1],[2]]") == (Run(4, 0, 2), Run(4, 5, 1), Run(7, 2, 1))


def test_runs_on_many_servers_are_read_again_rather_than_kept() -> None:
    shares = [[server, 8, []] for server in range(1000)]
    placement, gpu_ids = json.dumps({"shares": shares}), json.dumps([list(range(8))] * 1000)
    kept = timeline._remembered_runs.cache_info().currsize
    assert runs(placement, gpu_ids) == tuple(Run(server, 0, 8) for server in range(1000))
    assert timeline._remembered_runs.cache_info().currsize == kept


def test_times_are_read_as_they_are_written() -> None:
    assert seconds_of(instant(NOW_S)) == NOW_S
    assert seconds_of("2026-01-01T02:00:00+02:00") == NOW_S
    assert seconds_of(datetime.fromtimestamp(NOW_S, UTC).isoformat()) == NOW_S
    for text in ("", "2026-01-01", "2026-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "\u0000"):
        assert seconds_of(text) is None
