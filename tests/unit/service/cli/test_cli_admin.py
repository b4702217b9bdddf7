"""Commands about servers, models, settings, database and history, and how the command line itself behaves."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter
from sqlalchemy import insert, update
from typer.testing import CliRunner

from policies.model.cluster import Server
from policies.model.estimate import EndedJob
from service.cli import connect, guard, models
from service.cli.main import app
from service.client import ApiError, Unreachable
from service.client.jobs import Jobs
from service.config.settings import Settings
from service.db.history import ended_jobs
from service.db.rows import OWN_HISTORY
from service.db.session import open_database
from service.db.tables import MODELS, TRAINING_RUNS
from service.wire.cluster import ClusterDocument
from service.wire.predictions import ModelDocument
from tests.unit.service.cli.cli_world import RUNNER, CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


# Servers


def test_info_shows_servers_and_free_gpus(cli: CliWorld) -> None:
    cli.world.free["a"] = 1
    result = cli.run("info")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["SERVER", "STATE", "GPUS", "FREE", "TYPE", "RACK", "NIC_GBPS", "REASON"],
        ["a", "up", "4", "1", "V100", "r1", "100"],
        ["b", "up", "4", "4", "V100", "r1", "100"],
        ["c", "up", "2", "2", "T4", "r2", "100"],
    ]
    assert result.stderr == "test: 7 of 10 usable GPUs are free\n"
    assert cli.run("cluster", "show").stdout == result.stdout
    assert cli.run("info", "--quiet").stdout.split() == ["a", "b", "c"]


def test_a_type_without_a_speed_is_warned_of(cli: CliWorld) -> None:
    added = cli.run("cluster", "add", "d", "--gpus", "8", "--gpu-type", "A100")
    assert added.stdout == "server d: server_added accepted\n"
    assert added.stderr.startswith("warning: GPU type 'A100' has no gpu_speed: 1.0, that of a V100, is assumed; write ")
    assert cli.run("cluster", "add", "e", "--gpus", "8", "--gpu-type", "A100", "--gpu-speed", "2").stderr == ""
    cli.world.servers.append(Server("p", 4, "P100", gpu_speed_assumed=True))
    assert "\nwarning: GPU type 'P100' has no gpu_speed" in cli.run("cluster", "show").stderr


def test_the_cluster_as_json(cli: CliWorld) -> None:
    document = json.loads(cli.run("info", "--json").stdout)
    assert set(document) == {"schema", "cluster"}
    assert document["schema"] == "sooner.cluster.status/1"
    TypeAdapter(ClusterDocument).validate_python(document["cluster"])


def test_reasons_and_changes_of_servers_are_shown(cli: CliWorld) -> None:
    cli.world.change_server("b", down=True, engine_drained=True, detail="no answer for 60 s")
    assert "no answer for 60 s" in cli.run("info").stdout
    assert cli.run("info", "-o", "server,state,drained_by").stdout.splitlines()[2].split() == ["b", "down", "engine"]
    [line] = cli.run("cluster", "events").stdout.splitlines()[1:]
    assert line.split()[-6:] == ["down", "no", "answer", "for", "60", "s"]
    # The largest limit is more than a page.
    [event] = json.loads(cli.run("cluster", "events", "--limit", "1000", "--json").stdout)["events"]
    assert (event["server"], event["kind"], event["detail"]) == ("b", "down", "no answer for 60 s")


def test_servers_are_added_drained_and_resumed(cli: CliWorld) -> None:
    assert cli.run("cluster", "drain", "a", "b").stdout.splitlines() == [
        "server a: server_drained accepted",
        "server b: server_drained accepted",
    ]
    assert "server_resumed" in cli.run("cluster", "resume", "a").stdout
    added = json.loads(cli.run("cluster", "add", "d", "--gpus", "8", "--nic-gbps", "200", "--json").stdout)
    assert added == {
        "schema": "sooner.accepted/1",
        "accepted": [{"accepted": "server_added", "job_id": None, "server": "d"}],
    }
    missing = cli.run("cluster", "drain", "zebra")
    assert missing.exit_code == 1
    assert "There is no server 'zebra'." in missing.stderr
    for verb, word in (("drain", "server_drained"), ("resume", "server_resumed")):
        some = cli.run("cluster", verb, "a", "zebra", "b")
        told = f"server a: {word} accepted\nserver b: {word} accepted\n"
        assert (some.exit_code, some.stdout) == (1, told)
        assert some.stderr == "error: server zebra: There is no server 'zebra'.\n"
    document = json.loads(cli.run("cluster", "drain", "zebra", "b", "--json").stdout)
    assert [each["server"] for each in document["accepted"]] == ["b"]
    assert document["refused"] == [{"server": "zebra", "error": "There is no server 'zebra'."}]
    twice = cli.run("cluster", "add", "d", "--gpus", "4")
    assert twice.exit_code == 1
    assert "A server named 'd' already exists." in twice.stderr


# Models


def add_model(cli: CliWorld, model_id: str, created_at_s: float) -> None:
    values = {
        "id": model_id,
        "kind": "iterations: xgboost",
        "state": "champion",
        "trained_until_s": created_at_s,
        "rows": 1234,
        "feature_schema": "features/1:abc",
        "libraries": {"numpy": "2"},
        "metrics": {"iterations": {"champion": "xgboost"}},
        "sha256": "0" * 64,
        "path": "/nowhere",
        "created_at_s": created_at_s,
    }
    with cli.world.database.writing() as session:
        session.connection().execute(MODELS.insert(), values)


def test_models_are_listed_and_shown(cli: CliWorld) -> None:
    add_model(cli, "m-1", 1.0)
    add_model(cli, "m-2", 2.0)
    assert cli.run("model", "list", "--quiet").stdout.split() == ["m-2", "m-1"]
    document = json.loads(cli.run("model", "list", "--json").stdout)
    assert document["schema"] == "sooner.models/1"
    for model in document["models"]:
        TypeAdapter(ModelDocument).validate_python(model)
    assert "1,234" in cli.run("model", "list").stdout
    shown = cli.run("model", "show", "m-1")
    assert '"champion": "xgboost"' in shown.stdout
    assert json.loads(cli.run("model", "show", "m-1", "--json").stdout)["models"][0]["id"] == "m-1"
    missing = cli.run("model", "show", "m-9")
    assert (missing.exit_code, "no model 'm-9'" in missing.stderr) == (1, True)


def test_who_predicts_is_shown_bucket_by_bucket(cli: CliWorld) -> None:
    lines = cli.run("model", "serving").stdout.splitlines()
    assert lines[0].split() == ["UNIT", "PAST_RUNS", "JOBS", "COVERAGE_80", "WEIGHTS"]
    assert lines[1].split()[:4] == ["iterations", "0", "0", "-"]
    assert lines[1].split()[4:8] == ["recurrence_median20", "30%,", "first_runs", "30%"]
    assert len(lines) == 1 + 2 * 4
    assert cli.run("model", "serving", "--quiet").stdout.split()[-1] == "service_s/20+"
    document = json.loads(cli.run("model", "serving", "--json").stdout)
    assert document["schema"] == "sooner.predictor/1"
    assert [head["unit"] for head in document["predictor"]["heads"]] == ["iterations", "service_s"]


def test_training_is_started_and_can_be_waited_for(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run("model", "train").stdout == "training run 1 started\n"
    assert json.loads(cli.run("model", "train", "--json").stdout) == {"schema": "sooner.training/1", "training_run": 2}
    add_model(cli, "m-new", 3.0)
    outcomes = iter(["promoted", "failed"])
    monkeypatch.setattr(models, "pause", lambda seconds: end_training(cli, next(outcomes)))
    open_trainings(cli, 5)
    waited = cli.run("model", "train", "--wait", "--json")
    assert json.loads(waited.stdout)["models"][0]["id"] == "m-new"
    assert waited.stderr == "training run 3 started\ntraining run 3: promoted: why\n"
    failed = cli.run("model", "train", "--wait")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "training run 4: failed: why" in failed.stderr
    late = cli.run("model", "train", "--wait", "--timeout-s", "0")
    assert late.exit_code == 1
    assert "training run 5 has not ended after 0 s" in late.stderr


def open_trainings(cli: CliWorld, count: int) -> None:
    with cli.world.database.writing() as session:
        session.connection().execute(insert(TRAINING_RUNS), [{"started_at_s": 1.0, "detail": ""}] * count)


def end_training(cli: CliWorld, outcome: str) -> None:
    """The run that is waited for ends so."""
    ended = {"outcome": outcome, "detail": "why", "ended_at_s": 2.0}
    with cli.world.database.writing() as session:
        session.connection().execute(
            update(TRAINING_RUNS).where(TRAINING_RUNS.c.id == cli.world.trainings).values(**ended)
        )


def test_promotion(cli: CliWorld) -> None:
    add_model(cli, "m-1", 1.0)
    assert cli.run("model", "promote", "m-1").stdout == "m-1 is the champion\n"
    assert cli.world.promoted == ["m-1"]
    cli.world.refusal = "its files are gone"
    refused = cli.run("model", "promote", "m-1")
    assert refused.exit_code == 1
    assert "its files are gone" in refused.stderr


# Settings, database, history


def test_every_setting_is_shown_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SOONER_PORT", "9000")
    document = json.loads(RUNNER.invoke(app, ["config", "show", "--json"]).stdout)
    assert document["schema"] == "sooner.config/1"
    lines = {line["name"]: line for line in document["settings"]}
    assert set(lines) == set(Settings.model_fields)
    assert lines["port"]["value"] == "9000"
    assert (lines["port"]["source"], lines["port"]["env"]) == ("env", "SOONER_PORT")
    assert lines["host"]["source"] == "default"
    assert (lines["restart_s"]["value"], lines["restart_s"]["unit"]) == ("60", "seconds")
    text = RUNNER.invoke(app, ["config", "show"]).stdout
    assert any(line.split() == ["port", "9000", "env", "SOONER_PORT"] for line in text.splitlines())


@pytest.mark.parametrize("arguments", [["config", "show"], ["q"], ["serve"], ["db", "upgrade"]])
def test_a_wrong_setting_is_one_line_and_code_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("SOONER_PORT", "99999")
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "SOONER_PORT" in result.stderr


def test_upgrade_makes_the_schema_once(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = RUNNER.invoke(app, ["db", "upgrade", "--data-dir", data, "--json"])
    assert json.loads(first.stdout) == {"schema": "sooner.database/1", "before": "empty", "after": "current"}
    again = RUNNER.invoke(app, ["db", "upgrade", "--data-dir", data])
    assert (again.exit_code, again.stdout) == (0, "the database already has this program's schema\n")
    wrong = RUNNER.invoke(app, ["db", "upgrade", "--data-dir", data, "--database-url", "nonsense"])
    assert wrong.exit_code == 2
    assert "not of the form sqlite:///" in wrong.stderr


HISTORY = (
    "job_id,submit_time_s,user,project,name,gpus,duration_s,end_time_s,iterations,walltime_s,final_state\n"
    "a,0,ada,p,train,2,50,100,500,,succeeded\n"
    "b,10,ben,,eval,1,7.5,,,60,killed\n"
)


def labels(url: str) -> list[EndedJob]:
    database = open_database(url)
    try:
        return list(ended_jobs(database))
    finally:
        database.close()


def test_history_is_loaded_once_and_becomes_labels(tmp_path: Path) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY)
    arguments = ["history", "import", str(table_file), "--start", "2026-01-01", "--data-dir", str(tmp_path / "data")]
    first = RUNNER.invoke(app, [*arguments, "--json"])
    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout) == {"schema": "sooner.history.import/1", "source": "past.csv", "jobs": 2, "new": 2}
    assert RUNNER.invoke(app, arguments).stdout == "0 of 2 jobs were added to the history 'past.csv'\n"
    table_file.write_text("".join(HISTORY.splitlines(keepends=True)[:2]))
    assert RUNNER.invoke(app, arguments).stdout == "0 of 1 job was added to the history 'past.csv'\n"
    eval_job, train_job = labels(f"sqlite:///{tmp_path / 'data' / 'sooner.db'}")
    start_s = 1_767_225_600.0
    assert (eval_job.spec.recurrence, eval_job.spec.walltime_s) == (("ben", "", "eval"), 60.0)
    assert (eval_job.submitted_at_s, eval_job.ended_at_s) == (start_s + 10, start_s + 17.5)
    assert (eval_job.iterations, eval_job.final_state) == (None, "killed")
    assert (train_job.spec.recurrence, train_job.spec.gpus) == (("ada", "p", "train"), 2)
    assert (train_job.ended_at_s, train_job.iterations, train_job.seconds_per_iteration) == (start_s + 100, 500.0, 0.1)


def test_history_without_a_start_ends_now(tmp_path: Path) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY)
    before_s = time.time()
    RUNNER.invoke(app, ["history", "import", str(table_file), "--data-dir", str(tmp_path / "data")])
    newest_s = labels(f"sqlite:///{tmp_path / 'data' / 'sooner.db'}")[-1].ended_at_s
    assert before_s - 1 <= newest_s <= time.time() + 1


def test_a_history_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY)
    start = datetime.fromtimestamp(time.time() + 900.0, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    arguments = ["history", "import", str(table_file), "--start", start, "--data-dir", str(tmp_path / "data")]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert re.fullmatch(
        r"error: --start: the last job of the table would end (99\d|1,000) s from now; all jobs of a history have ended\n",
        result.stderr,
    )
    assert not (tmp_path / "data" / "sooner.db").exists()


def test_a_broken_history_is_one_line(tmp_path: Path) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY.replace("7.5", "-7.5"))
    result = RUNNER.invoke(app, ["history", "import", str(table_file), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 2
    assert f"{table_file}:3: duration_s" in result.stderr


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "must not be empty"),
        ("a\nb", "must not have control characters"),
        ("a" * 201, "must have at most 200 characters"),
        ("\udcff", "must be UTF-8"),
    ],
)
def test_a_history_has_a_name_of_one_line(tmp_path: Path, source: str, told: str) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY)
    arguments = ["history", "import", str(table_file), "--source", source, "--data-dir", str(tmp_path / "data")]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --source: ") and told in result.stderr
    assert not (tmp_path / "data" / "sooner.db").exists()


def test_the_name_of_our_own_history_cannot_be_taken(tmp_path: Path) -> None:
    table_file = tmp_path / "past.csv"
    table_file.write_text(HISTORY)
    arguments = ["history", "import", str(table_file), "--source", OWN_HISTORY, "--data-dir", str(tmp_path / "data")]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert "is reserved for the jobs of this service" in result.stderr
    assert labels(f"sqlite:///{tmp_path / 'data' / 'sooner.db'}") == []


@pytest.mark.parametrize("command", [["check"], ["backup", "b.zip"]])
def test_what_only_reads_the_database_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["db", *command, "--data-dir", str(tmp_path / "none")])
    assert result.exit_code == 1 and f"There is no database at {tmp_path / 'none'}" in result.output
    assert list(tmp_path.iterdir()) == []


# Finding the service


@pytest.mark.parametrize(
    ("url", "token", "sent"),
    [
        (None, None, "secret"),
        (None, "other", "other"),
        ("http://localhost:1", None, "secret"),
        ("http://elsewhere.test:1", None, None),
        ("http://elsewhere.test:1", "other", "other"),
    ],
)
def test_the_token_of_this_machine_stays_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str | None, token: str | None, sent: str | None
) -> None:
    """And goes there only after a proof; a token that the user names goes where the user says."""
    given: list[Any] = []

    def client(*, token: str | None, proven: bool, **_: Any) -> Any:
        return nullcontext(given.extend((token, proven)))

    monkeypatch.setattr(connect, "Client", client)
    (tmp_path / "token").write_text("secret\n")
    for name, value in (("SOONER_DATA_DIR", str(tmp_path)), ("SOONER_URL", url), ("SOONER_TOKEN", token)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with connect.connect():
        pass
    assert given == [sent, sent == "secret"]


@pytest.mark.parametrize("token", ["sooner_abc_SECRET\nnote", "sooner_abc_SECRETü", "SECRET\x1b[2J"])
@pytest.mark.parametrize("kept", ["variable", "file"])
def test_a_token_that_no_header_can_hold_is_one_line_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str, kept: str
) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SOONER_URL", raising=False)
    monkeypatch.setenv("SOONER_TOKEN", token if kept == "variable" else "")
    (tmp_path / "token").write_text(token)
    result = RUNNER.invoke(app, ["q"])
    origin = "SOONER_TOKEN" if kept == "variable" else tmp_path / "token"
    line = f"error: {origin}: must be one line of printable ASCII characters\n"
    assert (result.exit_code, result.stderr) == (2, line)


def test_a_service_that_does_not_run_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SOONER_URL", "http://127.0.0.1:9")
    result = RUNNER.invoke(app, ["q"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: cannot reach Sooner at http://127.0.0.1:9 (connection refused); to start the service, run: sooner serve\n"
    )
    monkeypatch.setenv("SOONER_URL", "http://elsewhere.invalid:9")
    assert "sooner serve" not in RUNNER.invoke(app, ["q"]).stderr, "it would start another one, here"
    monkeypatch.setenv("SOONER_URL", "nonsense")
    wrong = RUNNER.invoke(app, ["q"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


def test_where_something_listens_the_remedy_is_not_to_start_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), connect.refusals():
        raise Unreachable("https://127.0.0.1:9", "its certificate is not trusted: self-signed certificate")
    assert capsys.readouterr().err == (
        "error: cannot reach Sooner at https://127.0.0.1:9 (its certificate is not trusted: self-signed certificate)\n"
    )


def test_without_a_token_the_refusal_says_where_none_was_found(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    fault, remedy = "is empty", "set SOONER_DATA_DIR to the service's data folder, or SOONER_TOKEN to an API key"
    for _ in range(2):
        result = cli.run("q")
        assert (result.exit_code, result.stderr) == (1, f"error: no token was found ({file}: {fault}); {remedy}\n")
        file.unlink(missing_ok=True)
        fault = "No such file or directory"


def test_a_service_elsewhere_needs_a_token_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOONER_URL", "http://elsewhere.test")
    refused = ApiError({"status": 401, "title": "A valid token is required"})
    with pytest.raises(typer.Exit), connect.refusals(without_token=True):
        raise refused
    with pytest.raises(typer.Exit), connect.refusals():
        raise refused
    assert capsys.readouterr().err == (
        "error: the service at http://elsewhere.test needs a token; set SOONER_TOKEN to an API key\n"
        "error: A valid token is required\n"
    )


# The command line itself


TELL_MODULES = """
import atexit, sys
atexit.register(lambda: print("\\n@", *sys.modules))
from service.cli.main import main
main()
"""


def modules_after(*arguments: str) -> set[str]:
    """What a fresh process has imported after a command."""
    done = subprocess.run(
        [sys.executable, "-c", TELL_MODULES, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "SOONER_URL": "http://127.0.0.1:9"},
        timeout=60,
    )
    return {name.partition(".")[0] for name in done.stdout.rpartition("\n@ ")[2].split()}


@pytest.mark.parametrize("arguments", [["--help"], ["q"], ["job", "submit", "--help"]])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    found = modules_after(*arguments)
    assert "typer" in found
    assert not found & {"sklearn", "xgboost", "fastapi", "sqlalchemy", "sqlmodel", "numpy", "apscheduler", "uvicorn"}


def test_late_groups_work_when_they_are_called() -> None:
    listed = RUNNER.invoke(app, ["--help"]).stdout
    for name in ("serve", "demo", "q", "info", "job", "cluster", "model", "workload", "sim", "db", "config", "history"):
        assert f" {name} " in listed
    assert "bounds" in RUNNER.invoke(app, ["sim", "--help"]).stdout
    assert RUNNER.invoke(app, ["workload", "describe", "/nowhere.csv"]).exit_code == 2


def test_usage_errors_and_version() -> None:
    assert RUNNER.invoke(app, ["frobnicate"]).exit_code == 2
    assert RUNNER.invoke(app, ["q", "--frobnicate"]).exit_code == 2
    version = CliRunner().invoke(app, ["--version"])
    assert (version.exit_code, version.stdout.split()[0]) == (0, "sooner")


def test_a_stranger_at_the_address_is_no_traceback(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(noun: Jobs[Any], **filters: Any) -> Any:
        raise ApiError({"status": 502, "title": "HTTP 502 Bad Gateway"})

    monkeypatch.setattr(Jobs, "list", refuse)
    result = cli.run("q")
    assert (result.exit_code, result.stderr) == (1, "error: HTTP 502 Bad Gateway\n")


# The guard


def test_the_names_are_ours_here() -> None:
    assert guard.conflict() is None


def test_a_package_found_elsewhere_is_named(tmp_path: Path) -> None:
    ours = {name: tmp_path / name for name in guard.IMPORT_NAMES}
    assert guard.shadowed(ours, tmp_path) is None
    line = guard.shadowed(ours | {"policies": Path("/elsewhere/policies")}, tmp_path)
    assert line is not None
    assert "'policies' is imported from /elsewhere/policies" in line
    assert "'service' is not found" in (guard.shadowed(ours | {"service": None}, tmp_path) or "")


def distribution(folder: Path, name: str, record: str, top_level: str = "") -> PathDistribution:
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
    (info / "RECORD").write_text(record)
    if top_level:
        (info / "top_level.txt").write_text(top_level)
    return PathDistribution(info)


def test_a_distribution_that_installs_our_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = distribution(tmp_path, "sooner", "policies/base.py,,\nservice/app.py,,\nsooner-1.dist-info/RECORD,,\n")
    harmless = distribution(tmp_path, "harmless", "service.py,,\nharmless/service/x.py,,\n")
    rude = distribution(tmp_path, "rude", "rude/x.py,,\nservice/__init__.py,,\n")
    old = distribution(tmp_path, "old", "", top_level="predictor\nother\n")
    monkeypatch.setattr(guard, "distributions", lambda: [ours, harmless])
    assert guard.conflict() is None
    for other, name in ((rude, "service"), (old, "predictor")):
        monkeypatch.setattr(guard, "distributions", lambda other=other: [ours, other])
        line = guard.conflict()
        assert line is not None
        assert f"also installs '{name}'" in line
        assert "\n" not in line
