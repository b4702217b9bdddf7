"""``sooner job profile`` against the real API, engine and store, with an executor whose speeds are known by construction."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.cli import profile
from service.client import Unreachable
from service.client.jobs import Jobs
from service.db.progress import ProgressPoint, record_progress
from service.db.servers import enroll
from service.db.tables import HISTORY, JOBS, PROGRESS, THROUGHPUT
from service.engine.commands import Command, Launch, Stop
from service.engine.engine import Engine, Ports
from service.engine.events import Report, ReportKind
from service.executors.fake import EXIT_CODE_LABEL, FakeExecutor
from service.executors.polled import PolledExecutor
from service.sim.predictors import NoPredictor
from tests.null_sink import NullSink
from tests.unit.service.cli.cli_world import CliWorld, cli_world

COMPUTE_S, INPUT_S, INTERCONNECT_S, NETWORK_S = 0.5, 0.125, 0.25, 0.75
RUN = ("job", "profile", "--name", "bert")
COMMAND = ("--", "python", "train.py")


def iteration_s(launch: Launch) -> float:
    """One GPU computes; more of them talk, and two servers talk slowly."""
    seconds = COMPUTE_S + INPUT_S
    seconds += INTERCONNECT_S if launch.placement.gpus > 1 else 0.0
    return seconds + (NETWORK_S if len(launch.placement.shares) > 1 else 0.0)


@dataclass
class Machine:
    """A service of virtual time: each pause of the command moves its clock, and a cycle runs."""

    cli: CliWorld
    executor: "Gang"
    engine: Engine[Any]
    polled: PolledExecutor
    waited_s: float = 0.0
    on_pause: Callable[[], None] = lambda: None

    def now_s(self) -> float:
        return self.cli.world.now_s

    def pause(self, seconds: float) -> None:
        self.cli.world.now_s += seconds
        self.waited_s += seconds
        self.on_pause()
        self.polled.collect()
        assert not self.engine.cycle().failed

    def launches(self) -> list[Launch]:
        return [command for command in self.executor.sent if isinstance(command, Launch)]

    def rows(self, table: Any, *names: str) -> list[Any]:
        with self.cli.world.database.reading() as session:
            found = session.connection().execute(
                select(*(table.c[name] for name in names)).order_by(*table.primary_key)
            )
            return [tuple(row) for row in found]


@dataclass
class Gang:
    """A fake executor in which the time of an iteration follows from the placement. ``reports`` False: no progress.

    ``reports_input`` False: none of how long it waits for input.
    """

    inner: FakeExecutor
    sent: list[Command] = field(default_factory=list)
    reports: bool = True
    reports_input: bool = True

    def send(self, commands: Any) -> None:
        self.sent += commands
        for command in commands:
            spec = command.spec if isinstance(command, Launch) else None
            if spec is None:
                self.inner.send([command])
                continue
            total = int(spec.labels.get("iterations", "100000"))
            labels = {**spec.labels, "fake_duration_s": str(total * iteration_s(command))}
            self.inner.send([replace(command, spec=replace(spec, labels=labels, declared_iterations=total))])

    def poll(self) -> list[Report]:
        found = [report for report in self.inner.poll() if self.reports or report.kind is not ReportKind.PROGRESS]
        return [self._seen(report) for report in found]

    def _seen(self, report: Report) -> Report:
        if not self.reports:
            return replace(report, iteration=None, total_iterations=None, checkpoint_iteration=None)
        waited_s = None if report.iteration is None or not self.reports_input else report.iteration * INPUT_S
        return replace(report, input_s=waited_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with cli_world(tmp_path, monkeypatch) as cli:
        world = cli.world

        class Clock:
            def now_s(self) -> float:
                return world.now_s

        def keep(reports: Any) -> None:
            points = [
                ProgressPoint(
                    each.attempt,
                    each.at_s,
                    each.iteration,
                    each.total_iterations,
                    each.checkpoint_iteration,
                    None,
                    each.input_s,
                )
                for each in reports
            ]
            with world.database.writing() as session:
                record_progress(session, points)

        gang = Gang(FakeExecutor(Clock()))
        polled = PolledExecutor(gang, keep)
        cluster = Cluster("test", tuple(world.servers))
        ports = Ports(world.store, polled, Clock(), NoPredictor(), NullSink())
        made = Machine(cli, gang, Engine(make_policy("fifo"), cluster, ports), polled)
        monkeypatch.setattr(profile, "pause", made.pause)
        monkeypatch.setattr(profile, "monotonic_s", made.now_s)
        monkeypatch.setattr(profile, "POLL_S", 2.5)
        yield made


def test_the_constants_come_out_and_are_stored(machine: Machine) -> None:
    result = machine.cli.run(*RUN, "--json", *COMMAND)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["schema"], found["name"], found["gpu_type"], found["skipped"]) == (
        "sooner.profile/1",
        "bert",
        "V100",
        [],
    )
    assert [(run["place"], run["gpus"], run["servers"]) for run in found["runs"]] == [
        ("gpu", 1, 1),
        ("server", 4, 1),
        ("servers", 4, 2),
    ]
    for run, seconds in zip(found["runs"], (0.625, 0.875, 1.625), strict=True):
        assert run["seconds_per_iteration"] == pytest.approx(seconds, rel=0.03)
        assert run["iterations"] >= 20 and run["window_s"] >= 20.0
    last = found["runs"][-1]["parts_s"]
    assert last["network_s"] == pytest.approx(NETWORK_S, rel=0.05)
    assert last["interconnect_s"] == pytest.approx(INTERCONNECT_S, rel=0.1)
    assert last["compute_s"] == pytest.approx(COMPUTE_S, rel=0.05)
    assert last["input_s"] == pytest.approx(INPUT_S)
    assert [each["code"] for each in found["advice"]] == ["one_server", "cheapest", "input"]
    stored = machine.rows(
        THROUGHPUT, "project", "name", "gpus", "gpu_type", "servers_spanned", "median_s_per_iteration"
    )
    assert [row[:5] for row in stored] == [
        ("", "bert", 1, "V100", 1),
        ("", "bert", 4, "V100", 1),
        ("", "bert", 4, "V100", 2),
    ]
    for row, seconds in zip(stored, (0.625, 0.875, 1.625), strict=True):
        assert row[5] == pytest.approx(seconds, rel=0.05)
    assert machine.rows(JOBS, "state") == [("cancelled",)] * 3
    assert len(machine.rows(HISTORY, "id")) == 3


def test_the_runs_are_ordinary_jobs_of_the_program_at_given_placements(machine: Machine) -> None:
    result = machine.cli.run(*RUN, "--gpus", "2", "--project", "nlp", "-e", "LR=1", "--warm-up", "3", *COMMAND)
    assert result.exit_code == 0, result.output
    specs = [launch.spec for launch in machine.launches()]
    assert [spec.name for spec in specs] == [
        "bert: profile, 1 GPU",
        "bert: profile, 2 GPUs on 1 server",
        "bert: profile, 2 GPUs on 2 servers",
    ]
    for spec in specs:
        assert spec.recurrence[1:] == ("nlp", "bert")
        assert (spec.profile, spec.max_retries, spec.walltime_s) == (3, 0, 720.0)
        assert (spec.command, spec.env, spec.gpu_type) == (("python", "train.py"), {"LR": "1"}, "V100")
    assert [[share.gpus for share in launch.placement.shares] for launch in machine.launches()] == [[1], [2], [1, 1]]
    assert "2 GPUs on 2 servers: job 3 running on a, b" in result.stderr
    assert result.stdout.splitlines()[0].split()[:3] == ["GPUS", "SERVERS", "ITERATION"]
    assert "- On 2 servers an iteration takes" in result.stdout
    assert result.stdout.splitlines()[-1] == "The speeds are stored for jobs named bert."


def test_input_that_is_not_reported_is_not_separated(machine: Machine) -> None:
    machine.executor.reports_input = False
    found = json.loads(machine.cli.run(*RUN, "--gpus", "1", "--json", *COMMAND).stdout)
    assert found["runs"][0]["parts_s"]["input_s"] is None
    assert found["runs"][0]["parts_s"]["compute_s"] == pytest.approx(COMPUTE_S + INPUT_S, rel=0.03)
    assert [each["code"] for each in found["advice"]] == ["input_unknown"]
    row = machine.cli.run(*RUN, "--gpus", "1", *COMMAND).stdout.splitlines()[1]
    assert " 100%      ?  " in row


def test_a_run_that_cannot_be_cancelled_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise Unreachable("http://127.0.0.1:8765", "gone")

    def leave() -> None:
        if machine.waited_s > 5.0:
            monkeypatch.setattr(Jobs, "show", away)
            monkeypatch.setattr(Jobs, "cancel", away)

    machine.on_pause = leave
    result = machine.cli.run(*RUN, *COMMAND)
    assert result.exit_code == 1
    assert "job 1 could not be cancelled: when the service answers, run: sooner job cancel 1" in result.stderr


def test_a_job_file_gives_the_job_but_not_its_placement(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    body = {
        "name": "bert",
        "command": ["x"],
        "gpus": 2,
        "topology": {"level": "rack"},
        "declared_iterations": 9,
        "graph": {"model": "resnet50", "batch_size": 64},
        "parallelism": {"stages": 1, "replicas": [2]},
        "labels": {"team": "a"},
        "cpus": 3,
        "memory_gib": 8.0,
    }
    file.write_text(json.dumps(body))
    assert machine.cli.run("job", "profile", str(file)).exit_code == 0
    spec = machine.launches()[1].spec
    assert (spec.gpus, spec.servers, spec.topology, spec.stage_graph, spec.declared_iterations) == (
        2,
        1,
        None,
        None,
        None,
    )
    assert spec.labels["team"] == "a"
    assert [(each.spec.cpus, each.spec.memory_gib) for each in machine.launches()] == [(2, 4.0), (3, 8.0), (3, 8.0)]
    file.write_text(json.dumps([body, body]))
    several = machine.cli.run("job", "profile", str(file))
    assert (several.exit_code, several.stderr) == (2, "error: a profile is of one job: the file has several\n")


def test_a_cluster_of_one_server_has_no_run_on_two(machine: Machine) -> None:
    result = machine.cli.run(*RUN, "--gpu-type", "T4", *COMMAND)
    assert result.exit_code == 0, result.output
    assert len(machine.launches()) == 2
    reason = "cannot be placed in equal shares on 2 servers, even empty ones"
    assert f"2 GPUs on 2 servers: skipped: {reason}" in result.stderr
    assert f"Not measured: {reason}." in result.stdout
    alone = json.loads(machine.cli.run(*RUN, "--gpus", "1", "--json", *COMMAND).stdout)
    assert ([run["place"] for run in alone["runs"]], alone["skipped"]) == (["gpu"], [])


def test_odd_and_too_many_gpus_are_said(machine: Machine) -> None:
    odd = machine.cli.run(*RUN, "--gpus", "3", *COMMAND)
    assert "Not measured: 3 GPUs cannot be divided by 2 servers." in odd.stdout
    many = machine.cli.run(*RUN, "--gpus", "8", *COMMAND)
    assert "The largest server has 4 GPUs, so 4 are profiled, not 8." in many.stdout


def test_a_program_without_progress_is_told_what_to_add(machine: Machine) -> None:
    machine.executor.reports = False
    result = machine.cli.run(*RUN, "--timeout-s", "90", *COMMAND)
    assert result.exit_code == 1
    assert (
        "error: job 1 ran 90 s and reported no progress: after each iteration, let the program append" in result.stderr
    )
    assert 90.0 <= machine.waited_s <= 97.5
    machine.pause(1.0)
    machine.pause(1.0)
    assert machine.rows(JOBS, "state") == [("cancelled",)]


def test_a_command_that_fails_is_named_with_its_log(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "bert", "command": ["x"], "labels": {EXIT_CODE_LABEL: "3", "iterations": "4"}}))
    result = machine.cli.run("job", "profile", str(file))
    assert result.exit_code == 1
    assert "1 GPU: not measured: job 1 failed with exit code 3: " in result.stderr
    assert "(its output: sooner job logs 1)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: no run could be measured: job 1 failed with exit code 3")
    assert len(machine.launches()) == 3, "a program that needs more than one GPU still has two runs"


def test_a_program_that_ends_early_is_measured_as_far_as_it_went(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "bert", "command": ["x"], "labels": {"iterations": "15"}}))
    result = machine.cli.run("job", "profile", str(file), "--json")
    assert result.exit_code == 0, result.output
    assert "warning: job 1 made " in result.stderr and "fewer than 20" in result.stderr
    assert json.loads(result.stdout)["runs"][0]["seconds_per_iteration"] == pytest.approx(0.625, rel=0.1)
    assert machine.rows(JOBS, "state") == [("succeeded",)] * 3
    file.write_text(json.dumps({"name": "bert", "command": ["x"], "labels": {"iterations": "4"}}))
    short = machine.cli.run("job", "profile", str(file))
    assert short.exit_code == 1
    assert "ended at iteration" in short.stderr and "the warm-up is 5 iterations" in short.stderr


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while it waits"])
def test_ctrl_c_cancels_the_run(machine: Machine, running: bool) -> None:
    if not running:
        machine.cli.submit(gpus=8)
        machine.pause(1.0)
    job = 1 if running else 2

    def interrupt() -> None:
        if machine.waited_s > 5.0:
            machine.on_pause = lambda: None
            raise KeyboardInterrupt

    machine.on_pause = interrupt
    result = machine.cli.run(*RUN, *COMMAND)
    assert result.exit_code != 0
    assert f"job {job} is cancelled" in result.stderr
    assert ("queued" in result.stderr, "running" in result.stderr) == (True, running)
    for _ in range(4):
        machine.pause(1.0)
    assert machine.rows(JOBS, "id", "state")[-1] == (job, "cancelled")
    assert len(machine.launches()) == 1
    assert len([command for command in machine.executor.sent if isinstance(command, Stop)]) == (1 if running else 0)


def test_a_run_that_is_preempted_is_measured_in_its_next_attempt(machine: Machine) -> None:
    def preempt() -> None:
        if machine.waited_s == 15.0:
            machine.cli.client.jobs.hold(1, preempt=True)
        if machine.waited_s == 40.0:
            machine.cli.client.jobs.release(1)

    machine.on_pause = preempt
    result = machine.cli.run(*RUN, "--gpus", "1", "--warm-up", "20", "--json", *COMMAND)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert run["seconds_per_iteration"] == pytest.approx(COMPUTE_S + INPUT_S, rel=0.05)
    assert [launch.number for launch in machine.launches()] == [1, 2]
    assert machine.launches()[1].resume_iteration >= 20
    points = machine.rows(PROGRESS, "attempt_id", "iteration")
    resumed = [iteration for attempt, iteration in points if attempt == "1.2"]
    assert run["iterations"] <= resumed[-1] - machine.launches()[1].resume_iteration - 20


def test_a_run_that_someone_cancels_is_not_measured(machine: Machine) -> None:
    def cancel() -> None:
        if machine.waited_s == 5.0:
            machine.cli.client.jobs.cancel(1)

    machine.on_pause = cancel
    result = machine.cli.run(*RUN, "--json", *COMMAND)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["skipped"] == [{"place": "gpu", "reason": "job 1 was cancelled"}]
    assert json.loads(result.stdout)["runs"][1]["parts_s"]["interconnect_s"] is None


def test_servers_that_are_down_do_not_count(machine: Machine) -> None:
    machine.cli.world.servers = [Server("a", 4), Server("big", 8)]
    enroll(machine.cli.world.database, Cluster("test", tuple(machine.cli.world.servers)))
    machine.cli.world.say_of_servers({"big": (False, True)})
    size = profile._size(machine.cli.client.cluster.show(), None, None)
    assert (size.gpus, size.gpu_type) == (4, "V100")
