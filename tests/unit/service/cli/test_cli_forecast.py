"""Forecasts and plans on the command line, against the real API."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from service.api.documents import LATEST_S
from service.cli.forecast import spread
from service.client import ApiError
from service.client.jobs import Jobs
from service.client.predictions import Forecasts
from service.db.tables import JobRow, RequestRow, table
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.wire.predictions import ForecastsDocument, JobForecastDocument, PlanDocument, SpreadDocument
from tests.api.conftest import NOW_S
from tests.api.test_forecasts import end, keep
from tests.unit.service.cli.cli_world import PLAIN, CliWorld, cli_world

START = Spread(NOW_S + 7200.0, NOW_S + 9000.0, NOW_S + 12_600.0)
FINISH = Spread(NOW_S + 10_800.0, NOW_S + 14_400.0, NOW_S + 90_000.0)
START_TEXT = "02:30 [02:00-03:30]"
FINISH_TEXT = "04:00 [03:00-Jan 02 01:00]"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with cli_world(tmp_path, monkeypatch) as made:
        yield made
    monkeypatch.undo()
    time.tzset()


def told(*jobs: JobForecast) -> Forecast:
    return Forecast(NOW_S, 20, {job.job: job for job in jobs})


def queued(number: int) -> JobForecast:
    return JobForecast(JobId(number), START, FINISH, 20, "14 past runs")


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (("2026-01-01T00:00:05Z", "2026-01-01T00:01:00Z", "2026-01-01T00:59:59Z"), "00:01:00 [00:00:05-00:59:59]"),
        (("2026-01-01T00:00:05Z", "2026-01-01T00:01:00Z", "2026-01-01T01:00:00Z"), "00:01 [00:00-01:00]"),
        (
            ("2026-01-01T22:00:00Z", "2026-01-02T01:00:00Z", "2027-03-01T00:00:00Z"),
            "Jan 02 01:00 [22:00-2027 Mar 01 00:00]",
        ),
    ],
)
def test_a_spread_says_as_much_of_the_time_as_it_needs(of: tuple[str, str, str], text: str, cli: CliWorld) -> None:
    assert spread(SpreadDocument(p10=of[0], p50=of[1], p90=of[2]), "2026-01-01T00:00:00Z") == text
    assert spread(None, "2026-01-01T00:00:00Z") == ""


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_last_day_is_shown_in_every_time_zone(zone: str, cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    last = datetime.fromtimestamp(LATEST_S, UTC).isoformat()
    assert "9999 Dec" in spread(SpreadDocument(p10=last, p50=last, p90=last), "2026-01-01T00:00:00Z")


def test_the_queue_shows_the_eta_of_all_from_one_question(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = cli.submit(), cli.submit(), cli.submit()
    cli.world.forecast = told(
        queued(first), JobForecast(JobId(second), None, None, 20, "told", "It is held by a user.")
    )
    asked: list[int] = []
    forecasts = Forecasts.show
    monkeypatch.setattr(
        Forecasts, "show", lambda self, jobs: asked.append(1) or forecasts.__get__(self, Forecasts)(jobs)
    )
    result = cli.run("q")
    lines = result.stdout.splitlines()
    assert lines[1].split(maxsplit=7)[7] == FINISH_TEXT
    assert FINISH_TEXT not in lines[2] + lines[3]
    assert result.stderr == (
        f"ETA of job {second}: It is held by a user.\n"
        f"ETA of job {third}: A new job has a forecast after the next cycle.\n"
    )
    assert asked == [1]
    assert cli.run("q", "--quiet").stdout.split() == [str(first), str(second), str(third)]
    assert cli.run("q", "-o", "job,name").exit_code == 0
    assert json.loads(cli.run("q", "--json").stdout)["jobs"][0]["eta"] is None
    assert asked == [1]
    assert FINISH_TEXT in cli.run("job", "show", str(first)).stdout
    assert FINISH_TEXT in cli.run("job", "list").stdout
    assert len(asked) == 3


def test_a_forecast_names_jobs_or_means_all(cli: CliWorld) -> None:
    first, second = cli.submit(), cli.submit()
    cli.world.forecast = told(queued(first), JobForecast(JobId(second), None, FINISH, 20, "told"))
    result = cli.run("forecast")
    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["JOB", "START", "FINISH", "SAMPLES", "SOURCE", "WHY", "NOT"]
    assert re.split(" {2,}", lines[0].strip()) == ["1", START_TEXT, FINISH_TEXT, "20", "14 past runs"]
    assert START_TEXT not in lines[1]
    one = json.loads(cli.run("forecast", str(first), "--json").stdout)
    assert one["schema"] == "sooner.forecasts/1"
    assert [each["job_id"] for each in one["forecasts"]] == [first]
    TypeAdapter(JobForecastDocument).validate_python(one["forecasts"][0])
    both = json.loads(cli.run("forecast", "--json").stdout)
    assert both["forecasts"] == cli.client.forecasts.show()["forecasts"]
    TypeAdapter(ForecastsDocument).validate_python(cli.client.forecasts.show())
    assert cli.client.jobs.forecast(first) == one["forecasts"][0]


def test_no_forecast_is_a_failure_with_the_reason(cli: CliWorld) -> None:
    cli.submit()
    for arguments in (["forecast"], ["forecast", "1"]):
        result = cli.run(*arguments)
        assert result.exit_code == 1
        assert "No unfinished job has a prediction yet." in result.stderr


def test_an_explanation_says_when_a_waiting_job_is_expected_to_start(cli: CliWorld) -> None:
    job_id = cli.submit()
    cli.world.explanations[JobId(job_id)] = Explanation(Reason.RESOURCES, 2, 1, 1)
    without = cli.run("job", "explain", str(job_id))
    assert "Expected start" not in without.stdout
    cli.world.forecast = told(queued(job_id))
    assert f"{Reason.RESOURCES.sentence} Expected start {START_TEXT}." in cli.run("job", "explain", str(job_id)).stdout
    assert "Expected" not in cli.run("job", "explain", str(job_id), "--json").stdout


def test_a_dry_run_shows_the_plan_and_submits_nothing(cli: CliWorld) -> None:
    cli.world.outlook = queued(9)
    arguments = ["job", "submit", "--dry-run", "--name", "digits", "--gpus", "6"]
    result = cli.run(*arguments, "--", "python", "digits.py")
    assert result.exit_code == 0, result.stderr
    header, line = result.stdout.splitlines()
    assert [name for name in ("PREDICTED", "BEST PLACEMENT", "FREE NOW", "START", "FINISH") if name in header] == [
        "PREDICTED",
        "BEST PLACEMENT",
        "FREE NOW",
        "START",
        "FINISH",
    ]
    for part in ("20 [10-30] iterations", "told", "a:4 b:2         a:4 b:2 ", START_TEXT, FINISH_TEXT):
        assert part in line
    assert result.stderr == "Nothing was submitted.\n"
    document = json.loads(cli.run(*arguments, "--json", "--", "python", "digits.py").stdout)
    assert document["schema"] == "sooner.plans/1"
    TypeAdapter(PlanDocument).validate_python(document["plans"][0])
    assert document["plans"] == cli.client.jobs.plan(PLAIN | {"gpus": 6})["plans"]
    with cli.world.database.reading() as session:
        for rows in (JobRow, RequestRow):
            assert session.connection().execute(table(rows).select()).all() == []
    assert [spec.gpus for spec in cli.world.planned] == [6, 6, 6]


@pytest.mark.parametrize(
    ("free", "now"), [({"a": 1}, "b:2"), ({"a": 1, "b": 1}, "a:1 b:1"), ({"a": 0, "b": 1, "c": 0}, "no")]
)
def test_a_dry_run_says_where_gpus_are_free(cli: CliWorld, free: dict[str, int], now: str) -> None:
    """The best placement is that on empty servers, which may be full."""
    cli.world.free = free
    arguments = ["job", "submit", "--dry-run", "--name", "digits", "--gpus", "2", "--gpu-type", "V100"]
    _, line = cli.run(*arguments, "-o", "BEST PLACEMENT,FREE NOW", "--", "true").stdout.splitlines()
    assert re.split(" {2,}", line) == ["a:2", now]


def test_a_dry_run_of_an_older_service_says_whether(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = cli.client.jobs.plan(PLAIN)
    older = {key: value for key, value in plans["plans"][0].items() if key != "placement_now"}
    monkeypatch.setattr(Jobs, "plan", lambda self, body: {**plans, "plans": [older]})
    result = cli.run("job", "submit", "--dry-run", "--name", "a", "-o", "FREE NOW", "--", "true")
    assert result.stdout.split("\n")[1] == "yes"


def test_a_dry_run_of_a_wrong_job_fails_as_the_submission_would(cli: CliWorld) -> None:
    result = cli.run("job", "submit", "--dry-run", "--name", "digits", "--gpus", "99", "--", "true")
    assert result.exit_code == 2
    assert "gpus: " in result.stderr
    both = cli.run("job", "submit", "--dry-run", "--wait", "--name", "a", "--", "true")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def settle(cli: CliWorld) -> int:
    """A job that was told of, started 90 s and ended three hours after that."""
    number = cli.submit()
    keep(cli.world, NOW_S, number)
    end(cli.world, number, NOW_S + 10_800.0)
    return number


def test_accuracy_is_a_table_and_a_document(cli: CliWorld) -> None:
    assert "has been scored yet" in cli.run("forecast", "--accuracy").stderr
    settle(cli)
    result = cli.run("forecast", "--accuracy")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["OF", "FORECASTS", "COUNT", "JOBS", "INSIDE", "80%", "BIAS", "ERROR", "OF", "HORIZON", "WIDTH"]
    assert lines[1] == [
        "start",
        "all",
        "1",
        "1",
        "0%",
        *("-2", "h", "59", "min"),
        *("2", "h", "59", "min"),
        "17900%",
        "1",
        "h",
    ]
    assert [line[1:3] for line in lines[4:]] == [["all", "1"], ["ahead", "1"], ["1", "GPU"]]
    assert lines[5][2:5] == ["1", "min-10", "min"]
    document = json.loads(cli.run("forecast", "--accuracy", "--json").stdout)
    assert document["schema"] == "sooner.forecasts.accuracy/1"
    assert document["accuracy"]["finish"]["all"]["coverage_80"] == 0.0


def test_what_was_told_of_a_job_and_what_became_of_it(cli: CliWorld) -> None:
    number = settle(cli)
    result = cli.run("forecast", str(number), "--recorded")
    assert result.stdout.splitlines()[1].split()[:9] == [
        *(str(number), "start", "2026-01-01", "00:00:00"),
        *("2026-01-01", "00:01:00", "2026-01-01", "00:00:00", "2026-01-01"),
    ]
    assert "-2 h 59 min" in result.stdout
    assert " no " in result.stdout
    document = json.loads(cli.run("forecast", str(number), "--recorded", "--json").stdout)
    assert (document["schema"], len(document["forecasts"])) == ("sooner.forecasts.told/1", 2)
    assert "within seconds" in cli.run("forecast", str(cli.submit()), "--recorded").stderr


@pytest.mark.parametrize("arguments", [("--recorded",), ("7", "--accuracy"), ("7", "--accuracy", "--recorded")])
def test_options_that_exclude_each_other(arguments: tuple[str, ...], cli: CliWorld) -> None:
    assert cli.run("forecast", *arguments).exit_code == 2


def test_the_queue_is_shown_while_nobody_leads(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: Forecasts[Any], jobs: object) -> object:
        raise ApiError({"type": "no-leader", "title": "No service leads", "status": 503, "detail": "Ask again."})

    job = cli.submit()
    monkeypatch.setattr(Forecasts, "show", nobody)
    result = cli.run("q")
    assert (result.exit_code, result.stderr) == (0, "ETA: Ask again.\n")
    assert result.stdout.splitlines()[1].split()[0] == str(job)
