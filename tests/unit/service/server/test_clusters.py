"""The servers of a cluster, what its executor needs at the start, and a lead that passes from one service to another."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Gangs, Server
from policies.model.contention import Contention
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.config.cluster_file import ClusterFileError
from service.config.settings import Settings, load_settings
from service.db import reads, services
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.servers import stored_cluster
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.cycle import EngineSettings
from service.engine.events import ReportKind
from service.engine.ports import ExecutorUnavailable, FoundServer
from service.engine.record import ServerRecord
from service.executors.cluster.driver import EngineDriver
from service.executors.cluster.slurm import slurm_driver
from service.executors.fake import FakeExecutor
from service.executors.gpus import GpuInfo
from service.executors.local import LocalExecutor
from service.runtime.steady_clock import SteadyClock
from service.server import clusters
from service.server.agent import Agent
from service.server.api_ports import ServiceFleet
from service.server.clusters import OwnServers, cluster_executor, described, gangs_of, local_servers
from service.server.leading import Leading
from service.server.live_stack import HostExecutor, LeaderContext, gpus_of_host
from service.server.startup import StartError
from service.telemetry.metrics import Metrics
from tests.cluster_engine import ProcessEngine
from tests.conformance.store_suite import SPEC, Driver, touched
from tests.conformance.store_suite import start as started
from tests.faulty_nvml import FaultyNvml

A, B = Server("a", 4, "a100"), Server("b", 4, "a100")
EMPTY = Cluster("slurm", ())


class Finding(FakeExecutor):
    """Finds what it is given; None: it does not answer."""

    found: Sequence[FoundServer] | None = ()
    attempts_host = "cluster"

    def __init__(self) -> None:
        super().__init__(SteadyClock())
        self.used: Cluster | None = None

    def find_servers(self) -> Sequence[FoundServer]:  # type: ignore[override]
        if self.found is None:
            raise ExecutorUnavailable("no answer")
        return self.found

    def use_cluster(self, cluster: Cluster) -> None:
        self.used = cluster


def eventually(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 60.0
    while not holds() and time.monotonic() < until_s:
        threading.Event().wait(0.02)
    return holds()


# Servers


def test_found_servers_are_stored_with_their_states_and_the_executor_uses_them(database: Database) -> None:
    executor, own = Finding(), OwnServers(database, EMPTY)
    executor.found = [FoundServer(A, drained=True, detail="disk"), FoundServer(B)]
    cluster = own.enroll(executor)
    assert (cluster.name, cluster.servers, executor.used) == ("slurm", (A, B), cluster)
    assert SqlStore(database).load().servers == [ServerRecord(engine_drained=True, detail="disk"), ServerRecord()]


def test_while_the_engine_is_away_the_stored_servers_count(database: Database) -> None:
    executor, own = Finding(), OwnServers(database, EMPTY)
    executor.found = None
    with pytest.raises(ExecutorUnavailable):
        own.enroll(executor)
    executor.found = []
    with pytest.raises(ExecutorUnavailable, match="no server with GPUs"):
        own.enroll(executor)
    executor.found = [FoundServer(A)]
    own.enroll(executor)
    executor.found = None
    assert own.enroll(executor).servers == (A,)


def test_a_cluster_file_adds_to_the_servers_that_it_lists(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "schema: sooner.cluster/1\nname: site\n"
        "servers: [{names: [b], gpus: 4, gpu_type: A100, rack: r7, nic_gbps: 200}]\ntiers: {core_gbps: 8}\n"
    )
    executor, own = Finding(), OwnServers(database, EMPTY, file)
    executor.found = [FoundServer(A), FoundServer(B)]
    cluster = own.enroll(executor)
    assert (cluster.name, cluster.core_bytes_s) == ("site", 1e9)
    assert cluster.servers == (A, Server("b", 4, "A100", "r7", 25e9))


def test_a_type_without_a_stated_speed_is_warned_of_at_the_start(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "schema: sooner.cluster/1\nservers: [{names: [b], gpus: 4, gpu_type: T4, gpu_speed: 0.5}, "
        "{names: [d], gpus: 4, gpu_type: P100}]\n"
    )
    executor, own = Finding(), OwnServers(database, EMPTY, file)
    executor.found = [FoundServer(A), FoundServer(B), FoundServer(Server("c", 4)), FoundServer(Server("d", 4))]
    own.enroll(executor)
    warned = [record.message for record in caplog.records]
    assert [message.partition(" has no")[0] for message in warned] == ["GPU type 'a100'", "GPU type 'P100'"]
    assert "write gpu_speed: 2.5" in warned[0]
    # It is stored with the server: the next leader knows it too.
    assert [server.gpu_speed_assumed for server in stored_cluster(database, EMPTY).servers] == [
        True,
        False,
        False,
        True,
    ]


def test_a_server_that_returns_with_another_number_of_gpus_than_in_the_file_is_drained(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("schema: sooner.cluster/1\nservers: [{names: [a, b], gpus: 4, gpu_type: a100}]\n")
    executor, own = Finding(), OwnServers(database, EMPTY, file)
    executor.found = [FoundServer(A), FoundServer(B)]
    own.enroll(executor)
    executor.found = [FoundServer(Server("a", 3, "a100")), FoundServer(B)]
    assert [server.gpus for server in own.enroll(executor).servers] == [4, 4]
    states = SqlStore(database).load().servers
    assert states == [ServerRecord(engine_drained=True, detail="has 3 GPUs, 4 expected"), ServerRecord()]


def test_a_cluster_file_of_other_servers_is_refused_by_name() -> None:
    file, path = Cluster("f", (A, Server("x", 4), Server("y", 4))), Path("c.yaml")
    with pytest.raises(ClusterFileError, match="the engine of the cluster has no x, y"):
        described(file, [A, B], set(), path)
    assert described(file, [A, B], {"x", "y"}, path).servers == (A, B), "servers that are away are no error"
    with pytest.raises(ClusterFileError, match="a has 4 GPUs in the file, and 8 in the cluster"):
        described(Cluster("f", (A,)), [Server("a", 8)], set(), path)
    assert described(Cluster("f", (A,)), [Server("a", 8)], {"a"}, path).servers == (A,), "it has changed since"
    shared = Cluster("f", (A,), 1.0, 2.0, contention=Contention())
    assert described(shared, [A], set(), path) == shared, "the rest of the file counts too"


# The servers of this machine


def servers_file(tmp_path: Path, servers: str, more: str = "") -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"schema: sooner.cluster/1\n{more}servers: {servers}\n")
    return file


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("socket.gethostname", lambda: "box.example.org")
    return "box"


V100 = [GpuInfo(index, f"GPU-{index}", "Tesla V100", 1 << 34) for index in range(2)]


@pytest.mark.parametrize(
    ("servers", "gpus", "words"),
    [
        (
            "[{names: [box, other], gpus: 2}]",
            None,
            "servers: other: not this machine, .* list box alone, set executor=slurm",
        ),
        ("[{count: 7, gpus: 2}]", None, "s0001, s0002, s0003, s0004, s0005 and 2 others: not this machine"),
        (
            "[{names: [box], gpus: 5}]",
            None,
            r"box has 5 GPUs .*, and this machine 4 virtual ones \(setting virtual_gpus\)",
        ),
        ("[{names: [box], gpus: 3}]", V100, "box has 3 GPUs of type V100 in the file, and this machine 2 V100"),
        ("[{names: [box], gpus: 2, gpu_type: A100}]", V100, "box has 2 GPUs of type A100 .* this machine 2 V100"),
    ],
)
def test_servers_that_this_machine_does_not_have_are_refused(
    tmp_path: Path, machine: str, servers: str, gpus: list[GpuInfo] | None, words: str
) -> None:
    file = servers_file(tmp_path, servers)
    settings = load_settings({"data_dir": tmp_path, "cluster": file})
    with pytest.raises(ClusterFileError, match=words) as refused:
        local_servers(settings, gpus)
    assert str(file) in str(refused.value)
    assert "add 'virtual: true' to have this machine pretend" in str(refused.value)


def test_servers_of_this_machine_need_no_pretence_and_others_pretend(tmp_path: Path, machine: str) -> None:
    settings = load_settings(
        {"data_dir": tmp_path, "cluster": servers_file(tmp_path, "[{names: [box], gpus: 2, rack: r7}]")}
    )
    cluster, own = local_servers(settings, V100)
    assert (cluster.servers[0].rack, own) == ("r7", {"box"})
    servers_file(tmp_path, "[{count: 2, gpus: 8}]", "virtual: true\n")
    cluster, own = local_servers(settings, V100)
    assert (len(cluster.servers), own) == (2, None)
    cluster, own = local_servers(load_settings({"data_dir": tmp_path}), None)
    assert own == {machine}
    total_kib = int(re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    assert cluster.servers[0].cpus == len(os.sched_getaffinity(0))
    assert 0 <= total_kib / 2**20 - cluster.servers[0].memory_gib < 0.1  # type: ignore[operator]


def with_nvml(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setattr("service.executors.gpus._has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", FaultyNvml(V100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_hidden_gpus_end_the_start_unless_the_servers_are_virtual(
    tmp_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_nvml(monkeypatch, "")
    file = servers_file(tmp_path, "[{names: [box], gpus: 2}]")
    for more in ({}, {"cluster": file}):
        with pytest.raises(StartError, match=r"CUDA_VISIBLE_DEVICES='' names none .*'virtual: true'"):
            gpus_of_host(load_settings({"data_dir": tmp_path} | more))
    assert gpus_of_host(load_settings({"data_dir": tmp_path, "executor": "fake"})) is None
    servers_file(tmp_path, "[{count: 2, gpus: 8}]", "virtual: true\n")
    assert gpus_of_host(load_settings({"data_dir": tmp_path, "cluster": file})) == []
    assert "have no GPUs" in caplog.text
    with_nvml(monkeypatch, "GPU-1")
    found = gpus_of_host(load_settings({"data_dir": tmp_path, "cluster": file}))
    assert [gpu.uuid for gpu in found or ()] == ["GPU-1"]


def test_a_gpu_that_fails_while_jobs_run_drains_the_machine_until_they_have_ended(
    database: Database, tmp_path: Path, machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings({"data_dir": tmp_path})

    def start(gpus: Sequence[GpuInfo]) -> tuple[int, ServerRecord]:
        cluster = OwnServers(database, local_servers(settings, gpus)[0]).enroll(FakeExecutor(SteadyClock()))
        return cluster.servers[0].gpus, SqlStore(database).load().servers[0]

    assert start(V100) == (2, ServerRecord())
    with database.writing() as session:
        SqlStore(database).submit(session, [SPEC], 5.0)
    driver = Driver(SqlStore(database))
    [job] = driver.admit()
    driver.commit(started(job))
    assert start(V100[:1]) == (2, ServerRecord(engine_drained=True, detail="has 1 GPU, 2 expected"))
    assert "box has 1 GPU, 2 expected: it is drained; start the service again when" in caplog.text
    assert start(V100) == (2, ServerRecord())
    assert job.attempt is not None
    job.attempt.state = AttemptState.COMPLETED
    end = touched(job)
    end.attempts.append(job.attempt)
    driver.commit(end)
    assert start(V100[:1]) == (1, ServerRecord())


def test_a_server_of_another_machine_is_down_for_the_local_executor(tmp_path: Path) -> None:
    cluster = Cluster("c", (Server("other", 4), Server("box", 4)))
    executor = LocalExecutor(tmp_path / "data", cluster, clock=SteadyClock(), own=frozenset({"box"}), environ={})
    [report] = executor.poll()
    assert (report.kind, report.server, report.detail) == (ReportKind.SERVER_DOWN, 0, "other is not this machine")
    assert [each.server for each in executor.poll()] == [0], "it is repeated until it is acknowledged"
    executor.acknowledge([report])
    assert executor.poll() == []
    executor.use_cluster(Cluster("c", (*cluster.servers, Server("added", 4))))
    reports = executor.poll()
    assert [(each.server, each.detail) for each in reports] == [
        (0, "other is not this machine"),
        (2, "added is not this machine"),
    ]
    pretending = LocalExecutor(tmp_path / "more", cluster, clock=SteadyClock(), environ={})
    assert pretending.poll() == []


# What must hold at the start


def settings_of(tmp_path: Path, **more: object) -> Settings:
    return load_settings({"data_dir": tmp_path / "data", "executor": "slurm"} | more)


def test_a_cluster_needs_a_shared_folder(tmp_path: Path) -> None:
    for more, words in (
        ({}, r"executor=slurm needs shared_dir \(SOONER_SHARED_DIR\)"),
        ({"shared_dir": tmp_path / "none"}, r"shared_dir .*none is no folder; create it"),
    ):
        with pytest.raises(StartError, match=words):
            cluster_executor(settings_of(tmp_path, **more), SteadyClock(), "http://x")


def test_missing_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        StartError, match=r"executor=slurm: sbatch is not installed .*; install Slurm's client commands"
    ):
        cluster_executor(settings_of(tmp_path, shared_dir=tmp_path), SteadyClock(), "http://x")


def test_ray_needs_its_address_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, executor="ray", shared_dir=tmp_path)
    with pytest.raises(
        StartError, match=r"executor=ray needs ray_address \(SOONER_RAY_ADDRESS\): host:port of the head"
    ):
        cluster_executor(settings, SteadyClock(), "http://x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    settings = settings_of(tmp_path, executor="ray", shared_dir=tmp_path, ray_address="127.0.0.1:6379")
    with pytest.raises(StartError, match="executor=ray needs the package ray: pip install"):
        cluster_executor(settings, SteadyClock(), "http://x")


def test_an_engine_that_runs_all_jobs_as_one_user_refuses_another_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: ProcessEngine
) -> None:
    monkeypatch.setattr(clusters, "_driver", lambda settings, identity: engine.driver())
    settings = settings_of(tmp_path, shared_dir=tmp_path, run_as="submitter")
    with pytest.raises(StartError, match=r"run_as=submitter: .* runs all jobs as one user here; set run_as=service"):
        cluster_executor(settings, SteadyClock(), "http://x")


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://127.0.0.1:8765", True),
        ("https://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://head:1", False),
    ],
)
def test_a_url_that_other_servers_cannot_reach_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: ProcessEngine,
    caplog: pytest.LogCaptureFixture,
    url: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(clusters, "_driver", lambda settings, identity: engine.driver())
    cluster_executor(settings_of(tmp_path, shared_dir=tmp_path), SteadyClock(), f"{url}/x/{{attempt}}").close()
    words = f"advertise_url (SOONER_ADVERTISE_URL): programs on other servers cannot report their progress to {url}/x/"
    assert any(record.getMessage().startswith(words) for record in caplog.records) is warned


@pytest.mark.parametrize(("uneven", "gangs"), [(False, Gangs.EQUAL_SHARES), (True, Gangs.ANY)])
def test_settings_tell_what_can_be_started_as_the_executor_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uneven: bool, gangs: Gangs
) -> None:
    # A driver looks for Slurm's commands, which are not called here.
    for command in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sacct"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    settings = settings_of(tmp_path, slurm_uneven_gangs=uneven)
    assert settings.gangs is gangs_of(slurm_driver(settings, "x").abilities) is gangs
    assert load_settings({"data_dir": tmp_path}).gangs is Gangs.ANY


# The lead


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    made = ProcessEngine()
    yield made
    made.close()


class Instance:
    """One service on the shared folder, without its HTTP side."""

    def __init__(self, name: str, database: Database, tmp_path: Path, driver: EngineDriver) -> None:
        shared = tmp_path / "shared"
        shared.mkdir(exist_ok=True)
        settings = settings_of(
            tmp_path / name, shared_dir=shared, engine_poll_s=0.1, poll_period_s=0.05, reschedule_period_s=1.0
        )
        self.database, self.name = database, name
        clock = SteadyClock()
        clusters_driver = clusters._driver
        clusters._driver = lambda settings, identity: driver  # type: ignore[assignment]
        try:
            executor = cluster_executor(settings, clock, "http://127.0.0.1:1/{attempt}")
        finally:
            clusters._driver = clusters_driver
        self.executor = HostExecutor(executor, executor, None)
        services.register(database, services.Registered(name, name, f"http://{name}", "1", 60.0), claim=False)
        self.agent = Agent(database, name, self.executor.own, executor.renew_leases, EngineSettings(host=name))
        self.agent.beat()
        self.lead = LeaderLease(database, LEADER_LEASE, name, 3600.0)
        self.context = (settings, clock)
        self.leading: Leading | None = None

    def start_leading(self) -> None:
        assert self.lead.take()
        settings, clock = self.context
        cluster = OwnServers(self.database, EMPTY).enroll(self.executor.attempts)
        host = self.executor.attempts.attempts_host
        assert host is not None
        context = LeaderContext(settings, clock, self.database, cluster, self.lead, host, self.executor, Metrics())
        self.leading = Leading(context)
        self.leading.start()

    def stop_leading(self) -> None:
        if self.leading is not None:
            self.leading.close()
            self.lead.release()
        self.leading = None

    def close(self) -> None:
        self.stop_leading()
        self.executor.attempts.close()

    def attend(self) -> None:
        self.agent.beat()
        self.agent.attend()


def state_of(database: Database, job: JobId) -> JobState:
    return SqlStore(database).jobs([job])[0].state


def test_attempts_of_a_cluster_belong_to_whichever_service_leads(
    database: Database, tmp_path: Path, engine: ProcessEngine
) -> None:
    first, second = (Instance(name, database, tmp_path, engine.driver()) for name in ("first", "second"))
    go_on = tmp_path / "go on"
    command = ("sh", "-c", f"echo started; while [ ! -e '{go_on}' ]; do sleep 0.05; done; echo over")
    with database.writing() as session:
        [job] = SqlStore(database).submit(session, [JobSpec("long", "ada", 2, command=command)], 5.0)
    try:
        first.start_leading()
        assert eventually(lambda: state_of(database, job) is JobState.RUNNING)
        second.attend()
        with database.reading() as session:
            hosts = {each.attempt.host for each in SqlStore(database).jobs([job]) if each.attempt is not None}
            assert reads.open_attempts(session.connection(), "first") == {}
        host = first.executor.attempts.attempts_host
        assert hosts == {host} == {second.executor.attempts.attempts_host}
        assert ServiceFleet(database, str(host)).log_holder(job, 1) is None, "its log is in the shared folder"
        assert second.executor.attempts.read_logs(job, 1, 0, 100).data == b"started\n"
        first.stop_leading()
        second.start_leading()
        first.attend()
        go_on.touch()
        assert eventually(lambda: state_of(database, job) is JobState.SUCCEEDED)
        assert SqlStore(database).jobs([job])[0].attempts == 1
        first.attend()
        assert len(engine.states(f"{job}.1")) == 1, "it was submitted once"
    finally:
        first.close()
        second.close()


def test_a_service_that_was_given_up_has_nothing_of_a_cluster_to_stop(
    database: Database, tmp_path: Path, engine: ProcessEngine
) -> None:
    instance = Instance("only", database, tmp_path, engine.driver())
    try:
        instance.start_leading()
        assert instance.lead.token is not None
        [(seen_at_s, _)] = services.heartbeats_of(database, ["only"]).values()
        assert services.condemn(database, "only", seen_at_s, LEADER_LEASE, instance.lead.token)
        instance.agent.beat()
        assert instance.agent.sound
        assert services.heartbeat(database, "only")
    finally:
        instance.close()


def test_attempts_that_no_executor_of_this_service_has_are_named_at_the_start(
    database: Database, tmp_path: Path
) -> None:
    executor = Finding()
    executor.found = [FoundServer(A)]
    own = OwnServers(database, EMPTY)
    with database.writing() as session:
        SqlStore(database).submit(session, [JobSpec("x", "ada", 1, command=("true",))], 5.0)
    services.register(database, services.Registered("me", "me", "http://me", "1", 60.0), claim=False)
    lead = LeaderLease(database, LEADER_LEASE, "me", 3600.0)
    assert lead.take()
    settings = load_settings({"executor": "fake"})
    context = LeaderContext(
        settings,
        SteadyClock(),
        database,
        own.enroll(executor),
        lead,
        "cluster",
        HostExecutor(executor, executor, None),
        Metrics(),
    )
    leading = Leading(context)
    leading.start()
    assert eventually(lambda: state_of(database, JobId(1)) is not JobState.QUEUED)
    leading.close()
    services.check_hosts(database, "me", "cluster")
    with pytest.raises(services.UnknownHosts, match=r"1 open attempt of the cluster cluster \(1\.1\) would be"):
        services.check_hosts(database, "me", "me")
    services.check_hosts(database, "cluster", "cluster", tmp_path)
    (tmp_path / "1.1").mkdir()
    with pytest.raises(services.UnknownHosts, match=r"1 open attempt of this service with executor=local \(1"):
        services.check_hosts(database, "cluster", "cluster", tmp_path)
