"""The composition root: the only place where ports meet implementations.

:func:`serve` builds one service from settings and runs it until it is told to stop. Whatever the user got wrong ends it
with one clear line and exit code 2 before anything runs; a failure on the way ends it with 1.
"""

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import uvicorn
from apscheduler.schedulers.background import BackgroundScheduler

from policies.options import OptionError
from service.api.app import create_app
from service.api.token import TokenFileError, load_or_create
from service.cluster_file import ClusterFileError, load_cluster
from service.db import leases, migrate
from service.db.identity import database_id
from service.db.servers import ServerInUse, enroll
from service.db.session import DatabaseUrlError
from service.db.store import LEADER_LEASE
from service.engine.ports import Executor
from service.executors.fake import FakeExecutor
from service.executors.gpus import GpuInfo, detect, local_cluster
from service.executors.local import LocalExecutor
from service.leading import ONCE, Ground, Leading, make_recorder
from service.ports_of_api import ApiPorts
from service.settings import Settings, SettingsError
from service.startup import StartError, bind, configured_shadow, exclusive, listen, open_current
from service.telemetry import log, tracing
from service.telemetry.http import MeasuredApp
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import ScrapeCollector

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2


class WallClock:
    """Seconds since the Unix epoch."""

    def now_s(self) -> float:
        """Now."""
        return time.time()


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
        self.clock = WallClock()
        self.metrics = Metrics()
        stack.enter_context(exclusive(settings.prepare_data_dir()))
        stack.enter_context(tracing.exporting(settings.otlp_endpoint))
        make_recorder(settings)
        configured_shadow(settings)
        gpus = detect(visible=os.environ.get("CUDA_VISIBLE_DEVICES")) if settings.executor == "local" else None
        wanted = load_cluster(settings.cluster) if settings.cluster else local_cluster(settings.virtual_gpus, gpus)
        self.database = open_current(settings.database_url)
        stack.callback(self.database.close)
        bind(settings.data_dir, database_id(self.database))
        self.cluster = enroll(self.database, wanted)
        self.lease = self._lead(stack)
        self.token = load_or_create(settings.data_dir)
        self.socket = stack.enter_context(listen(settings.host, settings.port))
        self.local: LocalExecutor | None = None
        executor = self._executor(stack, gpus)
        delete_files = self.local.prune if self.local is not None else None
        ground = Ground(settings, self.clock, self.database, self.cluster, executor, delete_files, self.metrics)
        self.leading = Leading(ground, self.lease.token)
        self.scheduler = BackgroundScheduler(timezone="UTC")
        api = ApiPorts(settings, self.clock, self.database, self.token, self.local, self.metrics, lambda: self.leading)
        self.metrics.registry.register(ScrapeCollector(api.readings()))
        self.server = uvicorn.Server(
            uvicorn.Config(
                MeasuredApp(create_app(api.dependencies()), self.metrics),
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
            )
        )

    def run(self) -> int:
        """Serve until stopped."""
        log.configure()
        # What has been loaded stays. To look through it for garbage again and again is a third of a large batch of predictions.
        gc.collect()
        gc.freeze()
        self.scheduler.add_job(self._renew, "interval", seconds=self.settings.leader_lease_s / 3, id="renew", **ONCE)
        self.scheduler.start()
        self.leading.start()
        host, port = self.socket.getsockname()[:2]
        print(
            f"Sooner is listening on http://{host}:{port} (token in {self.settings.data_dir})",
            file=sys.stderr,
            flush=True,
        )
        # The server ends in good order at either signal, then raises it again for whoever started it: nobody here minds.
        for caught in (signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, lambda *_: None)
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self.leading.close()
            self.scheduler.shutdown(wait=True)
        return EXIT_FAILED if self.lease_lost else 0

    # Building.

    def _lead(self, stack: ExitStack) -> leases.Lease:
        """Take the lead of the database. The same data folder takes it back at once after a crash: its lock is ours."""
        holder = f"{socket.gethostname()}:{self.settings.data_dir}"
        lease = leases.acquire(self.database, LEADER_LEASE, holder, self.settings.leader_lease_s)
        if lease is None:
            raise StartError("another service leads on this database; stop it, or wait until its lease has run out")
        self.lease_lost = False
        stack.callback(lambda: leases.release(self.database, self.lease))
        return lease

    def _executor(self, stack: ExitStack, gpus: Sequence[GpuInfo] | None) -> Executor:
        if self.settings.executor == "fake":
            return FakeExecutor(self.clock)
        host, port = self.socket.getsockname()[:2]
        self.local = LocalExecutor(
            self.settings.data_dir,
            self.cluster,
            clock=self.clock,
            lease_s=self.settings.lease_s,
            log_bytes_max=self.settings.log_bytes_max,
            progress_url=f"http://{host}:{port}/v1/attempts/{{attempt}}/progress",
            gpus=gpus,
        )
        stack.callback(self.local.close)
        return self.local

    # Scheduled work.

    def _renew(self) -> None:
        """Keep the lead, and keep the attempts' leases alive. Whoever lost the lead stops: another one schedules."""
        if self.local is not None:
            self.local.renew_leases()
        renewed = leases.renew(self.database, self.lease, self.settings.leader_lease_s)
        if renewed is None:
            logger.error("another service has taken the lead; this one stops")
            self.lease_lost = True
            self.server.should_exit = True
        else:
            self.lease = renewed
