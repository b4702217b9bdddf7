"""``sooner sim snapshot`` and ``sooner sim replay``, from a service's recorded cycle to the exit code."""

import json
from collections.abc import Iterator
from dataclasses import replace
from errno import ENOSPC
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.history.test_replay import recorded, snapshots


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
    head, *lines = result.stdout.splitlines()
    assert head.startswith(f"cycle {newest} at ")
    assert head.endswith(": 1 unfinished job, 6 GPUs, fifo")
    assert lines == ["fifo decides the same: 1 action", "  start job 4 on a:4"]
    document = json.loads(cli.run("sim", "replay", f"cycle-{newest}.json", "--json").stdout)
    assert (document["schema"], document["equal"], document["cycle"]) == ("sooner.sim.replay/1", True, newest)
    assert document["recorded"] == document["replayed"] != []


def test_a_difference_is_shown_and_fails(cli: CliWorld, tmp_path: Path) -> None:
    cycle = next(number for number, each in cli.world.snapshots.items() if [a.job for a in each.actions] == [3])
    assert cli.run("sim", "snapshot", str(cycle), "--out", "c.json").stdout == "c.json\n"
    what_if = cli.run("sim", "replay", "c.json", "--policy", "sjf")
    assert what_if.exit_code == 1
    assert what_if.stdout.splitlines()[1:] == [
        "sjf decides differently",
        "  recorded: start job 3 on a:4",
        "  replayed: start job 4 on a:4",
    ]
    document = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(document | {"actions": {"v": 1, "items": []}}))
    forged = cli.run("sim", "replay", "c.json")
    assert forged.exit_code == 1
    assert "  recorded: nothing\n" in forged.stdout


def test_a_job_goes_by_its_name_too_and_says_why_it_waits(cli: CliWorld, tmp_path: Path) -> None:
    cycle = next(number for number, each in cli.world.snapshots.items() if [a.job for a in each.actions] == [3])
    kept = cli.world.snapshots[cycle]
    jobs = tuple(job.copy() for job in kept.world.jobs)
    for job in jobs:
        job.spec = replace(job.spec, name=f"train{job.id}")
    cli.world.snapshots = {cycle: replace(kept, world=replace(kept.world, jobs=jobs))}
    cli.run("sim", "snapshot", "--out", "c.json")
    lines = cli.run("sim", "replay", "c.json", "--why").stdout.splitlines()
    assert lines[2] == "  start job 3 (train3) on a:4"
    assert lines[3].split() == ["JOB", "NAME", "REASON", "EXPLANATION"]
    assert lines[4].split()[:3] == ["4", "train4", "resources"]
    assert len(lines) == 5
    document = json.loads(cli.run("sim", "replay", "c.json", "--json").stdout)
    (waits,) = document["waiting"]
    assert (waits["job_id"], waits["reason"]) == (4, "resources")


def test_options_of_the_recorded_policy_and_of_another_one(cli: CliWorld, tmp_path: Path) -> None:
    cli.run("sim", "snapshot", "--out", "c.json")
    assert cli.run("sim", "replay", "c.json", "--option", "tau=2").exit_code == 0
    assert cli.run("sim", "replay", "c.json", "--policy", "srsf", "--option", "preemption=never").exit_code == 0
    for refused in (["--option", "eta=0.5"], ["--policy", "sjf", "--option", "tau"]):
        result = cli.run("sim", "replay", "c.json", *refused)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_standard_input_and_output(cli: CliWorld) -> None:
    newest = max(cli.world.snapshots)
    text = cli.run("sim", "snapshot", "--out", "-").stdout
    assert json.loads(text)["cycle"] == newest
    assert cli.run("sim", "replay", "-", text=text).exit_code == 0
    assert cli.run("sim", "replay", "-", text="{").exit_code == 2


def test_the_cycles_that_can_be_saved(cli: CliWorld) -> None:
    known = sorted(cli.world.snapshots, reverse=True)
    assert cli.run("sim", "snapshot", "--list").stdout == "".join(f"{cycle}\n" for cycle in known)
    assert cli.run("sim", "snapshot", "--list", "--now").exit_code == 2
    assert cli.run("sim", "snapshot", "3", "--now").exit_code == 2


def test_the_present_is_saved_whether_or_not_anything_was_decided(cli: CliWorld) -> None:
    full = cli.run("sim", "snapshot", "--now")
    assert full.exit_code == 1
    assert "forecast_jobs_max" in full.stderr
    kept = cli.world.snapshots[max(cli.world.snapshots)]
    cli.world.present = replace(kept, actions=(), changes=())
    assert cli.run("sim", "snapshot", "--now").stdout == f"cycle-{kept.cycle}-now.json\n"
    # There was something to decide, and in this file nothing was.
    told = cli.run("sim", "replay", f"cycle-{kept.cycle}-now.json")
    assert told.exit_code == 1
    assert "  recorded: nothing\n  replayed: start job 4 on a:4\n" in told.stdout


@pytest.mark.parametrize("out", [(), ("--out", "cycle-7.json")])
def test_a_file_that_exists_is_not_replaced(cli: CliWorld, tmp_path: Path, out: tuple[str, ...]) -> None:
    cli.world.snapshots = {7: replace(cli.world.snapshots[max(cli.world.snapshots)], cycle=7)}
    (tmp_path / "cycle-7.json").write_text("mine")
    told = cli.run("sim", "snapshot", *out)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == "error: cycle-7.json exists; name another file with --out\n"
    assert (tmp_path / "cycle-7.json").read_text() == "mine"


def test_a_full_disk_leaves_no_half_file(cli: CliWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BytesIO):
        def write(self, content: object) -> int:
            raise OSError(ENOSPC, "No space left on device")

    usual = Path.open

    def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode != "xb":
            return usual(path, mode, *more, **named)
        path.touch(exist_ok=False)
        return Full()

    monkeypatch.setattr(Path, "open", opened)
    told = cli.run("sim", "snapshot", "--out", "c.json")
    assert (told.exit_code, told.stderr) == (2, "error: c.json: No space left on device\n")
    assert not (tmp_path / "c.json").exists()


def test_what_cannot_be_replayed_is_one_line(cli: CliWorld, tmp_path: Path) -> None:
    cycle, kept = next(iter(cli.world.snapshots.items()))
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema": "sooner.jobs/1"}')
    cli.world.snapshots = {cycle: replace(kept, policy="lottery")}
    cli.run("sim", "snapshot", "--out", "lottery.json")
    for name, said in (
        ("missing.json", "No such file"),
        ("text.json", "not JSON"),
        ("other.json", "sooner.cycle/2"),
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
    assert "no cycle is recorded" in none.stderr
    assert cli.run("sim", "snapshot", "7").exit_code == 1
    cli.world.snapshots = {cycle: kept}
    unwritable = cli.run("sim", "snapshot", "--out", str(tmp_path / "no" / "such" / "folder.json"))
    assert unwritable.exit_code == 2
