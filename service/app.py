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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import uvicorn
from apscheduler.schedulers.background import BackgroundScheduler

from policies.model.estimate import PredictionRequest
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Explanation
from policies.options import OptionError
from predictor.serving import LivePredictor
from service.api.app import create_app
from service.api.deps import ApiDependencies, ClusterNow, LogPart, LoopStatus, Refused
from service.api.token import TokenFileError, load_or_create
from service.cluster_file import ClusterFileError, load_cluster
from service.db import leases, migrate
from service.db.history import ended_jobs
from service.db.identity import database_id
from service.db.progress import ProgressPoint, record_progress
from service.db.said import first_said
from service.db.servers import ServerInUse, enroll
from service.db.session import DatabaseUrlError
from service.db.store import LEADER_LEASE, SqlStore
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import Report
from service.engine.ports import Executor
from service.engine.watch import WatchingPolicy, WatchingSink
from service.engine.world import Costs
from service.executors.fake import FakeExecutor
from service.executors.gpus import GpuInfo, detect, local_cluster
from service.executors.local import LocalExecutor
from service.forecast_process import ForecastProcess
from service.forecasting import Forecaster
from service.settings import Settings, SettingsError
from service.shadowing import Shadowing, make_shadow
from service.sim.replay import CycleSnapshot, Recorder
from service.startup import StartError, bind, configured_options, configured_policy, exclusive, listen, open_current
from service.tasks.explaining import Explainer
from service.tasks.forecasts import ForecastKeeper
from service.tasks.limited import Limited
from service.tasks.loop import LoopSettings, SchedulerLoop
from service.tasks.polling import PolledExecutor
from service.tasks.prune import prune
from service.tasks.retrain import Trainer, TrainingUnderWay, UnknownModel
from service.telemetry import log

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2

LOOP_STALE_PERIODS = 4.0
"""A loop that has not passed for so many of its periods is not ready to serve."""

TRAINING_CHECK_S = 60.0
"""How often it is looked whether a training is due."""

SHADOW_SAVED_S = 300.0
"""How often the shadow's account is written down: a service that is killed loses no more of it."""

WARM_ROWS_MAX = 40_000
"""Ended jobs that the predictor is warmed with: what its history keeps of a group is older than these only in small ones."""

SAID_ROWS_MAX = 10_000
"""Newest predictions that are scored again at start: more than the windows behind calibration, champions and trust hold."""


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
    ) as error:
        print(f"sooner: {error}", file=sys.stderr)
        return EXIT_USAGE
    except migrate.SchemaError as error:
        print(f"sooner: {error}", file=sys.stderr)
        return EXIT_USAGE


