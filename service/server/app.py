"""The composition root: the only place where ports meet implementations.

:func:`serve` builds one service from settings and runs it until it is told to stop. Whatever the user got wrong ends it
with one clear line and exit code 2 before anything runs.
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version

import uvicorn

from policies.options import OptionError
from service.api.app import create_app
from service.api.token import TokenFileError, load_or_create
from service.background.prune import prune_left_files
from service.background.timers import SteadyScheduler
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.policy import configured_shadow
from service.config.settings import Settings, SettingsError
from service.db import migrate, services
from service.db.identity import database_id
from service.db.lead import Lead
from service.db.servers import RememberedCluster, ServerInUse, enroll, stored_cluster
from service.db.session import DatabaseUrlError
from service.db.store import LEADER_LEASE
from service.engine.ports import Executor
from service.executors.fake import FakeExecutor
from service.executors.gpus import GpuInfo, detect, local_cluster
from service.executors.local import LocalExecutor
from service.executors.timeout import BoundedExecutor
from service.runtime.steady_clock import SteadyClock
from service.server.agent import Agent
from service.server.api_ports import ApiPorts
from service.server.leadership import Leadership
from service.server.leading import ONCE, Ground, Leading, engine_settings, make_recorder
from service.server.slow_clients import prompt_protocol
from service.server.startup import (
    StartError,
    advertised_url,
    bind,
    exclusive,
    host_of,
    listen,
    open_current,
)
from service.telemetry import log, tracing
from service.telemetry.http import MeasuredApp
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import ScrapeCollector

EXIT_USAGE = 2


def serve(settings: Settings) -> int:
    """Run the service until SIGINT or SIGTERM; returns the exit code. Jobs run on under their supervisors."""
    try:
        with ExitStack() as stack:
            service = Service(settings, stack)
            return service.run()
    except (
        StartError,
        SettingsError,
        OptionError,
        ClusterFileError,
        DatabaseUrlError,
        ServerInUse,
        TokenFileError,
        tracing.TracingUnavailable,
        migrate.SchemaError,
    ) as error:
        print(f"sooner: {error}", file=sys.stderr)
        return EXIT_USAGE


class Service:
    """One service, built in the order in which its parts need each other; the stack takes it down in reverse."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.clock = SteadyClock()
        self.metrics = Metrics()
        stack.enter_context(exclusive(settings.prepare_data_dir()))
        stack.enter_context(tracing.exporting(settings.otlp_endpoint))
        make_recorder(settings)
        configured_shadow(settings)
        gpus = detect(visible=os.environ.get("CUDA_VISIBLE_DEVICES")) if settings.executor == "local" else None
        self.wanted = load_cluster(settings.cluster) if settings.cluster else local_cluster(settings.virtual_gpus, gpus)
        self.database = open_current(settings.database_url)
        stack.callback(self.database.close)
        bind(settings.data_dir, database_id(self.database))
        self.host = host_of(settings.data_dir)
        self.token = load_or_create(settings.data_dir)
        self.socket = stack.enter_context(listen(settings.host, settings.port))
        self.local: LocalExecutor | None = None
        self.executor = BoundedExecutor(self._executor(stack, gpus), settings.executor_timeout_s)
        self.lead = Lead(self.database, LEADER_LEASE, self.host.id, settings.leader_lease_s)
        renew_leases = self.local.renew_leases if self.local is not None else lambda: None
        agent = Agent(
            self.database, self.host.id, self.executor, renew_leases, engine_settings(settings, 0, self.host.id)
        )
        self.leadership = Leadership(self.lead, agent, settings, self._begin_leading)
        self.scheduler = SteadyScheduler()
        api = ApiPorts(
            settings,
            self.clock,
            self.database,
            self.host.id,
            self.token,
            self.local,
            self.metrics,
            RememberedCluster(self.database, self.wanted),
            self.leadership,
            stopping=lambda: self.server.should_exit,
        )
        self.metrics.registry.register(ScrapeCollector(api.readings()))
        self.server = uvicorn.Server(
            uvicorn.Config(
                MeasuredApp(create_app(api.dependencies()), self.metrics),
                http=prompt_protocol(settings.request_timeout_s),
                limit_concurrency=settings.connections_max,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
                # Else the header of whoever calls from this machine would count, and the log of changes name another.
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=list(settings.trusted_proxies),
            )
        )

    def run(self) -> int:
        """Serve until stopped."""
        log.configure()
        self._register()
        self.leadership.begin()
        self.leadership.schedule(self.scheduler)
        if self.local is not None:
            self.scheduler.add_job(
                self._prune_files, "interval", seconds=self.settings.prune_period_s, id="files", **ONCE
            )
        self.scheduler.start()
        # Whoever reads that we listen may connect, or tell us to end, before the server begins to look for either. It ends in
        # good order at these signals, then raises them again for whoever started it: nobody here minds.
        self.socket.listen()
        for caught in (signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, self._end)
        host, port = self.socket.getsockname()[:2]
        print(
            f"Sooner is listening on http://{host}:{port} (token in {self.settings.data_dir})",
            file=sys.stderr,
            flush=True,
        )
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self.scheduler.shutdown(wait=True)
            self.leadership.close()
        return 0

    # Building.

    def _executor(self, stack: ExitStack, gpus: Sequence[GpuInfo] | None) -> Executor:
        settings = self.settings
        if settings.executor == "fake":
            return FakeExecutor(self.clock)
        host, port = self.socket.getsockname()[:2]
        self.local = LocalExecutor(
            settings.data_dir,
            stored_cluster(self.database, self.wanted),
            clock=self.clock,
            lease_s=settings.lease_s,
            log_bytes_max=settings.log_bytes_max,
            progress_url=f"http://{host}:{port}/v1/attempts/{{attempt}}/progress",
            gpus=gpus,
            checkpoints=settings.checkpoints_dir,
            renews_alone=False,
        )
        stack.callback(self.local.close)
        return self.local

    def _register(self) -> None:
        settings = self.settings
        service = services.Registered(
            self.host.id,
            f"{socket.gethostname()}:{settings.data_dir}",
            advertised_url(settings, self.socket.getsockname()[:2]),
            version("sooner"),
            settings.lease_s,
        )
        services.register(self.database, service, claim=self.host.old)

    def _begin_leading(self) -> Leading:
        """What runs while this service leads, on all servers that are stored and those of its own cluster file."""
        cluster = enroll(self.database, self.wanted)
        delete_files = None
        if self.local is not None:
            self.local.use_cluster(cluster)
            delete_files = self.local.prune
        return Leading(
            Ground(
                self.settings,
                self.clock,
                self.database,
                cluster,
                self.lead,
                self.host.id,
                self.executor,
                delete_files,
                self.metrics,
            )
        )

    def _end(self, *_: object) -> None:
        self.server.should_exit = True

    # Scheduled work.

    def _prune_files(self) -> None:
        assert self.local is not None
        prune_left_files(self.database, self.local.jobs_with_files(), self.local.prune)
