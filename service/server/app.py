"""The composition root: builds one service from settings and runs it until it is stopped.

The layers of the scheduler itself are composed in :mod:`service.server.live_stack`. An error of the user ends the start with one
clear line and exit code 2 before anything runs.
"""

import gc
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from policies.model.cluster import Cluster
from policies.options import OptionError
from service.api import forwarding
from service.api.app import create_app
from service.api.deps import ApiDependencies
from service.api.readiness import PERIOD_S, Readiness
from service.api.token import TokenFileError, load_or_create
from service.background.prune import prune_left_files
from service.background.timers import SteadyScheduler, patient
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.policy import configured_shadow
from service.config.settings import Settings, SettingsError
from service.db import migrate, services
from service.db.identity import database_id
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.servers import CachedCluster, ServerInUse, stored_cluster
from service.db.session import DatabaseUrlError
from service.db.store import SqlStore
from service.engine.ports import ExecutorUnavailable
from service.executors.gpus import GpuInfo
from service.runtime.no_room import no_room
from service.runtime.processes import spare_as_victim
from service.runtime.steady_clock import SteadyClock
from service.server.agent import Agent
from service.server.api_ports import ServiceFleet, ServiceProcess, ServiceScheduler, readings
from service.server.clusters import ENGINES, OwnServers, gangs_of, local_servers
from service.server.folder_lock import exclusive, has_ended
from service.server.http_server import http_server
from service.server.leadership import Leadership
from service.server.leading import ONCE, Leading
from service.server.live_stack import LeaderContext, engine_settings, gpus_of_host, make_executor, make_recorder
from service.server.startup import (
    StartError,
    advertised_url,
    bind,
    check_tls,
    host_of,
    listen,
    open_current,
    url_of,
)
from service.server.users_apart import data_dir_mode, keep_users_apart, sentence
from service.telemetry import log, tracing
from service.telemetry.http import MeasuredApp
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import ScrapeCollector
from service.web.app import install

logger = logging.getLogger(__name__)

EXIT_USAGE = 2

SWITCH_S = 0.001
"""Time after which a thread that computes lets others run. A page of jobs passes between threads some ten times."""

COLLECT_AFTER = (10_000, 2, 2)
"""Thresholds of the garbage collector. Python's (700, 10, 10) begin a collection in nearly every submission, whose objects are
all in use or freed soon. Full collections come as often as with Python's."""