class Service:
    """One service, built in the order in which its parts need each other; the stack takes it down in reverse."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.clock = WallClock()
        stack.enter_context(exclusive(settings.prepare_data_dir()))
        self.recorder = Recorder(
            configured_policy(settings),
            configured_options(settings),
            jobs_max=settings.snapshot_jobs_max,
            kept=settings.snapshots_kept,
        )
        self.shadow = make_shadow(settings, self.recorder, Limited())
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
        self.executor = PolledExecutor(self._executor(stack, gpus), self._keep_progress)
        self.store = SqlStore(self.database, fencing_token=self.lease.token)
        self.predictor = LivePredictor()
        self.engine = self._engine([self.recorder] if self.shadow is None else [self.recorder, self.shadow])
        self.trainer = Trainer(self.database, settings, self.predictor, self.clock.now_s, self.cluster)
        self.trainer.recover()
        self._warm()
        stack.callback(self.trainer.close)
        self.scheduler = BackgroundScheduler(timezone="UTC")
        self.loop = SchedulerLoop(
            self.engine,
            self.executor,
            self.clock,
            self.scheduler,
            LoopSettings(settings.reschedule_period_s, settings.poll_period_s),
        )
        self.forecasting = ForecastProcess()
        stack.callback(self.forecasting.close)
        self.keeper = ForecastKeeper(
            self.database, self.clock.now_s, settings.forecast_cpu_ratio, settings.forecast_jobs_max
        )
        self.forecaster = Forecaster(
            self.loop, self.clock.now_s, self.predictor.preview, settings, self.forecasting, self.keeper.keep
        )
        self.shadowing = Shadowing(self.shadow, self.loop, settings)
        self.server = uvicorn.Server(
            uvicorn.Config(
                create_app(self._dependencies()), log_config=None, access_log=False, timeout_graceful_shutdown=5
            )
        )

    def run(self) -> int:
        """Serve until stopped."""
        log.configure()
        # What has been loaded stays. To look through it for garbage again and again is a third of a large batch of predictions.
        gc.collect()
        gc.freeze()
        self._schedule()
        self.scheduler.start()
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
            self.forecasting.close()  # a forecast under way would hold up the end by seconds
            self.scheduler.shutdown(wait=True)
            self.shadowing.save()
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

    def _engine(self, watching: Sequence[WatchingPolicy]) -> Engine[Any]:
        """``watching``: the policy inside those who look on, each inside the next."""
        settings = self.settings
        sink = WatchingSink(log.LogSink(), watching)
        return Engine(
            watching[-1],
            self.cluster,
            Ports(self.store, self.executor, self.clock, self.predictor, sink),
            Costs(settings.checkpoint_s, settings.restart_s),
            EngineSettings(
                retry_backoff_s=settings.retry_backoff_s,
                yields_max=settings.yields_max,
                facts_per_cycle_max=settings.facts_per_cycle_max,
                dump_every_cycles=settings.dump_every_cycles,
                stop_grace_s=settings.stop_grace_s,
                fencing_token=self.lease.token,
            ),
        )

    def _warm(self) -> None:
        unfinished = [
            PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in self.engine.world.jobs.values()
        ]
        said = first_said(self.database, SAID_ROWS_MAX, [request.job for request in unfinished])
        self.predictor.warm(ended_jobs(self.database, newest=WARM_ROWS_MAX), unfinished, said)

    def _schedule(self) -> None:
        settings = self.settings
        once = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
        add = self.scheduler.add_job
        add(self._renew, "interval", seconds=settings.leader_lease_s / 3, id="renew", **once)
        add(self.trainer.run_if_due, "interval", seconds=TRAINING_CHECK_S, id="retrain", **once)
        add(self._prune, "interval", seconds=settings.prune_period_s, id="prune", **once)
        add(self._keep_forecasts, "interval", seconds=settings.forecast_period_s, id="forecasts", **once)
        add(self.shadowing.save, "interval", seconds=SHADOW_SAVED_S, id="shadow", **once)
        self.loop.start()

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

    def _keep_forecasts(self) -> None:
        self.keeper.run(self.forecaster, self.forecaster.unfinished)

    def _prune(self) -> None:
        files = self.local.prune if self.local is not None else None
        prune(self.database, self.settings, self.clock.now_s(), files)

    def _keep_progress(self, reports: Sequence[Report]) -> None:
        points = [
            ProgressPoint(
                report.attempt,
                report.at_s,
                report.iteration,
                report.total_iterations,
                report.checkpoint_iteration,
                report.loss,
            )
            for report in reports
            if report.attempt is not None and report.iteration is not None
        ]
        try:
            with self.database.writing() as session:
                record_progress(session, points)
        except Exception:
            # A curve with a gap is not worth a cycle.
            logger.exception("progress points were not stored")

    # What the API is given.

    def _dependencies(self) -> ApiDependencies:
        return ApiDependencies(
            settings=self.settings,
            database=self.database,
            store=self.store,
            token=self.token,
            now_s=self.clock.now_s,
            nudge=self.loop.nudge,
            # The cluster is a frozen value: a submission need not wait for a cycle to see it.
            layout=lambda: self.engine.world.cluster,
            cluster=lambda: self.loop.read(_cluster_now),
            explain=self._explain,
            loop_status=self._loop_status,
            migrated=self._migrated,
            read_logs=self._read_logs,
            train=self._train,
            promote=self._promote,
            progress_sink=self._accept_progress,
            forecast=self.forecaster.current,
            plan=self.forecaster.plan,
            recorded=self.recorder.cycles,
            snapshot=self.recorder.snapshot,
            snapshot_now=self._snapshot_now,
            shadow=self.shadowing.report,
            shadow_opinion=self.shadowing.opinion,
            contributions=Explainer(self.database, self.predictor).contributions,
            wait_pass=self.loop.wait_pass,
            predictor_status=self.predictor.status,
        )

    def _migrated(self) -> bool:
        with self.database.reading() as session:
            return migrate.state_of(session.connection()) is migrate.SchemaState.CURRENT

    def _explain(self, job: JobId) -> Explanation | None:
        return self.loop.read(lambda engine: engine.explain(job) if job in engine.world.jobs else None)

    def _snapshot_now(self) -> CycleSnapshot | None:
        def look(engine: Engine[Any]) -> CycleSnapshot | None:
            if len(engine.world.jobs) > self.settings.forecast_jobs_max:
                return None
            return self.recorder.present(engine.world, engine.dump(), self.loop.cycle_number, self.clock.now_s())

        return self.loop.read(look)

    def _loop_status(self) -> LoopStatus:
        at_s = self.loop.last_pass_at_s
        limit_s = LOOP_STALE_PERIODS * self.settings.reschedule_period_s
        healthy = at_s is not None and self.clock.now_s() - at_s < limit_s
        return LoopStatus(self.loop.cycle_number, at_s, healthy)

    def _read_logs(self, job: JobId, attempt: int | None, offset: int, limit: int) -> LogPart:
        if self.local is None:
            raise KeyError(job)
        return self.local.read_logs(job, attempt, offset, limit)

    def _train(self) -> int:
        try:
            return self.trainer.start()
        except TrainingUnderWay as error:
            raise Refused(str(error)) from error

    def _promote(self, model: str) -> None:
        try:
            self.trainer.promote(model)
        except UnknownModel as error:
            raise Refused(str(error)) from error

    def _accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        if self.local is None:
            raise PermissionError(attempt)
        return self.local.accept_progress(attempt, token, line)


def _cluster_now(engine: Engine[Any]) -> ClusterNow:
    world = engine.world
    servers = [ServerIndex(index) for index in range(len(world.cluster.servers))]
    usable = [world.usable_gpus(server) for server in servers]
    return ClusterNow(world.cluster, usable, [world.free_gpus(server) for server in servers])
