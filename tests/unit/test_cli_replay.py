"""``sooner sim snapshot`` and ``sooner sim replay``, from a service's recorded cycle to the exit code."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli_world import CliWorld, cli_world
from tests.unit.test_replay import recorded, snapshots


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        kept = snapshots(recorded([(0, 4, 60), (0, 2, 60), (1, 4, 500), (2, 4, 50)], "fifo"))
        made.world.snapshots = {each.cycle: each for each in kept}
        monkeypatch.chdir(tmp_path)
        yield made


def test_a_live_cycle_is_saved_and_decided_again(cli: CliWorld, tmp_path: Path) -> None:
    newest = max(cli.world.snapshots)
    saved = cli.run("sim", "snapshot")
    assert (saved.exit_code, saved.stdout) == (0, f"cycle-{newest}.json\n")
    result = cli.run("sim", "replay", f"cycle-{newest}.json")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"cycle {newest}: the same 1 actions\n  start job 4 on a:4\n"
    document = json.loads(cli.run("sim", "replay", f"cycle-{newest}.json", "--json").stdout)
    assert (document["schema"], document["equal"], document["cycle"]) == ("sooner.sim.replay/1", True, newest)
    assert document["recorded"] == document["replayed"] != []


def test_a_difference_is_shown_and_fails(cli: CliWorld, tmp_path: Path) -> None:
    cycle = next(number for number, each in cli.world.snapshots.items() if [a.job for a in each.actions] == [3])
    assert cli.run("sim", "snapshot", str(cycle), "--out", "c.json").stdout == "c.json\n"
    what_if = cli.run("sim", "replay", "c.json", "--policy", "sjf")
    assert what_if.exit_code == 1
    assert what_if.stdout == (
        f"cycle {cycle}: decided differently\n  recorded: start job 3 on a:4\n  replayed: start job 4 on a:4\n"
    )
    document = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(document | {"actions": {"v": 1, "items": []}}))
    forged = cli.run("sim", "replay", "c.json")
    assert forged.exit_code == 1
    assert "  recorded: nothing\n" in forged.stdout


def test_what_cannot_be_replayed_is_one_line(cli: CliWorld, tmp_path: Path) -> None:
    cycle, kept = next(iter(cli.world.snapshots.items()))
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema": "sooner.jobs/1"}')
    cli.world.snapshots = {cycle: replace(kept, policy="lottery")}
    cli.run("sim", "snapshot", "--out", "lottery.json")
    for name, said in (
        ("missing.json", "No such file"),
        ("text.json", "not JSON"),
        ("other.json", "sooner.cycle/1"),
        ("lottery.json", "unknown policy 'lottery'"),
    ):
        result = cli.run("sim", "replay", name)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
    assert cli.run("sim", "replay", "lottery.json", "--policy", "raffle").exit_code == 2
    cli.world.snapshots = {}
    none = cli.run("sim", "snapshot")
    assert none.exit_code == 1
    assert "no cycle has been recorded" in none.stderr
    assert cli.run("sim", "snapshot", "7").exit_code == 1
    cli.world.snapshots = {cycle: kept}
    unwritable = cli.run("sim", "snapshot", "--out", str(tmp_path / "no" / "such" / "folder.json"))
    assert unwritable.exit_code == 2
