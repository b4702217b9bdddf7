"""Waiting for jobs: what a look at them asks of the service, its outages, and what is printed in the end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.submit import LOOK_SINGLY_MAX
from service.client import ApiError, ClientError, Unreachable
from service.client.jobs import Jobs
from service.wire.jobs import JobDocument
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.cli.test_cli_jobs import jobs_of, set_job


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def test_waiting_reflects_the_outcome_and_says_why_it_waits(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = cli.submit(), cli.submit()
    steps = iter(
        [
            lambda: set_job(cli, good, state="running", reason="started"),
            lambda: set_job(cli, good, state="succeeded", reason="completed", finished_at_s=5.0, exit_code=0),
            lambda: set_job(cli, bad, state="failed", reason="crashed", finished_at_s=5.0, exit_code=3),
        ]
    )
    monkeypatch.setattr("service.cli.submit.pause", lambda seconds: next(steps)())
    result = cli.run("job", "wait", "1-2", "--json")
    assert result.exit_code == 1
    assert [job["state"] for job in jobs_of(result.stdout)] == ["succeeded", "failed"]
    told = [line for line in result.stderr.splitlines() if line.startswith("job 1: ")]
    assert [line.split(": ")[1] for line in told] == ["queued", "running", "succeeded"]
    assert "job 2 failed with exit code 3: The program ended with an error." in result.stderr
    assert result.stderr.splitlines()[-1] == "its output: sooner job logs 2"
    assert cli.run("job", "wait", "1", "--quiet").exit_code == 0


def test_a_program_that_never_ran_has_no_output_to_look_at(cli: CliWorld) -> None:
    cli.submit()
    set_job(cli, 1, state="failed", reason="command_not_found", finished_at_s=5.0)
    result = cli.run("job", "wait", "1", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "why: sooner job explain 1"


def test_many_jobs_are_waited_for_by_the_page(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [cli.submit() for _ in range(LOOK_SINGLY_MAX + 5)]
    asked: list[int] = []
    show = Jobs.show
    monkeypatch.setattr(Jobs, "show", lambda noun, job_id: asked.append(job_id) or show.__get__(noun, Jobs)(job_id))

    def end(seconds: float) -> None:
        for job_id in ids:
            set_job(cli, job_id, state="succeeded", finished_at_s=1.0)

    monkeypatch.setattr("service.cli.submit.pause", end)
    result = cli.run("job", "wait", f"1-{len(ids)}", "--quiet")
    assert result.exit_code == 0
    assert result.stdout.split() == [str(job_id) for job_id in ids]
    assert asked == ids


def test_elements_are_waited_for_without_a_look_at_other_jobs(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a queue of 60,000 jobs each look at all of them took the service seconds."""
    cli.submit()
    made = cli.run(
        "job", "submit", "--name", "a", "--user", "ada", "--array", f"0-{LOOK_SINGLY_MAX}", "-q", "--", "true"
    )
    ids = [int(line) for line in made.stdout.split()]
    listed: list[list[int]] = []
    list_jobs = Jobs.list

    def spied(noun: Jobs[Any], **filters: Any) -> Any:
        found = list_jobs.__get__(noun, Jobs)(**filters)
        listed.append([job["id"] for job in found])
        return found

    monkeypatch.setattr(Jobs, "list", spied)
    pauses = iter([lambda: None, lambda: [set_job(cli, each, state="succeeded", finished_at_s=1.0) for each in ids]])
    monkeypatch.setattr("service.cli.submit.pause", lambda seconds: next(pauses)())
    assert cli.run("job", "wait", f"{ids[0]}-{ids[-1]}", "-q").exit_code == 0
    # What is an element is known after the first look.
    assert listed == [[1, *ids][::-1], ids[::-1], []]


