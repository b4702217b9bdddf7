"""The API on a real SQLite file and the real store; what the composition root would provide is played by :class:`World`."""

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import insert, select, update

from policies.choose import find
from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import AttemptId, JobId
from policies.model.job import JobSpec
from policies.model.reasons import Explanation
from policies.model.shares import Shares
from policies.placement.pool import FreePool
from predictor.explain import Contributions, contributions
from predictor.serving import LivePredictor, PredictorStatus
from predictor.training import TrainedModel
from service.api.app import create_app
from service.api.authenticate import Authenticator
from service.api.deps import (
    ApiDependencies,
    ClusterNow,
    CycleRecords,
    Forecasts,
    Leader,
    LoopStatus,
    Refused,
    ShadowReports,
)
from service.api.idempotency import Keys
from service.api.overview import Overviews, read
from service.api.peers import Peers
from service.api.permissions import Owners
from service.api.rates import Buckets
from service.api.readiness import Readiness
from service.api.routers.health import read_readiness
from service.api.sse import Streams
from service.config.settings import Settings
from service.db.identity import peer_secret
from service.db.migrate import upgrade
from service.db.rows import server_event_values
from service.db.servers import enroll
from service.db.services import ServiceNow
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import SERVER_EVENTS, SERVERS
from service.engine.engine import Engine
from service.engine.events import ServerEvent, ServerEventKind
from service.executors.logs import LogChunk
from service.forecast.forecast import Forecast, JobForecast, NoForecast
from service.forecast.forecaster import Planned, PlannedJob
from service.history.cycles import CycleSnapshot
from service.shadow.live import JobOpinion, ShadowReport
from service.web.app import install
from service.web.reader import SharedDocuments
from service.wire.cluster import ContainmentKind
from tests.api.client import client_of

TOKEN = secrets.token_urlsafe(32)
NOW_S = 1_767_225_600.0
PLANNED_TOTAL = Estimate((10.0, 20.0, 30.0), Unit.ITERATIONS, "told", seconds_per_unit=0.5)
"""2026-01-01T00:00:00Z"""


