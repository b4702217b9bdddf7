"""Usage over HTTP: groups, days, CSV, limits, and what a caller sees of it."""

import csv
import io

import pytest
from httpx import Client, Response
from sqlalchemy import insert

from service.api.routers import usage as usage_routes
from service.db.tables import USAGE
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem

TODAY = int(NOW_S // 86_400)
"""2026-01-01"""


@pytest.fixture
def rows(world: World) -> None:
    entries = [
        (TODAY, "ann", "nlp", 7200.0, 3600.0, 2, 1, 1),
        (TODAY - 1, "ann", "nlp", 36_000.0, 36_000.0, 1, 0, 0),
        (TODAY - 29, "=cmd", "vision", 3600.0, 0.0, 1, 1, 0),
        (TODAY - 30, "old", "vision", 3600.0, 3600.0, 1, 0, 1),
    ]
    names = ("day", "user", "project", "held_gpu_s", "useful_gpu_s", "attempts", "preemptions", "jobs")
    with world.database.writing() as session:
        session.connection().execute(insert(USAGE), [dict(zip(names, row, strict=True)) for row in entries])


def get(client: Client, **asked: str) -> Response:
    return client.get("/v1/usage", params=asked)


def test_by_user_of_the_last_thirty_days_unless_asked_otherwise(client: Client, rows: None) -> None:
    document = get(client).json()
    assert (document["first_day"], document["last_day"]) == ("2025-12-03", "2026-01-01")
    assert document["group"] == ["user"]
    assert document["at"] == "2026-01-01T00:00:00Z"
    assert document["rows"] == [
        {
            "day": None,
            "user": user,
            "project": None,
            "held_gpu_h": held,
            "useful_gpu_h": useful,
            "wasted_gpu_h": held - useful,
            "jobs": jobs,
            "attempts": attempts,
            "preemptions": preemptions,
        }
        for user, held, useful, jobs, attempts, preemptions in (("=cmd", 1, 0, 0, 1, 1), ("ann", 12, 11, 1, 3, 1))
    ]


def test_groups_come_in_one_order_and_days_are_included(client: Client, rows: None) -> None:
    document = get(client, group="project, day", **{"from": "2025-12-31", "to": "2026-01-01"}).json()
    assert document["group"] == ["day", "project"]
    assert [(row["day"], row["project"], row["user"]) for row in document["rows"]] == [
        ("2025-12-31", "nlp", None),
        ("2026-01-01", "nlp", None),
    ]
    whole = get(client, group="", **{"from": "2025-01-01"}).json()
    assert [row["held_gpu_h"] for row in whole["rows"]] == [14.0]
    assert get(client, user="ann", project="vision").json()["rows"] == []
    assert get(client, group="", to="2020-01-01").json()["rows"] == []


@pytest.mark.parametrize("by_header", [True, False])
def test_csv_is_asked_for_by_header_or_parameter_and_starts_no_formula(
    client: Client, rows: None, by_header: bool
) -> None:
    parameters = {"group": "user,project"}
    if by_header:
        answer = client.get("/v1/usage", params=parameters, headers={"Accept": "text/csv;q=1, */*;q=0.1"})
    else:
        answer = client.get("/v1/usage", params={**parameters, "format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["user", "project", "held_gpu_h", "useful_gpu_h", "wasted_gpu_h", "jobs", "attempts", "preemptions"],
        ["'=cmd", "vision", "1.0", "0.0", "1.0", "0", "1", "1"],
        ["ann", "nlp", "12.0", "11.0", "1.0", "1", "3", "1"],
    ]


def test_the_parameter_wins_over_the_header(client: Client) -> None:
    answer = client.get("/v1/usage", params={"format": "json"}, headers={"Accept": "text/csv"})
    assert answer.json()["rows"] == []


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ({"group": "team"}, "group"),
        ({"group": "user,"}, "group"),
        ({"from": "2026-01-02"}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"from": "1767139200"}, "from"),
        ({"from": "2026-01-01T00:00:00"}, "from"),
        ({"from": ""}, "from"),
        ({"to": "2026-02-30"}, "to"),
        ({"from": "2015-12-25"}, "from"),
        ({"format": "xml"}, "format"),
        ({"since": "2026-01-01"}, "since"),
    ],
)
def test_what_cannot_be_asked_is_named(client: Client, asked: dict[str, str], parameter: str) -> None:
    document = assert_problem(client.get("/v1/usage", params=asked), "invalid-parameter")
    assert [fault["parameter"] for fault in document["errors"]] == [parameter]


def test_what_is_no_day_is_told_in_plain_words(client: Client) -> None:
    for text in ("yesterday", "2026-02-30", "2026-01-01T10:00", "1767139200"):
        document = assert_problem(client.get("/v1/usage", params={"to": text}), "invalid-parameter")
        assert document["detail"] == "to: must be a date such as 2026-03-01"


def test_the_longest_interval_and_the_edges_of_the_calendar(client: Client, rows: None) -> None:
    assert get(client, **{"from": "2015-12-26"}).status_code == 200
    assert get(client, to="0001-01-05").json()["first_day"] == "0001-01-01"
    assert get(client, to="9999-12-31").json()["rows"] == []


def test_an_answer_has_a_limit(client: Client, rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_routes, "ROWS_MAX", 2)
    assert len(get(client).json()["rows"]) == 2
    document = assert_problem(get(client, group="user,day"), "invalid-parameter")
    assert "makes more than 2 rows" in document["errors"][0]["detail"]
