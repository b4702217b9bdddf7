"""``sooner shadow`` and the shadow's word in ``sooner job explain``."""

import json
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from typer import Exit

from policies.model.cluster import Cluster
from policies.model.ids import JobId
from service.cli import sim
from service.runtime.workers import WorkerLost
from service.shadow.live import JobOpinion, Want
from service.shadow.shadow import Status
from service.sim.experiment import SimulationOptions
from service.sim.workloads.model import Workload
from service.simulations.runs import Plan, Setting
from service.simulations.sweep import Failed
from tests.api.test_shadow import FIRST, REPORT, STATE, TOTALS, WISH
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.history.test_own_history import live, rows


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    monkeypatch.setenv("TZ", "UTC")
    with cli_world(tmp_path, monkeypatch) as made:
        made.world.shadow = REPORT
        yield made


def test_the_counts_and_the_jobs_on_which_they_disagree(cli: CliWorld) -> None:
    result = cli.run("shadow")
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert head.startswith("sjf (preemption=never) beside fifo since ")
    assert head.endswith(": watching")
    assert lines[:12] == [
        "12 cycles in 1 h, 3 more without it",
        "",
        "                         BOTH   FIRST ONLY  SHADOW ONLY    AGREEMENT",
        "starts                      6            2            2          60%",
        "  GPU-hours              1.00         2.00         0.10",
        "preemptions                 0            1            0           0%",
        "  lost GPU-hours         0.00         0.11         0.00",
        "",
        "Of the starts of both, 3 were on the same GPUs; the shadow would have used fewer servers for 2, more for 1, "
        "others for 0.",
        "Of the starts of only the shadow, the active policy made 1 in a later cycle, 1 min 30 s later on average; the GPU-hours "
        "count free GPUs that the shadow would have used.",
        "1 decisions of the shadow exceeded the time limit.",
        "2 decisions of the shadow broke a rule and are not counted.",
    ]
    assert lines[12] == "They disagree on 101 jobs now:"
    assert lines[13].split() == ["JOB", "NAME", "GPUS", "SINCE", "SHADOW", "WOULD", "SHADOW", "FIRST"]
    assert lines[14].startswith("  7  train     4  ")
    assert "start it" in lines[14]
    assert lines[14].endswith(f"It would start now on a:3 b:1.  {FIRST.sentence}")
    assert result.stderr == "100 more jobs are not shown\n"


def test_a_shadow_that_does_not_watch_says_why(cli: CliWorld) -> None:
    state = replace(STATE, status=Status.DISABLED, reason="it failed: ValueError: \x1b[31mno", options={})
    cli.world.shadow = replace(REPORT, state=state, disagreements=[], disagreements_total=0)
    lines = cli.run("shadow").stdout.splitlines()
    assert lines[0].startswith("sjf beside fifo since ")
    assert lines[0].endswith(": disabled")
    assert lines[1] == "  it failed: ValueError: ?[31mno"
    assert lines[-1] == "They disagree on no job now."


def test_one_job_and_nothing_counted(cli: CliWorld) -> None:
    cli.world.shadow = replace(REPORT, disagreements_total=1, totals=replace(TOTALS, skipped=0))
    text = cli.run("shadow").stdout
    assert "They disagree on 1 job now:" in text
    assert "without it" not in text


def test_for_programs(cli: CliWorld) -> None:
    document = json.loads(cli.run("shadow", "--json").stdout)
    assert document == {"schema": "sooner.shadow/1", "shadow": cli.client.shadow.show()}
    assert json.loads(cli.run("shadow", "--cycles", "--json").stdout) == document
    assert cli.run("shadow", "--quiet").stdout == "7\n"
    assert cli.run("shadow", "-o", "job,servers,for job").stdout.splitlines() == [
        "JOB  SERVERS  FOR JOB",
        "  7  a:3 b:1",
    ]
    assert cli.run("shadow", "-o", "colour").exit_code == 2


def test_the_passes_in_which_they_differed(cli: CliWorld) -> None:
    header, line = cli.run("shadow", "--cycles").stdout.splitlines()
    assert header.startswith("CYCLE  AT")
    assert line.split()[0] == "5"
    assert line.split()[3:] == ["1", "3", "7", "0", "2"]


def test_without_a_shadow_policy(cli: CliWorld) -> None:
    cli.world.shadow = None
    result = cli.run("shadow")
    assert result.exit_code == 1
    assert "SOONER_SHADOW_POLICY" in result.stderr
    assert result.stdout == ""