@dataclass
class World:
    """What the rest of the service would answer, and what it was asked."""

    database: Database
    store: SqlStore
    settings: Settings
    token: str
    now_s: float = NOW_S
    nudges: int = 0
    asked: int = 0
    refuses_writers: bool = False
    healthy: bool = True
    last_cycle_at_s: float | None = NOW_S
    migrated: bool = True
    leads: bool = True
    stopping: bool = True
    """Event streams end as soon as they are open: the client of these tests waits for whole answers."""
    servers: list[Server] = field(
        default_factory=lambda: [Server("a", 4), Server("b", 4), Server("c", 2, gpu_type="T4", rack="r2")]
    )
    usable: dict[str, int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    held_gpus: int = 0
    engine: Engine[Any] | None = None
    shares: Shares = field(default_factory=Shares)
    explanations: dict[JobId, Explanation] = field(default_factory=dict)
    logs: dict[tuple[int, int], bytes] = field(default_factory=dict)
    node_logs: dict[int, bytes] = field(default_factory=dict)
    attempt_tokens: dict[str, str] = field(default_factory=dict)
    progress: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    trainings: int = 0
    refusal: str = ""
    promoted: list[str] = field(default_factory=list)
    forecast: Forecast | None = None
    planned: list[JobSpec] = field(default_factory=list)
    outlook: JobForecast | None = None
    planned_total: Estimate = PLANNED_TOTAL
    snapshots: dict[int, CycleSnapshot] = field(default_factory=dict)
    present: CycleSnapshot | None = None
    shadow: ShadowReport | None = None
    opinions: dict[JobId, JobOpinion] = field(default_factory=dict)
    predictor: LivePredictor = field(default_factory=LivePredictor)
    models: dict[str, TrainedModel] = field(default_factory=dict)
    log_holders: dict[JobId, str] = field(default_factory=dict)
    services: list[ServiceNow] = field(default_factory=list)
    host: str = "b"
    machine: frozenset[str] | None = None
    on_pass: Callable[[], None] | None = None

    def dependencies(self) -> ApiDependencies:
        return ApiDependencies(
            settings=self.settings,
            database=self.database,
            store=self.store,
            token=self.token,
            now_s=lambda: self.now_s,
            scheduler=WorldScheduler(self),
            attempts=WorldAttempts(self),
            fleet=WorldFleet(self),
            process=WorldProcess(self),
            machine=self.machine,
        )

    def waits_for_the_loop(self) -> None:
        """The loop writes while it holds what these answers need: nobody may ask holding the write lock. A standby has none."""
        assert self.leads, "a standby has no loop"
        self.holds_no_lock()

    def holds_no_lock(self) -> None:
        self.asked += 1
        if self.refuses_writers:
            with closing(sqlite3.connect(self.settings.data_dir / "sooner.db", timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")

    def change_server(self, name: str, **state: object) -> None:
        """Change the state of a server, with an event as of the executor's report that it is down."""
        with self.database.writing() as session:
            connection = session.connection()
            connection.execute(update(SERVERS).where(SERVERS.c.name == name).values(**state))
            position = connection.execute(select(SERVERS.c.position).where(SERVERS.c.name == name)).scalar_one()
            event = ServerEvent(position, self.now_s, ServerEventKind.DOWN, 7, str(state["detail"]))
            connection.execute(insert(SERVER_EVENTS), [server_event_values(event)])

    def say_of_servers(self, said: Mapping[str, tuple[bool, bool]]) -> None:
        """Store what the engine would: (drained, down) of servers by name."""
        with self.database.writing() as session:
            for name, (drained, down) in said.items():
                statement = update(SERVERS).where(SERVERS.c.name == name).values(drained=drained, down=down)
                session.connection().execute(statement)


class WorldLeader:
    """Implements :class:`service.api.deps.Leader`, and is its own forecaster, recorder and shadow."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def forecaster(self) -> Forecasts:
        return self

    @property
    def recorder(self) -> CycleRecords:
        return self

    @property
    def shadowing(self) -> ShadowReports:
        return self

    def explain(self, job: JobId) -> Explanation | None:
        self.world.waits_for_the_loop()
        return self.world.explanations.get(job)

    def queue(self, wanted: QueueWanted) -> QueueSlice:
        self.world.waits_for_the_loop()
        if self.world.engine is None:
            return QueueSlice((), 0, tuple(wanted.among or ()), "")
        return self.world.engine.queue(wanted)

    def shares(self) -> Shares:
        self.world.waits_for_the_loop()
        return self.world.shares

    def cluster(self) -> ClusterNow:
        self.world.waits_for_the_loop()
        servers = self.world.servers
        usable = [self.world.usable.get(server.name, server.gpus) for server in servers]
        free = [self.world.free.get(server.name, server.gpus) for server in servers]
        return ClusterNow(Cluster("test", tuple(servers)), usable, free, held_gpus=self.world.held_gpus)

    def train(self) -> int:
        self.world.waits_for_the_loop()
        if self.world.refusal:
            raise Refused(self.world.refusal)
        self.world.trainings += 1
        return self.world.trainings

    def promote(self, model: str) -> None:
        self.world.waits_for_the_loop()
        if self.world.refusal:
            raise Refused(self.world.refusal)
        self.world.promoted.append(model)

    def current(self) -> Forecast:
        self.world.waits_for_the_loop()
        if self.world.forecast is None:
            raise NoForecast("No unfinished job has a prediction yet.")
        return self.world.forecast

    def kept(self) -> Forecast | None:
        return self.world.forecast

    def plan(self, specs: Sequence[JobSpec]) -> Planned:
        self.world.waits_for_the_loop()
        self.world.planned += specs
        cluster = self.cluster().cluster
        pool = FreePool(cluster, [server.gpus for server in cluster.servers])
        free = FreePool(cluster, [self.world.free.get(server.name, server.gpus) for server in cluster.servers])
        outlook = self.world.outlook
        reason = None if outlook is not None else "No unfinished job has a prediction yet."
        return Planned(
            self.world.now_s,
            [
                PlannedJob(
                    spec,
                    self.world.planned_total,
                    find(pool, cluster, spec),
                    find(free, cluster, spec),
                    outlook,
                    reason,
                )
                for spec in specs
            ],
        )

    def cycles(self) -> Sequence[int]:
        return sorted(self.world.snapshots, reverse=True)

    def snapshot(self, cycle: int) -> CycleSnapshot | None:
        return self.world.snapshots.get(cycle)

    def snapshot_now(self) -> CycleSnapshot | None:
        self.world.waits_for_the_loop()
        return self.world.present

    def report(self) -> ShadowReport | None:
        self.world.waits_for_the_loop()
        return self.world.shadow

    def opinion(self, job: JobId) -> JobOpinion | None:
        self.world.waits_for_the_loop()
        return self.world.opinions.get(job)

    def predictor_status(self) -> PredictorStatus:
        return self.world.predictor.status()

    def contributions(self, version: str, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
        model = self.world.models.get(version.partition("/")[0])
        return None if model is None else contributions(model, unit, vector)


class WorldScheduler:
    """Implements :class:`service.api.deps.Scheduler`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def leader(self) -> Leader | None:
        return WorldLeader(self.world) if self.world.leads else None

    def status(self) -> LoopStatus:
        return LoopStatus(7, self.world.last_cycle_at_s, self.world.healthy, self.world.leads, duration_s=0.25)

    def nudge(self) -> None:
        self.world.holds_no_lock()
        self.world.nudges += 1

    def layout(self) -> Cluster:
        self.world.holds_no_lock()
        return Cluster("test", tuple(self.world.servers))

    def wait_cycle(self, seen: int, timeout_s: float) -> int:
        """A cycle is made by whoever waits for one, and is not for lack of one waited for."""
        assert 0.0 <= timeout_s <= 10.0
        if seen >= 0 and self.world.on_pass is not None:
            self.world.on_pass()
        return seen + 1


class WorldAttempts:
    """Implements :class:`service.api.deps.Attempts`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def read_logs(self, job: JobId, attempt: int, offset: int, limit_bytes: int, node: int = 0) -> LogChunk:
        data = self.world.node_logs[node] if node else self.world.logs[job, attempt]
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        part = data[start : start + limit_bytes]
        return LogChunk(part, start, start + len(part), 0, len(data))

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        if not secrets.compare_digest(self.world.attempt_tokens.get(attempt, ""), token):
            raise PermissionError(attempt)
        self.world.progress.append((attempt, dict(line)))
        return True


class WorldFleet:
    """Implements :class:`service.api.deps.Fleet`."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def host(self) -> str:
        return self.world.host

    def services(self) -> Sequence[ServiceNow]:
        return self.world.services

    def log_holder(self, job: JobId, attempt: int) -> str | None:
        return self.world.log_holders.get(job)


class WorldProcess:
    """Implements :class:`service.api.deps.Process`."""

    containment: ContainmentKind | None = "subreaper"

    def __init__(self, world: World) -> None:
        self.world = world

    def is_stopping(self) -> bool:
        return self.world.stopping

    def is_migrated(self) -> bool:
        return self.world.migrated

    def exposition(self) -> bytes:
        return b"# nothing\n"


@cache
def _empty_database() -> bytes:
    """A migrated database file. Migrating takes longer than most tests, and all start from the same file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def make_world(folder: Path, url: str = "", **settings: Any) -> World:
    """A migrated database, in the folder unless another is named, and everything around it."""
    if not url:
        path = folder / "sooner.db"
        path.write_bytes(_empty_database())
        url = f"sqlite:///{path}"
    database = open_database(url)
    chosen = Settings(data_dir=folder, database_url=url, **settings)
    world = World(database, SqlStore(database), chosen, TOKEN)
    enroll(database, Cluster("test", tuple(world.servers)))
    return world


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Every test of the API runs on SQLite, and in the whole suite on PostgreSQL as well."""
    made = make_world(tmp_path, "" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    yield made
    made.database.close()


@cache
def _shared_app(name: str) -> FastAPI:
    """One application of a name for all tests: building its routes takes longer than most of them."""
    with TemporaryDirectory() as folder:
        # The tests of a whole run, which send wrong tokens, come from one address.
        world = make_world(Path(folder), failed_logins_burst_max=1_000_000)
        world.database.close()
        return create_app(world.dependencies())


@pytest.fixture
def app(world: World) -> FastAPI:
    """The shared application, bound to this test's world (which has its token and its limits of the door)."""
    return app_of(world)


def app_of(world: World, name: str = "the only one") -> FastAPI:
    """The shared application of a name, bound to a world."""
    shared = _shared_app(name)
    shared.state.dependencies = world.dependencies()
    shared.state.owners = Owners(world.database)
    shared.state.authenticator = Authenticator(world.database, world.settings, world.token, lambda: world.now_s)
    shared.state.key_requests = Buckets(world.settings.requests_per_s_max, world.settings.requests_burst_max)
    shared.state.idempotency_keys = Keys(world.database, lambda: world.now_s, world.settings.idempotency_kept_s)
    shared.state.readiness = Readiness(lambda: read_readiness(shared.state.dependencies), wait_s=60.0)
    shared.state.overviews = Overviews(lambda: read(shared.state.dependencies))
    shared.state.streams = Streams(world.database)
    shared.state.peers = Peers(lambda: peer_secret(world.database), lambda: world.now_s)
    return shared


def pages_of(world: World, name: str = "with pages") -> FastAPI:
    """The shared application of a name with the dashboard, bound to a world."""
    app = app_of(world, name)
    if not hasattr(app.state, "templates"):
        install(app)
    app.state.shared_documents = SharedDocuments()
    return app


@pytest.fixture
def client(app: FastAPI, world: World) -> Client:
    return client_of(app, world.token)
