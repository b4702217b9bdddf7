"""``sooner quota`` and ``sooner queue`` against the real API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from policies.model.ids import JobId
from service.wire.cluster import QueueDocument, QuotasDocument, ReservationsDocument
from tests.unit.service.cli.cli_world import CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def test_quotas_are_set_listed_and_removed(cli: CliWorld) -> None:
    assert cli.run("quota", "list").stderr == "no quotas are set\n"
    assert cli.run("quota", "set", "project", "nlp", "--gpus-running-max", "16").exit_code == 0
    cli.submit(project="nlp")
    cli.run("quota", "set", "project", "nlp", "--jobs-queued-max", "5")
    cli.run("quota", "set", "user", "ada", "--gpus-running-max", "0")
    assert [line.split() for line in cli.run("quota", "list").stdout.splitlines()] == [
        ["SCOPE", "NAME", "GPUS", "GPUS_MAX", "JOBS", "JOBS_MAX"],
        ["project", "nlp", "0", "16", "1", "5"],
        ["user", "ada", "0", "0", "1"],
    ]
    document = json.loads(cli.run("quota", "list", "--json").stdout)
    assert document["schema"] == "sooner.quotas/1"
    TypeAdapter(QuotasDocument).validate_python({"quotas": document["quotas"]})
    assert cli.run("quota", "remove", "project", "nlp").exit_code == 0
    assert cli.run("quota", "list", "--quiet").stdout.split() == ["user/ada"]
    again = cli.run("quota", "remove", "project", "nlp")
    assert (again.exit_code, again.stderr) == (1, "error: Project 'nlp' has no quota.\n")


def test_a_quota_needs_a_limit(cli: CliWorld) -> None:
    assert cli.run("quota", "set", "project", "nlp").exit_code == 2


def test_the_queue_is_paused_shown_and_resumed(cli: CliWorld) -> None:
    assert cli.run("queue", "show").stderr == "0 unfinished jobs hold 0 GPUs; nothing is paused\n"
    cli.submit()
    assert cli.run("queue", "show").stderr == "1 unfinished job holds 0 GPUs; nothing is paused\n"
    told = cli.run("queue", "pause", "--project", "nlp", "--reason", "file server")
    assert told.stdout == "project nlp: queue_paused accepted\n"
    assert cli.run("queue", "pause").stdout == "everything: queue_paused accepted\n"
    assert [line.split() for line in cli.run("queue", "show").stdout.splitlines()] == [
        ["PAUSED", "NAME", "REASON"],
        ["project", "nlp", "file", "server"],
        ["queue"],
    ]
    document = json.loads(cli.run("queue", "show", "--json").stdout)
    assert document["schema"] == "sooner.queue/1"
    TypeAdapter(QueueDocument).validate_python(document["queue"])
    assert cli.run("queue", "resume", "--project", "nlp").exit_code == 0
    assert cli.run("queue", "resume").exit_code == 0
    assert cli.run("queue", "resume").exit_code == 1
    assert cli.run("queue", "pause", "--user", "a", "--project", "b").exit_code == 2


def test_a_job_takes_one_of_several_types(cli: CliWorld) -> None:
    given = ("job", "submit", "--name", "x", "--gpus", "2", "--gpu-type", "T4, V100", "--min-run-s", "60", "--", "true")
    assert cli.run(*given).exit_code == 0
    (job,) = cli.world.store.jobs([JobId(1)])
    assert (job.spec.gpu_types, job.spec.min_run_s) == (("T4", "V100"), 60.0)


def test_servers_are_reserved_listed_shown_and_opened(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run("reservation", "list").stderr == "nothing is reserved\n"
    times = ("--starts-at", "2025-12-31T10:00+00:00", "--ends-at", "2026-01-02T10:00+00:00")
    made = cli.run("reservation", "create", "a", "b", *times, "--project", "nlp", "--reason", "deadline")
    assert made.exit_code == 0
    number = cli.run("reservation", "list", "--quiet").stdout.strip()
    line = cli.run("reservation", "list").stdout.splitlines()[1].split()
    assert (line[0], line[5:]) == (number, ["yes", "project", "nlp", "a,b", "deadline"])
    states = [line.split()[1] for line in cli.run("cluster", "show").stdout.splitlines()[1:]]
    assert states == ["reserved", "reserved", "up"]
    document = json.loads(cli.run("reservation", "list", "--json").stdout)
    assert document["schema"] == "sooner.reservations/1"
    TypeAdapter(ReservationsDocument).validate_python({"reservations": document["reservations"]})
    assert cli.run("reservation", "create", "a", *times).exit_code == 1
    assert cli.run("reservation", "create", "--count", "1", *times[:3], "soon").exit_code == 2
    told = cli.run("reservation", "cancel", number)
    assert told.stdout == f"reservation {number}: reservation_cancelled accepted\n"
    assert cli.run("reservation", "cancel", number).exit_code == 1
