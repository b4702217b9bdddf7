"""Pages by cursor: complete, without repetition, stable while jobs arrive, and cheap at any depth."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, text

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.paging import cursor
from service.db import reads
from service.db.reads import JobFilter
from service.db.rows import new_job_values
from service.db.tables import JOBS
from service.domain.access import LOCAL, NO_PROJECT, Identity, Role
from service.engine.record import JobRecord
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def fill(world: World, jobs: list[tuple[JobState, str, str, str]]) -> list[int]:
    """Jobs with (state, user, project, name), in order; returns their ids."""
    rows = []
    for state, user, project, name in jobs:
        spec = JobSpec(name, user, 1, project)
        rows.append(new_job_values(spec, NOW_S, JobRecord(JobId(0), spec, NOW_S, state=state)))
    with world.database.writing() as session:
        statement = insert(JOBS).returning(JOBS.c.id, sort_by_parameter_order=True)
        return list(session.connection().execute(statement, rows).scalars())


def walk(client: Client, limit: int, **query: Any) -> Iterator[dict[str, Any]]:
    """All pages of a list of jobs."""
    after: dict[str, str] = {}
    while True:
        page = client.get("/v1/jobs", params={"limit": limit, **query, **after}).json()
        assert len(page["items"]) <= limit
        yield page
        if page["next"] is None:
            return
        after = {"after": page["next"]}


STATES = (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED)
ROW = st.tuples(st.sampled_from(STATES), st.sampled_from("uv"), st.sampled_from("pq"), st.sampled_from("mn"))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.lists(ROW, min_size=1, max_size=25),
    limit=st.integers(1, 7),
    states=st.lists(st.sampled_from(STATES), max_size=3),
    user=st.sampled_from(["u", None]),
    project=st.sampled_from(["p", None]),
    name=st.sampled_from(["m", "absent", None]),
)
def test_pages_are_the_filtered_list_newest_first(
    client: Client, world: World, rows: Any, limit: int, states: Any, user: Any, project: Any, name: Any
) -> None:
    with world.database.writing() as session:
        session.connection().execute(JOBS.delete())
    ids = fill(world, rows)
    query = {"state": states, "user": user, "project": project, "name": name}
    given_query = {key: value for key, value in query.items() if value}
    found = [job["id"] for page in walk(client, limit, **given_query) for job in page["items"]]
    expected = [
        number
        for number, row in zip(ids, rows, strict=True)
        if (not states or row[0] in states) and row[1] == (user or row[1]) and row[2] == (project or row[2])
        if row[3] == (name or row[3])
    ]
    assert found == sorted(expected, reverse=True)
    given_query["order"] = "oldest"
    assert [job["id"] for page in walk(client, limit, **given_query) for job in page["items"]] == sorted(expected)


def test_arrivals_between_pages_neither_hide_nor_repeat_a_job(client: Client, world: World) -> None:
    ids = fill(world, [(JobState.QUEUED, "u", "p", "n")] * 10)
    found = []
    for page in walk(client, 3):
        found += [job["id"] for job in page["items"]]
        fill(world, [(JobState.QUEUED, "u", "p", "n")] * 2)
    assert found == sorted(ids, reverse=True)


def test_the_last_page_says_so(client: Client, world: World) -> None:
    fill(world, [(JobState.QUEUED, "u", "p", "n")] * 4)
    assert [len(page["items"]) for page in walk(client, 2)] == [2, 2]
    assert client.get("/v1/jobs", params={"user": "nobody"}).json() == {"items": [], "next": None}


def test_limits_of_a_page(client: Client, world: World) -> None:
    most = world.settings.page_size_max
    fill(world, [(JobState.QUEUED, "u", "p", "n")] * (world.settings.page_size_default + 1))
    assert len(client.get("/v1/jobs").json()["items"]) == world.settings.page_size_default
    assert client.get("/v1/jobs", params={"limit": most}).status_code == 200
    document = assert_problem(client.get("/v1/jobs", params={"limit": most + 1}), "invalid-parameter")
    detail = f"must be at most {most}, the setting page_size_max (got {most + 1})"
    assert document["errors"] == [{"parameter": "limit", "detail": detail}]
    for limit in ("0", "-1", "x", "1.5", "", "1e3"):
        assert_problem(client.get("/v1/jobs", params={"limit": limit}), "invalid-parameter")
    assert_problem(client.get("/v1/jobs", params={"state": "asleep"}), "invalid-parameter")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/cluster", "/v1/cycles", "/v1/throughput", "/v1/jobs/1"])
def test_a_mistyped_parameter_is_refused(client: Client, path: str) -> None:
    document = assert_problem(client.get(path, params={"stat": "queued", "Limit": 1}), "invalid-parameter")
    assert [fault["parameter"] for fault in document["errors"]] == ["stat", "Limit"]


def forged(*parts: Any) -> str:
    return base64.b64encode(json.dumps(parts).encode(), altchars=b"-_").decode()


MARK = json.loads(base64.b64decode(cursor("jobs [] None None None", (1,)), altchars=b"-_"))[0]


@pytest.mark.parametrize(
    "after",
    ["", "x", "!!!", "é", "AAAA", "bnVsbA==", forged(), forged(MARK), forged(MARK, "1"), forged(MARK, True),
     forged(MARK, 1.0), forged(MARK, 2**70), forged(MARK, [1]), forged("other", 1), forged(MARK, 1, 2), "A" * 3000],
)  # fmt: skip
def test_a_forged_cursor_is_refused(client: Client, after: str) -> None:
    document = assert_problem(client.get("/v1/jobs", params={"after": after}), "invalid-parameter")
    assert document["errors"][0]["parameter"] == "after"


def test_a_cursor_belongs_to_its_list_and_filters(client: Client, world: World) -> None:
    fill(world, [(JobState.QUEUED, "u", "p", "n")] * 3)
    after = client.get("/v1/jobs", params={"limit": 1, "user": "u"}).json()["next"]
    assert client.get("/v1/jobs", params={"user": "u", "after": after}).status_code == 200
    for path, query in (("/v1/jobs", {}), ("/v1/jobs", {"user": "v"}), ("/v1/predictions", {}), ("/v1/cycles", {})):
        assert_problem(client.get(path, params={**query, "after": after}), "invalid-parameter")


def test_a_page_takes_the_same_few_statements_whatever_its_size(client: Client, world: World) -> None:
    fill(world, [(JobState.RUNNING, "u", "p", "n")] * 60)
    statements: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    counts = []
    for limit in (1, 50):
        statements.clear()
        assert len(client.get("/v1/jobs", params={"limit": limit}).json()["items"]) == limit
        counts.append(len([s for s in statements if s.startswith("SELECT")]))
    assert counts == [5, 5]


MEMBER = Identity("ada", Role.VIEWER, frozenset({"nlp", "vision"}), "k")
LONER = Identity("ada", Role.VIEWER, frozenset({NO_PROJECT}), "k")


def plans(world: World, wanted: JobFilter, before: int | None) -> list[str]:
    """How the database would look for the ids of a page."""
    lines: list[str] = []
    states = wanted.states or (None,)
    with world.database.reading() as session:
        for state in states:
            for part in reads._parts(wanted, state):
                statement = reads._ids_in_state(part, state, first=before is None).params(past=before, most=51)
                compiled = statement.compile(world.database.engine, compile_kwargs={"literal_binds": True})
                rows = session.connection().execute(text(f"EXPLAIN QUERY PLAN {compiled}"))
                lines += [row[3] for row in rows]
    return lines


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (JobFilter(), "INTEGER PRIMARY KEY"),
        (JobFilter((JobState.QUEUED,)), "ix_jobs_state_id"),
        (JobFilter(ENDED), "ix_jobs_state_id"),
        (JobFilter(user="u"), "ix_jobs_user_id_state"),
        (JobFilter(project="p"), "ix_jobs_project_id"),
        (JobFilter(name="n"), "ix_jobs_name_id"),
        (JobFilter((JobState.RUNNING,), user="u", name="n"), "ix_jobs_state_id"),
        (JobFilter(ENDED, user="u"), "ix_jobs_user_id_state"),
        (JobFilter(ENDED, user="u", project="p", name="n"), "ix_jobs_name_id"),
        (JobFilter(seen_by=MEMBER), "ix_jobs_project_id"),
        (JobFilter(ENDED, seen_by=MEMBER), "ix_jobs_project_id"),
        (JobFilter(seen_by=LONER), "ix_jobs_user_id_state"),
        (JobFilter((JobState.QUEUED,), seen_by=MEMBER), "ix_jobs_state_id"),
        (JobFilter(ENDED, name="n", seen_by=MEMBER), "ix_jobs_name_id"),
    ],
)
def test_every_filter_walks_one_index_and_never_sorts(world: World, wanted: JobFilter, index: str) -> None:
    for before in (None, 500_000):
        lines = plans(world, wanted, before)
        assert lines
        for line in lines:
            assert "TEMP B-TREE" not in line
            assert index in line or (not before and index == "INTEGER PRIMARY KEY" and line == "SCAN jobs"), line


@pytest.mark.slow
@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_page_of_many_jobs_looks_at_few(world: World) -> None:
    """Steps of SQLite's machine are counted, not time: a look at all 200,000 jobs would take millions."""
    [first] = fill(world, [(JobState.SUCCEEDED, "u0", "p0", "n0")])
    with world.database.writing() as session:
        columns = [column.name for column in JOBS.c]
        changed = {
            "id": "i + 1",
            "user": "'u' || (i % 50)",
            "project": "'p' || (i % 7)",
            "name": "'n' || (i % 1000)",
            "state": "CASE WHEN i % 1000 < 10 THEN 'queued' WHEN i % 10 = 3 THEN 'failed' ELSE 'succeeded' END",
        }
        values = ", ".join(changed.get(name, f'jobs."{name}"') for name in columns)
        names = ", ".join(f'"{name}"' for name in columns)
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
        copy = f"{numbers} INSERT INTO jobs ({names}) SELECT {values} FROM n, jobs WHERE jobs.id = {first}"
        session.connection().execute(text(copy))
    # Hardly any job is theirs, or hardly any project of theirs has one.
    rare = Identity("u7", Role.VIEWER, frozenset({"quiet", NO_PROJECT}), "k")
    many = Identity("u7", Role.VIEWER, frozenset({"p3", *(f"quiet{number}" for number in range(30))}), "k")
    wanted = [
        JobFilter(),
        JobFilter((JobState.QUEUED,)),
        JobFilter(tuple(JobState)),
        JobFilter(user="u7"),
        JobFilter((JobState.FAILED,), user="u3"),
        JobFilter((JobState.QUEUED, JobState.RUNNING), user="u3", name="n3"),
        JobFilter(seen_by=rare),
        JobFilter(ENDED, seen_by=rare),
        JobFilter(user="u3", seen_by=rare),
        JobFilter(name="n3", seen_by=many),
        JobFilter(seen_by=many),
    ]
    for case in wanted:
        for before in (None, 100_000, 1_000):
            steps = _steps(world, case, before)
            # A member's page costs a statement a project, and a look at each of his jobs for those without one: more, but
            # far from a look at all jobs.
            assert steps < (10_000 if case.seen_by is LOCAL else 120_000), (case, before, steps)


def _steps(world: World, wanted: JobFilter, before: int | None) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with world.database.reading() as session:
        connection = session.connection()
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.set_progress_handler(count, 100)
        try:
            reads.jobs(connection, wanted, before, 51)
        finally:
            driver.set_progress_handler(None, 0)
    return 100 * counted
