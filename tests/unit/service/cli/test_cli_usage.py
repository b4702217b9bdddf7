"""``sooner usage``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from sqlalchemy import insert

from service.db.tables import USAGE
from service.wire.access import UsageDocument
from tests.api.conftest import NOW_S
from tests.unit.service.cli.cli_world import CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        day = int(NOW_S // 86_400)
        row = {"held_gpu_s": 7_200_000.0, "useful_gpu_s": 5_400_000.0, "attempts": 3, "preemptions": 2, "jobs": 1}
        with made.world.database.writing() as session:
            rows = [row | {"day": day - ago, "user": "ann", "project": ""} for ago in range(2)]
            session.connection().execute(insert(USAGE), rows)
        yield made


def test_a_table_of_gpu_hours(cli: CliWorld) -> None:
    shown = cli.run("usage", "--by", "user,project")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["USER", "PROJECT", "HELD", "USEFUL", "WASTED", "JOBS", "ATTEMPTS", "PREEMPTIONS"],
        ["ann", "-", "4,000.0", "3,000.0", "1,000.0", "2", "6", "4"],
    ]
    assert shown.stderr == "GPU-hours from 2025-12-03 to 2026-01-01 (UTC)\n"


def test_a_little_is_not_shown_as_nothing(cli: CliWorld) -> None:
    row = {"held_gpu_s": 36.0, "useful_gpu_s": 0.0, "attempts": 1, "preemptions": 0, "jobs": 0}
    with cli.world.database.writing() as session:
        values = row | {"day": int(NOW_S // 86_400), "user": "bob", "project": ""}
        session.connection().execute(insert(USAGE), [values])
    shown = cli.run("usage", "--by", "user").stdout.splitlines()
    assert shown[-1].split() == ["bob", "<0.1", "0.0", "<0.1", "0", "1", "0"]


def test_days_csv_and_json(cli: CliWorld) -> None:
    lines = cli.run("usage", "--by", "day", "--from", "2025-12-31", "--to", "2025-12-31", "--csv").stdout.splitlines()
    assert lines[0].startswith("day,held_gpu_h,")
    assert lines[1:] == ["2025-12-31,2000.0,1500.0,500.0,1,3,2"]
    document = json.loads(cli.run("usage", "--by", "", "--json").stdout)
    assert document["schema"] == "sooner.usage/1"
    TypeAdapter(UsageDocument).validate_python(document["usage"])
    assert [row["held_gpu_h"] for row in document["usage"]["rows"]] == [4000.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "team"), "'team' is not one of day, user, project"),
        (("--csv", "--json"), "exclude each other"),
        (("--from", "2026-01-02"), "must not be after 'to'"),
    ],
)
def test_what_is_wrong_is_said(cli: CliWorld, arguments: tuple[str, ...], words: str) -> None:
    failed = cli.run("usage", *arguments)
    assert failed.exit_code == 2
    assert words in failed.stderr
