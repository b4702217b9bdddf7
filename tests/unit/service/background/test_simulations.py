"""The what-if runs of a leader, on a real database and in real processes: what they report, and how they end."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Client
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service.background import simulations as module
from service.background.simulations import SimulationRunner
from service.db import simulations as records
from service.db.lease import LEADER_LEASE, LeaderLease, acquire
from service.db.tables import SIMULATIONS
from service.domain.simulations import STARTS_MAX
from service.history.cycles import CycleSnapshot
from service.runtime.child import read_message, write_message
from service.runtime.limited_process import ONE_THREAD
from service.simulations import process
from service.simulations.request import SimulationRequest, Window, plan_of
from service.simulations.worker import Question, report
from tests.api.client import client_of
from tests.api.conftest import app_of
from tests.local_executor import lives
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.history.test_own_history import live, rows
from tests.unit.service.history.test_replay import recorded, snapshots

PATIENCE_S = 90.0
"""A process starts in two seconds of a processor, of which there may be few."""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    """A service that has run twelve jobs under fifo, from the epoch on."""
    monkeypatch.setenv("SOONER_POLICY", "fifo")
    with cli_world(tmp_path, monkeypatch) as made:
        with made.world.database.writing() as session:
            for name in ("job_events", "facts", "jobs", "servers"):
                session.connection().exec_driver_sql(f"DELETE FROM {name}")
        live(made.world.database, "fifo", rows())
        yield made


@pytest.fixture
def lead(cli: CliWorld) -> LeaderLease:
    lease = LeaderLease(cli.world.database, LEADER_LEASE, "this", 3600.0)
    assert lease.take()
    return lease


@pytest.fixture
def runner(cli: CliWorld, lead: LeaderLease) -> Iterator[SimulationRunner]:
    made = _runner(cli, lead)
    yield made
    made.close()


def _runner(cli: CliWorld, lead: LeaderLease, present: CycleSnapshot | None = None) -> SimulationRunner:
    world = cli.world
    settings = world.settings.model_copy(update={"policy": "fifo"})
    return SimulationRunner(world.database, settings, lead, lambda: world.now_s, lambda: present)


def _ask(cli: CliWorld, **body: Any) -> int:
    answer = _http(cli).post("/v1/simulations", json={"policies": ["current"]} | body)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["id"])


def _get(cli: CliWorld, number: int) -> Any:
    return _http(cli).get(f"/v1/simulations/{number}").json()


def _http(cli: CliWorld) -> Client:
    return client_of(app_of(cli.world, "command line"), cli.world.token)


def _until(found: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return value


def _end(cli: CliWorld, number: int) -> Any:
    """The run at its end."""
    return _until(lambda: found if (found := _get(cli, number))["ended_at"] is not None else None)


def _stopped(runner: SimulationRunner) -> int:
    """The process of the run that has just begun, which now makes no progress; its number."""
    pid: int = _until(lambda: runner.pid)
    os.kill(pid, signal.SIGSTOP)
    return pid


def _timeless(report: Any) -> Any:
    """The report without the time that its runs took."""
    runs = [report["actual"], *report["runs"]]
    for run in runs:
        run["wall_s"] = 0.0
    return report


def test_a_run_of_the_past_reports_what_the_command_prints(cli: CliWorld, runner: SimulationRunner) -> None:
    policies = ["current", "srtf", "asrpt:preemption=never"]
    until = "1970-01-01T00:10:00+00:00"
    number = _ask(cli, policies=policies, servers="+1", until=until, predictor="noisy:0.5", seed=7)
    assert (_get(cli, number)["state"], _get(cli, number)["progress"]) == ("queued", None)
    runner.run_waiting()
    found = _end(cli, number)
    assert (found["state"], found["error"], found["starts"]) == ("succeeded", None, 1)
    jobs = found["report"]["jobs"]
    assert found["progress"] == {"done": 3 * jobs, "total": 3 * jobs, "eta_s": None}
    assert jobs > 0
    flags = ["--servers", "+1", "--until", until, "--predictor", "noisy:0.5", "--seed", "7", "--json"]
    printed = cli.run("sim", "what-if", "--policies", ",".join(policies), *flags)
    assert printed.exit_code == 0, printed.output
    assert _timeless(found["report"]) == _timeless(json.loads(printed.stdout))
    assert [run["policy"] for run in found["report"]["runs"]] == policies


FORKED = """
import os, sys
from service.simulations import sweep as sweeps
from service.simulations import worker