def serve(settings: Settings) -> int:
    """Run the service until SIGINT or SIGTERM; returns the exit code. Jobs run on under their supervisors."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*COLLECT_AFTER)
    # Before anything can warn: each line of the log is one JSON object.
    log.configure()
    try:
        with ExitStack() as stack:
            with _starting():
                service = Service(settings, stack)
                service.begin()
            return service.run()
    except (
        StartError,
        SettingsError,
        OptionError,
        ClusterFileError,
        DatabaseUrlError,
        ServerInUse,
        services.UnknownHosts,
        TokenFileError,
        tracing.TracingUnavailable,
        migrate.SchemaError,
    ) as error:
        print(f"sooner: {error}", file=sys.stderr)
        return EXIT_USAGE


@contextmanager
def _starting() -> Iterator[None]:
    """Turn a failure of a file or of the database into a StartError: one line, no traceback."""
    try:
        yield
    except (OSError, DBAPIError) as error:
        cause = error if isinstance(error, OSError) else error.orig
        raise StartError(no_room(error) or f"cannot start: {' '.join(str(cause).split())}") from error


class Service:
    """One service, built in the order of its dependencies and closed in reverse by the stack."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.clock = SteadyClock()
        self.metrics = Metrics()
        stack.enter_context(exclusive(settings.prepare_data_dir()))
        stack.enter_context(tracing.exporting(settings.otlp_endpoint))
        check_tls(settings)
        make_recorder(settings)
        configured_shadow(settings)
        gpus = gpus_of_host(settings)
        known, machine = self._known_servers(gpus)
        self.machine = machine if settings.executor == "local" else None
        self.database = open_current(settings.database_url)
        stack.callback(self.database.close)
        bind(settings.data_dir, database_id(self.database))
        self.host = host_of(settings.data_dir)
        self.token = load_or_create(settings.data_dir, data_dir_mode(settings))
        keep_users_apart(settings)
        self.socket = stack.enter_context(listen(settings.host, settings.port))
        self.servers = OwnServers(self.database, known, settings.cluster)
        stored = stored_cluster(self.database, known)
        self.executor = make_executor(settings, self.clock, stored, gpus, machine, self.socket.getsockname()[:2])
        stack.callback(self.executor.attempts.close)
        self.lead = LeaderLease(
            self.database, LEADER_LEASE, self.host.id, settings.leader_lease_s, has_ended=self._has_ended
        )
        agent = Agent(
            self.database,
            self.host.id,
            self.executor.own,
            self.executor.attempts.renew_leases,
            engine_settings(settings, 0, self.host.id),
            register=self._register,
        )
        self.leadership = Leadership(self.lead, agent, settings, self._begin_leading)
        self.scheduler = SteadyScheduler()
        self.api = create_app(self._api())
        install(self.api)
        self.server = http_server(MeasuredApp(self.api, self.metrics), settings)

    def begin(self) -> None:
        """Register, and lead if no other service does."""
        spare_as_victim()
        if self.executor.containment is not None:
            logger.info(self.executor.containment.sentence)
        self._register()
        # Timers know nothing of programs that run: they would call them ended, and simulate their jobs beside them.
        unattended = self.settings.data_dir / "attempts" if self.settings.executor == "fake" else None
        services.check_hosts(self.database, self.host.id, self._attempts_host, unattended)
        try:
            leads = self.leadership.begin()
        except ExecutorUnavailable as error:
            raise StartError(f"executor={self.settings.executor}: {error}") from error
        if not leads:
            forwarding.prepare()

    def run(self) -> int:
        """Serve until stopped."""
        self.leadership.schedule(self.scheduler)
        self.scheduler.add_job(
            patient(self._prune_files), "interval", seconds=self.settings.prune_period_s, id="files", **ONCE
        )
        self.scheduler.add_job(self._read_readiness, "interval", seconds=PERIOD_S, id="readiness", **ONCE)
        self.scheduler.start()
        # A client that reads the address below may connect or send a signal at once, before uvicorn accepts either.
        self.socket.listen()
        for caught in (signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, self._end)
        url = url_of(self.settings.scheme, *self.socket.getsockname()[:2])
        print(
            f"Sooner is listening on {url} (token in {self.settings.data_dir}); `sooner dashboard` opens it in a browser",
            file=sys.stderr,
            flush=True,
        )
        if {"host", "port", "data_dir"} & {line.name for line in self.settings.describe() if line.source == "flag"}:
            # Other commands do not know the options of this one.
            folder = shlex.quote(str(self.settings.data_dir))
            print(f"For other commands: export SOONER_URL={url} SOONER_DATA_DIR={folder}", file=sys.stderr, flush=True)
        if said := sentence(self.settings):
            print(said, file=sys.stderr, flush=True)
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self.scheduler.shutdown(wait=True)
            self.leadership.close()
        return 0

    def _api(self) -> ApiDependencies:
        settings, database = self.settings, self.database
        known = replace(self.servers.known, gangs=gangs_of(self.executor.attempts.abilities))
        scheduler = ServiceScheduler(database, self.leadership, CachedCluster(database, known))
        contained = self.executor.containment
        process = ServiceProcess(
            database,
            self.metrics,
            lambda: self.server.should_exit,
            containment=contained.kind if contained is not None else None,
        )
        self.metrics.registry.register(ScrapeCollector(readings(self.clock, scheduler, process)))
        return ApiDependencies(
            settings=settings,
            database=database,
            store=SqlStore(database),
            token=self.token,
            now_s=self.clock.now_s,
            scheduler=scheduler,
            attempts=self.executor.attempts,
            fleet=ServiceFleet(database, self._attempts_host),
            process=process,
            machine=self.machine,
        )

    def _register(self) -> None:
        settings = self.settings
        service = services.Registered(
            self.host.id,
            f"{socket.gethostname()}:{settings.data_dir.absolute()}",
            advertised_url(settings, self.socket.getsockname()[:2]),
            version("sooner"),
            settings.lease_s,
        )
        services.register(self.database, service, claim=self.host.old)

    def _has_ended(self, service: str) -> bool:
        """Whether another service was on this machine and has ended for certain."""
        machine, _, folder = services.name_of(self.database, service).partition(":")
        return machine == socket.gethostname() and has_ended(Path(folder), service)

    @property
    def _attempts_host(self) -> str:
        return self.executor.attempts.attempts_host or self.host.id

    def _known_servers(self, gpus: Sequence[GpuInfo] | None) -> tuple[Cluster, frozenset[str] | None]:
        """The servers that are known without an executor, none if the executor finds them; and which are this machine."""
        settings = self.settings
        if settings.executor in ENGINES:
            return Cluster(settings.executor, ()), None
        if settings.executor == "fake" and settings.cluster is not None:
            return load_cluster(settings.cluster), None
        return local_servers(settings, gpus)

    def _begin_leading(self) -> Leading:
        """The leader of all servers that are stored and those of this service's own cluster file."""
        cluster = self.servers.enroll(self.executor.attempts)
        return Leading(
            LeaderContext(
                self.settings,
                self.clock,
                self.database,
                cluster,
                self.lead,
                self._attempts_host,
                self.executor,
                self.metrics,
            )
        )

    def _end(self, *_: object) -> None:
        self.server.should_exit = True

    def _read_readiness(self) -> None:
        readiness: Readiness = self.api.state.readiness
        with suppress(DBAPIError):  # the probe reports it
            readiness.refresh()

    def _prune_files(self) -> None:
        files = self.executor.attempts
        prune_left_files(self.database, files.jobs_with_files(), files.prune)
