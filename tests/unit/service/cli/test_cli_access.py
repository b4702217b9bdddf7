"""``sooner key``, ``user``, ``project``, ``audit`` and ``whoami`` against the real API; the first key in a bare database."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import app
from service.db import audit, reads
from service.db.access import stored_key
from service.db.session import open_database
from service.domain.access import Role
from service.domain.api_key import KEY_PREFIX, key_id
from service.domain.duration import seconds_of
from tests.unit.service.cli.cli_world import RUNNER, CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def document(cli: CliWorld, *arguments: str) -> Any:
    words = list(arguments)
    words.insert(words.index("--") if "--" in words else len(words), "--json")
    result = cli.run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_key_is_made_used_and_revoked(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli.run("key", "create", "--user", "ada", "--role", "submitter", "--project", "nlp", "--expires-in", "30d")
    assert made.exit_code == 0, made.output
    text = made.stdout.strip()
    assert text.startswith(KEY_PREFIX)
    assert "ada" in made.stderr
    assert text not in made.stderr
    assert cli.run("whoami").stdout == "the local token: admin, every project\n"

    monkeypatch.setenv("SOONER_TOKEN", text)
    me = cli.run("whoami").stdout
    assert me.startswith(f"ada (key {key_id(text)}): submitter, nlp, until ")
    assert cli.run("key", "list", "--quiet").stdout.split() == [key_id(text)]
    refused = cli.run("user", "list")
    assert refused.exit_code == 1
    assert "needs the role admin" in refused.output

    monkeypatch.delenv("SOONER_TOKEN")
    (listed,) = document(cli, "key", "list")["keys"]
    assert (listed["id"], listed["user"], listed["projects"]) == (key_id(text), "ada", ["nlp"])
    assert "secret" not in json.dumps(listed)
    assert cli.run("key", "list", "--quiet").stdout.split() == [key_id(text)]
    assert document(cli, "key", "revoke", listed["id"])["keys"][0]["revoked_at"] is not None
    assert "revoked" in cli.run("key", "list").stdout
    monkeypatch.setenv("SOONER_TOKEN", text)
    assert cli.run("whoami").exit_code == 1


def test_an_unknown_key_does_not_keep_the_others_from_being_revoked(cli: CliWorld) -> None:
    one, two = (
        key_id(cli.run("key", "create", "--user", "ada", "--role", "viewer").stdout.strip()) or "" for _ in "ab"
    )
    result = cli.run("key", "revoke", one, "typo", two)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [f"key {one}: revoked", f"key {two}: revoked"]
    assert result.stderr == "error: key typo: There is no key 'typo'.\n"
    assert all(key["revoked_at"] is not None for key in document(cli, "key", "list")["keys"])
    again = json.loads(cli.run("key", "revoke", one, "typo", "--json").stdout)
    assert (again["schema"], [key["id"] for key in again["keys"]]) == ("sooner.keys/1", [one])
    assert again["refused"] == [{"key": "typo", "error": "There is no key 'typo'."}]


def test_whoever_has_a_key_submits_in_its_name(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in that of the login on this machine, which the service would refuse."""
    text = cli.run("key", "create", "--user", "ada", "--role", "submitter", "--quiet").stdout.strip()
    monkeypatch.setenv("SOONER_TOKEN", text)
    job = document(cli, "job", "submit", "--name", "digits", "--", "python", "digits.py")["jobs"][0]
    assert job["user"] == "ada"
    refused = cli.run("job", "submit", "--name", "digits", "--user", "bob", "--", "python", "digits.py")
    assert refused.exit_code == 1
    assert "user: " in refused.output


def test_users_and_projects(cli: CliWorld) -> None:
    assert "no users" in cli.run("user", "list").output
    assert document(cli, "user", "add", "ada")["users"][0]["projects"] == []
    assert cli.run("project", "add", "nlp", "ada").stdout == "ada is a member of nlp\n"
    assert document(cli, "project", "list")["projects"] == [{"name": "nlp", "members": ["ada"]}]
    assert document(cli, "user", "disable", "ada")["users"][0]["disabled_at"] is not None
    assert "disabled" in cli.run("user", "list").stdout
    assert document(cli, "user", "enable", "ada")["users"][0]["disabled_at"] is None
    assert cli.run("user", "list").stdout.splitlines()[1].split()[:2] == ["ada", "enabled"]
    assert document(cli, "project", "remove", "nlp", "ada")["membership"]["member"] is False
    assert cli.run("project", "remove", "nlp", "ada").exit_code == 1


def test_adding_a_disabled_user_again_leaves_the_user_disabled(cli: CliWorld) -> None:
    cli.run("user", "add", "ada")
    cli.run("user", "disable", "ada")
    assert document(cli, "user", "add", "ada")["users"][0]["disabled_at"] is not None
    refused = cli.run("key", "create", "--user", "ada", "--role", "viewer")
    sentence = "error: User 'ada' is disabled: a new key would be refused. Enable the user first.\n"
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", sentence)