forks = []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
sweeps.JOBS_WORTH_A_PROCESS = 0
sweeps.cores = lambda: 2
worker.main()
print(len(forks), file=sys.stderr)
"""
"""The program of the process, with a worker for each of two cores even for few jobs."""


@pytest.mark.parametrize("servers", [None, "+1"])
def test_several_workers_make_the_same_report(cli: CliWorld, servers: str | None) -> None:
    settings = cli.world.settings.model_copy(update={"policy": "fifo"})
    names = ["current", "srtf", "las"]
    request = SimulationRequest(names, False, Window(None, None), servers, "noisy:1", None, "reserved", 5, 3)
    question = Question(request, [plan_of(name, settings, "noisy:1", None) for name in names], settings)
    asked = io.BytesIO()
    write_message(asked, pickle.dumps(question))
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        input=asked.getvalue(),
        capture_output=True,
        env={**os.environ, **ONE_THREAD},
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, b"2\n")
    told = io.BytesIO(done.stdout)
    *_, last = [json.loads(message) for message in iter(lambda: read_message(told), None)]
    assert _timeless(last["report"]) == _timeless(report(question, lambda done, total: None))


def test_a_past_in_which_nothing_was_predicted_runs_without_predictions(
    cli: CliWorld, runner: SimulationRunner
) -> None:
    with cli.world.database.writing() as session:
        session.connection().exec_driver_sql("DELETE FROM predictions")
    number = _ask(cli, policies=["current", "srtf"])
    runner.run_waiting()
    found = _end(cli, number)
    assert found["error"] is None
    assert [run["predictor"] for run in found["report"]["runs"]] == ["none", "none"]
    printed = cli.run("sim", "what-if", "--policies", "current,srtf", "--json")
    assert _timeless(found["report"]) == _timeless(json.loads(printed.stdout))


def test_a_list_of_servers_replaces_those_of_the_service(cli: CliWorld, runner: SimulationRunner) -> None:
    number = _ask(cli, servers=[{"gpus": 8, "count": 3}, {"gpus": 4, "names": ["big"], "gpu_type": "A100"}])
    runner.run_waiting()
    report = _end(cli, number)["report"]
    assert (report["servers"], report["gpus"]) == (4, 28)


def test_a_run_from_now_on_reports_what_the_command_prints_of_a_snapshot(
    cli: CliWorld, lead: LeaderLease, tmp_path: Path
) -> None:
    [*_, present] = snapshots(recorded([(0, 4, 60), (0, 2, 60), (1, 4, 500), (2, 4, 50)], "fifo"))
    cli.world.snapshots = {present.cycle: present}
    file = str(tmp_path / "cycle.json")
    assert cli.run("sim", "snapshot", "--out", file).exit_code == 0
    runner = _runner(cli, lead, present)
    number = _ask(cli, policies=["srtf", "current"], from_now=True, samples=6, seed=3)
    runner.run_waiting()
    found = _end(cli, number)
    runner.close()
    assert found["error"] is None
    assert found["progress"] == {"done": 12, "total": 12, "eta_s": None}
    arguments = ("--snapshot", file, "--policies", "srtf", "--samples", "6", "--seed", "3", "--json")
    assert found["report"] == json.loads(cli.run("sim", "what-if", *arguments).stdout)


def test_one_run_at_a_time_the_oldest_first(cli: CliWorld, runner: SimulationRunner) -> None:
    first, second = _ask(cli), _ask(cli, policies=["srtf"])
    runner.run_waiting()
    pid = _until(lambda: runner.pid)
    low = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    _until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == low)
    os.kill(pid, signal.SIGSTOP)
    runner.run_waiting()
    assert [_get(cli, number)["state"] for number in (first, second)] == ["running", "queued"]
    os.kill(pid, signal.SIGCONT)
    assert _end(cli, first)["state"] == "succeeded"
    _until(lambda: runner.run_waiting() or _get(cli, second)["state"] != "queued")
    assert _end(cli, second)["state"] == "succeeded"
    assert not lives(pid)


def test_cancelling_a_run_kills_its_process(cli: CliWorld, runner: SimulationRunner) -> None:
    number = _ask(cli)
    runner.run_waiting()
    pid = _stopped(runner)
    assert _http(cli).post(f"/v1/simulations/{number}/cancel").json()["state"] == "cancelled"
    _until(lambda: not lives(pid))
    found = _get(cli, number)
    assert (found["state"], found["report"], found["starts"]) == ("cancelled", None, 1)
    later = _ask(cli)
    _until(lambda: runner.run_waiting() or _get(cli, later)["state"] != "queued")
    assert _end(cli, later)["state"] == "succeeded"


def test_a_run_whose_process_is_killed_fails_with_the_reason(cli: CliWorld, runner: SimulationRunner) -> None:
    number = _ask(cli)
    runner.run_waiting()
    os.kill(_stopped(runner), signal.SIGKILL)
    found = _end(cli, number)
    assert (found["state"], found["report"]) == ("failed", None)
    assert found["error"] == "its process was killed, probably for lack of memory"


def test_a_service_that_stops_lets_the_run_wait_for_the_next_leader(cli: CliWorld, lead: LeaderLease) -> None:
    number = _ask(cli)
    first = _runner(cli, lead)
    first.run_waiting()
    pid = _stopped(first)
    first.close()
    assert not lives(pid)
    assert (_get(cli, number)["state"], _get(cli, number)["progress"]) == ("queued", None)
    first.run_waiting()
    assert _get(cli, number)["state"] == "queued", "a closed one begins nothing"
    second = _runner(cli, lead)
    second.run_waiting()
    found = _end(cli, number)
    second.close()
    assert (found["state"], found["starts"]) == ("succeeded", 2)


def test_the_next_leader_makes_the_run_again_and_the_former_one_changes_nothing(
    cli: CliWorld, lead: LeaderLease
) -> None:
    number = _ask(cli)
    former = _runner(cli, lead)
    former.run_waiting()
    pid = _stopped(former)
    lead.release()
    next_lead = LeaderLease(cli.world.database, LEADER_LEASE, "other", 3600.0)
    assert next_lead.take()
    _until(lambda: not lives(pid))
    runner = _runner(cli, next_lead)
    _until(lambda: runner.run_waiting() or _get(cli, number)["state"] != "queued")
    found = _end(cli, number)
    assert (found["state"], found["starts"]) == ("succeeded", 2)
    former.close()
    runner.close()
    assert _get(cli, number) == found


def test_a_claim_of_an_earlier_leader_is_void(cli: CliWorld, lead: LeaderLease) -> None:
    database, number = cli.world.database, _ask(cli)
    assert lead.token is not None
    first = records.claim_simulation(database, lead.token, 5.0)
    second = records.claim_simulation(database, lead.token, 6.0)
    assert first is not None
    assert second is not None
    assert (first.id, first.starts, second.id, second.starts) == (number, 1, number, 2)
    assert not records.note_progress(database, first, 1, 2, None)
    records.close_simulation(database, first, 7.0, {"schema": "x"}, None)
    records.return_simulation(database, first)
    assert (_get(cli, number)["state"], _get(cli, number)["progress"]) == ("running", None)
    assert records.is_held(database, second)
    lead.release()
    assert acquire(database, LEADER_LEASE, "other", 60.0) is not None
    runner = _runner(cli, lead)
    runner.run_waiting()
    assert records.is_held(database, second), "without the lead no run begins"


def test_a_leader_that_was_fenced_off_begins_nothing(
    cli: CliWorld, lead: LeaderLease, runner: SimulationRunner
) -> None:
    number = _ask(cli)
    with cli.world.database.writing() as session:
        session.connection().exec_driver_sql("UPDATE leases SET token = token + 1")
    runner.run_waiting()
    assert _get(cli, number)["state"] == "queued"
    assert lead.token is None


def test_a_run_during_which_the_service_ends_again_and_again_is_given_up(
    cli: CliWorld, runner: SimulationRunner
) -> None:
    number, other = _ask(cli), _ask(cli)
    statement = update(SIMULATIONS).where(SIMULATIONS.c.id == number)
    cli.world.database.execute(statement.values(state="running", starts=STARTS_MAX))
    runner.run_waiting()
    found = _get(cli, number)
    assert (found["state"], found["starts"]) == ("failed", STARTS_MAX)
    assert found["error"] == f"the service ended during the run, {STARTS_MAX} times; it is not started again"
    assert _end(cli, other)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"since": "2025-01-01T00:00:00Z"}, "no job that was submitted in this period has run and ended"),
        ({"servers": [{"gpus": 1}]}, "job '2' does not fit cluster 'own': needs 4 GPUs; the cluster has 1"),
        ({"from_now": True}, "more than 2000 jobs are unfinished (setting forecast_jobs_max)"),
    ],
)
def test_why_there_is_no_report(cli: CliWorld, runner: SimulationRunner, body: dict[str, Any], reason: str) -> None:
    number = _ask(cli, **body)
    runner.run_waiting()
    found = _end(cli, number)
    assert (found["state"], found["report"]) == ("failed", None)
    assert reason in found["error"]


def test_a_setting_that_changed_since_fails_the_run(cli: CliWorld, runner: SimulationRunner) -> None:
    cli.world.settings = cli.world.settings.model_copy(update={"shadow_policy": "srtf"})
    number = _ask(cli)
    cli.world.database.execute(update(SIMULATIONS).values(request=replace_policies(cli, number, ["shadow"])))
    runner.run_waiting()
    assert _end(cli, number)["error"] == "'shadow' needs the setting SOONER_SHADOW_POLICY, which is empty"


def replace_policies(cli: CliWorld, number: int, policies: list[str]) -> dict[str, Any]:
    request: dict[str, Any] = _get(cli, number)["request"]
    return request | {"policies": policies}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"wall_s": 0.0}, "exceeded its time limit of 0 s; choose a shorter period or fewer policies"),
        ({"memory_bytes": 140 << 20}, "needed more than 140 MiB of memory; choose a shorter period"),
    ],
)
def test_limits_of_a_run(
    cli: CliWorld,
    runner: SimulationRunner,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(module, "simulating", lambda question: process.simulating(question, **limits))
    number = _ask(cli)
    runner.run_waiting()
    found = _end(cli, number)
    assert (found["state"], found["error"]) == ("failed", reason)


def test_an_end_that_cannot_be_recorded_is_recorded_later(
    cli: CliWorld, runner: SimulationRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, refused = records.close_simulation, []

    def busy(*arguments: Any) -> None:
        if not refused:
            refused.append(arguments)
            raise OperationalError("UPDATE", None, RuntimeError("database is locked"))
        close(*arguments)

    monkeypatch.setattr(records, "close_simulation", busy)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    number = _ask(cli)
    runner.run_waiting()
    assert _end(cli, number)["state"] == "succeeded"
    assert len(refused) == 1


def test_pace() -> None:
    pace = module._Pace()
    assert pace.left_s(None) is None
    assert pace.left_s(process.Progress(0, 10)) is None
    assert pace.left_s(process.Progress(0, 10)) is None
    assert pace.left_s(process.Progress(10, 10)) == 0.0
