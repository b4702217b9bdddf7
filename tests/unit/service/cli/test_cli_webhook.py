"""``sooner webhook ...`` against the real API, with a real sender and a receiver on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.background.webhooks import WebhookSender
from service.cli import webhook as commands
from service.client.access import Webhooks
from service.db.tables import DELIVERIES
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.runtime.test_webhook_post import receiver


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        object.__setattr__(made.world.settings, "webhook_private_addresses", True)
        yield made


@pytest.fixture
def delivering(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that delivers whenever a command waits."""
    world = cli.world
    sender = WebhookSender(world.database, world.settings, lambda: world.now_s, lambda: True, lambda outcome: None)
    monkeypatch.setattr(commands, "pause", lambda seconds: sender.run())


def test_add_prints_the_secret_alone_and_list_never(cli: CliWorld) -> None:
    added = cli.run("webhook", "add", "https://example.org/x", "--event", "job.failed", "--project", "nlp")
    assert added.exit_code == 0
    secret = added.stdout.strip()
    assert secret.startswith("whsec_")
    assert added.stderr == "webhook 1 added; its secret, which is not shown again:\n"
    listed = cli.run("webhook", "list")
    assert listed.stdout.splitlines()[1].split() == ["1", "https://example.org/x", "job.failed", "all", "nlp"]
    document = json.loads(cli.run("webhook", "list", "--json").stdout)
    assert document["schema"] == "sooner.webhooks/1"
    assert secret not in json.dumps(document)


def test_a_secret_of_ones_own_comes_from_a_file_or_standard_input(cli: CliWorld, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    added = cli.run("webhook", "add", "https://example.org/", "--secret-file", str(tmp_path / "secret"), "--json")
    document = json.loads(added.stdout)
    assert document["schema"] == "sooner.webhook/1"
    assert document["webhook"]["secret"] == "0123456789abcdef"
    piped = cli.run("webhook", "add", "https://example.org/", "--secret-file", "-", text="fedcba9876543210\n")
    assert piped.stdout.strip() == "fedcba9876543210"


@pytest.mark.usefixtures("delivering")
def test_a_test_waits_for_its_first_attempt(cli: CliWorld) -> None:
    with receiver() as there:
        assert cli.run("webhook", "add", there.url, "--quiet").stdout == "1\n"
        told = cli.run("webhook", "test", "1")
        assert (told.exit_code, told.stdout) == (0, "delivered: status 204\n")
        there.answer = lambda: (403, {})
        failed = cli.run("webhook", "test", "1", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["deliveries"][0]["status"] == 403
    assert failed.stderr == "error: answered with status 403\n"
    rows = cli.run("webhook", "deliveries", "1", "-o", "event,state,status").stdout.splitlines()[1:]
    assert [row.split() for row in rows] == [["webhook.test", "pending", "403"], ["webhook.test", "delivered", "204"]]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """With how many deliveries at most each list of them is read."""
    asked: list[int | None] = []
    listed: Any = Webhooks.deliveries

    def deliveries(noun: Webhooks[Any], webhook: int, *, limit: int | None = None) -> Any:
        asked.append(limit)
        return listed.__get__(noun, Webhooks)(webhook, limit=limit)

    monkeypatch.setattr(Webhooks, "deliveries", deliveries)
    monkeypatch.setattr(commands, "LIST_LIMIT", 3)
    return asked


def test_a_test_reads_only_the_newest_deliveries(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch, limits: list[int | None]
) -> None:
    monkeypatch.setattr(commands, "TEST_WAIT_S", 0.0)
    cli.run("webhook", "add", "http://127.0.0.1:1/")
    for _ in range(4):
        assert "nothing was delivered" in cli.run("webhook", "test", "1").stderr
    assert limits == [3] * 4


def test_a_test_finds_its_delivery_behind_many_newer_ones(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch, limits: list[int | None]
) -> None:
    cli.run("webhook", "add", "http://127.0.0.1:1/")

    def newer(seconds: float) -> None:
        for _ in range(3):
            cli.client.webhooks.test(1)
        with cli.world.database.writing() as session:
            session.connection().execute(DELIVERIES.update().where(DELIVERIES.c.id == 1).values(attempts=1))

    monkeypatch.setattr(commands, "pause", newer)
    shown = cli.run("webhook", "test", "1", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["deliveries"][0]["id"]) == (1, 1)
    assert limits == [3, 3, None]


def test_a_webhook_that_is_removed_while_it_is_tested_is_one_line(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.run("webhook", "add", "http://127.0.0.1:1/")

    def removed(seconds: float) -> None:
        with cli.world.database.writing() as session:
            session.connection().execute(DELIVERIES.delete())

    monkeypatch.setattr(commands, "pause", removed)
    failed = cli.run("webhook", "test", "1")
    told = "error: delivery 1 is no longer listed: the webhook was removed\n"
    assert (failed.exit_code, failed.stderr) == (1, told)


def test_without_a_leader_a_test_says_that_nothing_was_delivered(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "TEST_WAIT_S", 0.0)
    cli.run("webhook", "add", "http://127.0.0.1:1/")
    failed = cli.run("webhook", "test", "1")
    assert failed.exit_code == 1
    assert "nothing was delivered within 0 s" in failed.stderr


def test_remove_and_what_is_not_there(cli: CliWorld) -> None:
    cli.run("webhook", "add", "https://example.org/")
    assert cli.run("webhook", "remove", "1").exit_code == 0
    gone = cli.run("webhook", "remove", "1")
    assert gone.exit_code == 1
    assert "There is no webhook 1." in gone.stderr
    refused = cli.run("webhook", "add", "gopher://example.org/")
    assert refused.exit_code == 2
    assert "url: " in refused.stderr