def test_jobs_of_a_long_queue_are_waited_for_singly(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [cli.submit() for _ in range(LOOK_SINGLY_MAX + 5)]
    monkeypatch.setattr("service.cli.submit.PAGE_SIZE", LOOK_SINGLY_MAX)
    monkeypatch.delattr(Jobs, "list")
    late = cli.run("job", "wait", f"1-{len(ids)}", "--timeout-s", "0", "-q")
    assert (late.exit_code, [int(line) for line in late.stdout.split()]) == (1, ids)


def test_waiting_gives_up_after_its_timeout(cli: CliWorld) -> None:
    cli.submit()
    result = cli.run("job", "wait", "all", "--timeout-s", "0")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "error: jobs that have not ended after 0 s: 1"


SUBMIT = ("job", "submit", "--name", "a", "--user", "ada", "--wait")
AWAY = Unreachable("http://127.0.0.1:8765", "connection refused")
STARTING = ApiError({"status": 503, "title": "The service is starting"})


def test_waiting_for_a_job_that_does_not_exist_prints_no_empty_table(cli: CliWorld) -> None:
    result = cli.run("job", "wait", "999")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: There is no job 999.\n")
    assert json.loads(cli.run("job", "wait", "999", "--json").stdout)["jobs"] == []


@pytest.mark.parametrize("command", [("job", "wait", "1"), (*SUBMIT, "--", "true")])
def test_waiting_outlasts_outages_of_the_service(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    if command[1] == "wait":
        cli.submit()
    answers = iter([AWAY, AWAY, None, STARTING, AWAY, None])
    show: Any = Jobs.show

    def shown(noun: Jobs[Any], job_id: int) -> Any:
        if (error := next(answers)) is not None:
            raise error
        return show.__get__(noun, Jobs)(job_id)

    steps: Iterator[dict[str, Any]] = iter(
        [{}, {}, {"state": "running"}, {}, {"state": "succeeded", "finished_at_s": 1.0}]
    )
    monkeypatch.setattr(Jobs, "show", shown)
    monkeypatch.setattr("service.cli.submit.pause", lambda seconds: set_job(cli, 1, priority=0, **next(steps)))
    result = cli.run(*command)
    assert result.exit_code == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if line.endswith("; waiting until it answers again")]
    assert told == [f"{error}; waiting until it answers again" for error in (AWAY, STARTING)]


def test_waiting_does_not_outlast_its_timeout_nor_a_refusal(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.submit()

    def refuse(error: ClientError) -> None:
        def shown(noun: Jobs[Any], job_id: int) -> JobDocument:
            raise error

        monkeypatch.setattr(Jobs, "show", shown)

    refuse(AWAY)
    late = cli.run("job", "wait", "1", "--timeout-s", "0")
    assert (late.exit_code, late.stderr.splitlines()[-1]) == (1, "error: jobs that have not ended after 0 s: 1")
    refuse(ApiError({"status": 401, "title": "A valid token is required"}))
    assert cli.run("job", "wait", "1").stderr.splitlines()[-1] == "error: A valid token is required"


@pytest.mark.parametrize("how", ["-q", "--json"])
def test_waiting_that_ends_early_still_prints_the_jobs(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def ids(text: str) -> list[int]:
        return [job["id"] for job in jobs_of(text)] if how == "--json" else [int(line) for line in text.split()]

    late = cli.run(*SUBMIT, "--timeout-s", "0", how, "--", "true")
    assert (late.exit_code, ids(late.stdout)) == (1, [1])
    assert late.stderr.splitlines()[-1] == "error: jobs that have not ended after 0 s: 1"

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.cli.submit.pause", interrupt)
    stopped = cli.run(*SUBMIT, how, "--", "true")
    assert (stopped.exit_code, ids(stopped.stdout)) == (130, [2])
    set_job(cli, 1, state="succeeded", finished_at_s=1.0)
    waited = cli.run("job", "wait", "1-2", "--timeout-s", "0", how)
    assert (waited.exit_code, ids(waited.stdout)) == (1, [1, 2])
    assert waited.stderr.splitlines()[-1] == "error: jobs that have not ended after 0 s: 2"