def test_an_explanation_says_what_the_shadow_would_do(cli: CliWorld) -> None:
    job = JobId(cli.submit())
    cli.world.explanations[job] = FIRST
    plain = cli.run("job", "explain", str(job)).stdout
    cli.world.opinions[job] = JobOpinion("sjf", None, "It waits as well.")
    assert cli.run("job", "explain", str(job)).stdout == plain
    cli.world.opinions[job] = JobOpinion("sjf", Want.START, WISH.sentence)
    assert "Shadow policy sjf: It would start now on a:3 b:1." in cli.run("job", "explain", str(job)).stdout
    document = json.loads(cli.run("job", "explain", str(job), "--json").stdout)
    assert document["explanations"][0]["shadow"]["wants"] == "start"


# What if the other one had ruled?


@pytest.fixture
def lived(cli: CliWorld) -> CliWorld:
    """A service that has run twelve jobs under fifo, from the epoch on."""
    with cli.world.database.writing() as session:
        for name in ("job_events", "facts", "jobs", "servers"):
            session.connection().exec_driver_sql(f"DELETE FROM {name}")
    live(cli.world.database, "fifo", rows())
    cli.world.shadow = replace(REPORT, state=replace(STATE, policy="srtf", options={}), first_options={}, since_s=0.0)
    return cli


def test_both_policies_on_the_past_since_the_shadow_began(lived: CliWorld) -> None:
    told = lived.run("shadow", "--what-if", "--json")
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert (document["schema"], document["jobs"]) == ("sooner.sim.whatif/1", 12)
    assert [(run["policy"], run["predictor"]) for run in document["runs"]] == [
        ("fifo", "recorded"),
        ("srtf", "recorded"),
    ]
    assert document["runs"][0]["mean_jct_s"] == pytest.approx(document["actual"]["mean_jct_s"], rel=1e-4)
    assert document["runs"][1]["mean_jct_s"] < document["runs"][0]["mean_jct_s"]
    table = lived.run("shadow", "--what-if").stdout
    assert table.splitlines()[0].split() == ["policy", "actual", "fifo", "srtf"]


def test_the_same_policy_with_other_options_keeps_a_name_of_its_own(lived: CliWorld) -> None:
    assert lived.world.shadow is not None
    state = replace(STATE, policy="fifo", options={"tau": "3"})
    lived.world.shadow = replace(lived.world.shadow, state=state)
    table = lived.run("shadow", "--what-if").stdout
    assert table.splitlines()[0].split() == ["policy", "actual", "fifo", "fifo", "(shadow)"]


def test_what_if_of_the_settings_shadow(lived: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("sim", "what-if", "--policies", "current,shadow", "--json")
    unset = lived.run(*arguments)
    assert (unset.exit_code, unset.stderr.count("\n")) == (2, 1)
    assert "SOONER_SHADOW_POLICY" in unset.stderr
    monkeypatch.setenv("SOONER_POLICY", "fifo")
    monkeypatch.setenv("SOONER_SHADOW_POLICY", "srtf")
    document = json.loads(lived.run(*arguments).stdout)
    assert document["runs"][0]["mean_jct_s"] == pytest.approx(document["actual"]["mean_jct_s"], rel=1e-4)
    assert document["runs"][1]["mean_jct_s"] < document["runs"][0]["mean_jct_s"]
    monkeypatch.setenv("SOONER_SHADOW_OPTIONS", "eta=9")
    wrong = lived.run(*arguments)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


def test_what_if_goes_with_nothing_but_json(cli: CliWorld) -> None:
    for flag in ("--cycles", "--watch", "--quiet"):
        assert cli.run("shadow", "--what-if", flag).exit_code == 2
    nothing = cli.run("shadow", "--what-if")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert "no job that was submitted in this period" in nothing.stderr


def test_a_killed_worker_names_no_option_that_shadow_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("las", "las", {}, "none")

    def killed(*_: object, **__: object) -> list[Failed]:
        return [Failed(plan, WorkerLost(-9))]

    monkeypatch.setattr(sim, "compare", killed)
    for with_workers in (True, False):
        with pytest.raises(Exit), redirect_stderr(StringIO()) as stderr:
            sim.run_all(
                Setting(Workload("w", ()), Cluster("c", ()), SimulationOptions()), [plan], 1, with_workers=with_workers
            )
        assert ("--workers" in stderr.getvalue()) is with_workers