@pytest.mark.parametrize("verb", ["disable", "enable"])
def test_a_mistyped_user_is_neither_added_nor_said_to_be_disabled(cli: CliWorld, verb: str) -> None:
    cli.run("user", "add", "raoul")
    result = cli.run("user", verb, "raal")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: There is no user 'raal'.\n")
    assert [user["name"] for user in document(cli, "user", "list")["users"]] == ["raoul"]


def test_the_log_of_changes_is_shown(cli: CliWorld) -> None:
    cli.submit()
    assert cli.run("job", "priority", "1", "--set", "7").exit_code == 0
    lines = document(cli, "audit", "--limit", "2")["changes"]
    assert [line["target"] for line in lines] == ["job 1", "job 1"]
    assert lines[0]["action"] == "PUT /v1/jobs/{job_id}/priority"
    assert lines[0]["detail"] == {"priority": 7}
    table = cli.run("audit", "--target", "job 1").stdout
    assert "priority=7" in table
    assert "no such changes" in cli.run("audit", "--user", "nobody").output


def test_the_first_key_needs_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a database: what is empty is made ready."""
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SOONER_URL", "http://127.0.0.1:1")
    made = RUNNER.invoke(app, ["key", "create", "--first", "--user", "root", "--expires-in", "1h"])
    assert made.exit_code == 0, made.output
    database = open_database(f"sqlite:///{tmp_path / 'data' / 'sooner.db'}")
    with database.reading() as session:
        stored = stored_key(session.connection(), key_id(made.stdout.strip()) or "")
        log = session.connection().exec_driver_sql('SELECT "user", action, outcome, address FROM audit_log').all()
    database.close()
    assert stored is not None
    assert (stored.identity.user, stored.identity.role, stored.identity.projects) == ("root", Role.ADMIN, None)
    assert [tuple(line) for line in log] == [(None, "sooner key create --first", "done", None)]


def test_a_disabled_user_gets_no_first_key(cli: CliWorld) -> None:
    cli.run("user", "add", "root")
    cli.run("user", "disable", "root")
    refused = cli.run("key", "create", "--first", "--user", "root")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "User 'root' is disabled" in refused.stderr
    assert document(cli, "key", "list")["keys"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--user", "a", "--first", "--role", "viewer"], "admin key"),
        (["--user", "a", "--first", "--project", "nlp"], "admin key"),
        (["--user", "a/b", "--first"], "user: must not have slashes or control characters"),
        (["--user", "a", "--role", "viewer", "--expires-in", "0.5"], "must be at least 1 s, not 0.5"),
        (["--user", "a", "--first", "--expires-in", "999d"], "key_lifetime_s_max"),
        (["--user", "a"], "give --role"),
        (["--user", "a", "--role", "root"], "root"),
        (["--user", "a", "--role", "viewer", "--expires-in", "soon"], "duration"),
    ],
)
def test_keys_that_cannot_be_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path / "data"))
    refused = RUNNER.invoke(app, ["key", "create", *arguments])
    assert refused.exit_code == 2
    assert words in refused.output
    assert not (tmp_path / "data").exists()


def test_lives_are_written_as_people_say_them() -> None:
    assert [seconds_of(text) for text in ("90d", "12h", "30m", "3600s")] == [7_776_000.0, 43_200.0, 1_800.0, 3_600.0]


def test_a_secret_is_taken_from_the_environment_and_not_shown(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_c0ffee")
    made = cli.run("job", "submit", "--name", "a", "--env", "LR=1", "--secret-env", "HF_TOKEN", "--", "python", "a.py")
    assert made.exit_code == 0, made.output
    assert "hf_c0ffee" not in made.output
    with cli.world.database.reading() as session:
        spec = reads.spec(session.connection(), 1)
    assert spec is not None
    assert (spec.env, spec.secret_env) == ({"LR": "1", "HF_TOKEN": "hf_c0ffee"}, ("HF_TOKEN",))
    shown = cli.run("job", "spec", "1")
    assert "HF_TOKEN: null" in shown.stdout
    assert "LR: '1'" in shown.stdout
    assert document(cli, "job", "spec", "1")["specs"][0]["env"] == {"LR": "1", "HF_TOKEN": None}
    monkeypatch.delenv("HF_TOKEN")
    missing = cli.run("job", "submit", "--name", "a", "--secret-env", "HF_TOKEN", "--", "python", "a.py")
    assert (missing.exit_code, "HF_TOKEN" in missing.output) == (2, True)


def test_a_history_that_is_loaded_by_hand_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path / "data"))
    table = tmp_path / "past.csv"
    table.write_text("job_id,submit_time_s,user,project,name,gpus,duration_s\n1,0,ada,p,train,1,60\n")
    loaded = RUNNER.invoke(app, ["history", "import", str(table), "--source", "2025"])
    assert loaded.exit_code == 0, loaded.output
    database = open_database(f"sqlite:///{tmp_path / 'data' / 'sooner.db'}")
    with database.reading() as session:
        (line,) = audit.lines(session.connection(), audit.AuditFilter(), None, 10)
    database.close()
    assert (line.user, line.address, line.outcome) == (None, None, "done")
    assert (line.action, line.target) == ("sooner history import", "history 2025")
    assert line.detail == {"jobs": 1, "new": 1}
