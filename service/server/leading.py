"""What the one service that leads runs: the engine and its loop, learning, forecasts, the shadow policy, pruning.

Built when this service takes the lead and taken down when it loses it; nothing of it survives in between, because whoever
led meanwhile has changed the world.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.model.cluster import Cluster
from policies.model.estimate import EndedJob, Prediction, PredictionRequest
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from predictor.serving import LivePredictor
from service.api.deps import LoopStatus
from service.background.forecasts import ForecastKeeper
from service.background.loop import LoopSettings, SchedulerLoop, Turns
from service.background.model_explanations import Explainer
from service.background.prune import DeleteFiles, prune
from service.background.retrain import Trainer
from service.background.timers import SteadyScheduler
from service.background.webhooks import WebhookSender
from service.config.policy import configured_options, configured_policy
from service.config.settings import Settings
from service.db.commit import FencedOff
from service.db.history import ended_jobs, last_label
from service.db.lead import Lead
from service.db.progress import ProgressPoint, record_progress
from service.db.said import first_said
from service.db.session import Database
from service.db.store import SqlStore
from service.db.wake import Listener
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import Report
from service.engine.ports import CycleBatch, Executor
from service.engine.record import StoredWorld
from service.engine.watch import WatchingPolicy, WatchingSink
from service.engine.world import Costs
from service.executors.polled import PolledExecutor
from service.forecast.forecaster import Forecaster
from service.forecast.process import ForecastProcess
from service.history.cycles import CycleSnapshot, Recorder
from service.runtime.garbage import made_to_stay, set_aside
from service.runtime.steady_clock import SteadyClock
from service.server.fleet import FleetExecutor
from service.server.warming import PatientStore, WarmingPredictor
from service.shadow.live import Shadowing, make_shadow
from service.shadow.time_limit import Limited
from service.telemetry import log
from service.telemetry.metrics import Metrics, MetricsSink
from service.telemetry.phases import MeasuredExecutor, MeasuredPolicy, MeasuredPredictor, MeasuredStore, Phases

logger = logging.getLogger(__name__)

LOOP_STALE_PERIODS = 4.0
"""A loop that has not passed for so many of its periods is not ready to serve."""

TRAINING_CHECK_S = 60.0
"""How often it is looked whether a training is due."""

SHADOW_SAVED_S = 300.0
"""How often the shadow's account is written down: a service that is killed loses no more of it."""

WARM_ROWS_MAX = 40_000
"""Ended jobs that the predictor is warmed with: what its history keeps of a group is older than these only in small ones."""

WARM_ROWS_AT_ONCE = 2_000
"""Jobs, ended or not, that the predictor learns of before anything is scheduled: a third of a second. Of more it learns
meanwhile."""

SAID_ROWS_MAX = 10_000
"""Newest predictions that are scored again at start: more than the windows behind calibration, champions and trust hold."""

_Past = tuple[Sequence[EndedJob], Sequence[PredictionRequest], Sequence[tuple[JobId, Prediction]]]

ONCE: dict[str, Any] = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
"""How every periodic task runs: never beside itself, and late rather than not at all."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What leading builds on. ``host`` is this service's identity, ``executor`` runs its attempts and nobody else's.

    ``delete_files`` is None where the executor leaves none.
    """

    settings: Settings
    clock: SteadyClock
    database: Database
    cluster: Cluster
    lead: Lead
    host: str
    executor: Executor
    delete_files: DeleteFiles | None
    metrics: Metrics


class LeaderStore(SqlStore):
    """The store of whoever leads: it commits nothing once the lead is lost, or can no longer be trusted."""

    def __init__(self, database: Database, lead: Lead, fencing_token: int) -> None:
        super().__init__(database, fencing_token=fencing_token, lease=lead.name)
        self._lead = lead

    def load(self) -> StoredWorld:
        """As the store does."""
        with made_to_stay():
            return super().load()

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """As the store does. Raises FencedOff, a StoreUnavailable."""
        self._lead.check()
        try:
            return super().commit(batch)
        except FencedOff:
            self._lead.lose()
            raise


class Leading:
    """Leads from :meth:`start` to :meth:`close`. The lead must have been taken."""

    def __init__(self, ground: Ground) -> None:
        fencing_token = ground.lead.token
        if fencing_token is None:
            raise FencedOff("the lead was lost before anything was built on it")
        self._ground = ground
        self._settings = ground.settings
        self._clock = ground.clock
        self._database = ground.database
        self._phases = Phases(ground.metrics)
        self._stack = ExitStack()
        try:
            self._build(fencing_token)
        except BaseException:
            self._stack.close()
            raise

    def _build(self, fencing_token: int) -> None:
        settings, database, now_s = self._settings, self._database, self._clock.now_s
        self.recorder = make_recorder(settings)
        shadow = make_shadow(settings, self.recorder, Limited())
        watching = [self.recorder] if shadow is None else [self.recorder, shadow]
        executor = PolledExecutor(self._fleet(), self._keep_progress)
        self.predictor = LivePredictor()
        self._warming = WarmingPredictor(self.predictor)
        self.engine = self._engine(watching, executor, fencing_token)
        self.trainer = Trainer(database, settings, self.predictor, now_s, self._ground.cluster)
        self.trainer.recover()
        self._clock.at_least(self.engine.world.now_s)
        self._work_to_warm = self._warm()
        self._stack.callback(self.trainer.close)
        self._scheduler = SteadyScheduler()
        self.loop = SchedulerLoop(
            self.engine,
            executor,
            self._clock,
            self._scheduler,
            LoopSettings(settings.reschedule_period_s, settings.poll_period_s),
            self._phases,
            Turns(self._ground.lead.holds, SqlStore(database).has_facts),
        )
        self.shadowing = Shadowing(shadow, self.loop, settings)
        self._forecasting = ForecastProcess()
        self._keeper = ForecastKeeper(database, now_s, settings.forecast_cpu_ratio, settings.forecast_jobs_max)
        self.forecaster = Forecaster(
            self.loop, now_s, self.predictor.preview, settings, self._forecasting, self._keeper.keep
        )
        self._webhooks = WebhookSender(database, settings, now_s, self._ground.lead.holds, self._count_webhook)
        self.explainer = Explainer(database, self.predictor)

    def start(self) -> None:
        """Run until :meth:`close`."""
        settings, add = self._settings, self._scheduler.add_job
        add(self.trainer.run_if_due, "interval", seconds=TRAINING_CHECK_S, id="retrain", **ONCE)
        add(self._prune, "interval", seconds=settings.prune_period_s, id="prune", **ONCE)
        add(self._keep_forecasts, "interval", seconds=settings.forecast_period_s, id="forecasts", **ONCE)
        add(self._webhooks.run, "interval", seconds=settings.webhook_period_s, id="webhooks", **ONCE)
        add(self.shadowing.save, "interval", seconds=SHADOW_SAVED_S, id="shadow", **ONCE)
        self._stack.enter_context(set_aside())
        if self._work_to_warm is not None:
            self._stack.callback(self._warming.close)
            self._warming.begin(self._work_to_warm, self.loop.nudge)
        self.loop.start()
        self._stack.callback(self.shadowing.save)
        self._stack.callback(self._scheduler.shutdown, wait=True)
        self._stack.callback(self.loop.close)
        self._scheduler.start()
        self._stack.callback(Listener(self._database, self.loop.nudge).close)

    def close(self) -> None:
        """End whatever is under way. Attempts run on."""
        self._forecasting.close()  # a forecast under way would hold up the end by seconds
        self._webhooks.close()  # and so would a receiver that does not answer
        self._stack.close()

    # What the API asks of it.

    def explain(self, job: JobId) -> Explanation | None:
        """None for a job that the loop does not hold."""
        return self.loop.read(lambda engine: engine.explain(job) if job in engine.world.jobs else None)

    def snapshot_now(self) -> CycleSnapshot | None:
        """The cluster and its queue as they are; None where that is too much to copy."""

        def look(engine: Engine[Any]) -> CycleSnapshot | None:
            if len(engine.world.jobs) > self._settings.forecast_jobs_max:
                return None
            return self.recorder.present(engine.world, engine.dump(), self.loop.cycle_number, self._clock.now_s())

        return self.loop.read(look)

    def loop_status(self) -> LoopStatus:
        """Where the loop stands."""
        at_s = self.loop.last_pass_at_s
        limit_s = LOOP_STALE_PERIODS * self._settings.reschedule_period_s
        healthy = at_s is not None and self._clock.now_s() - at_s < limit_s
        return LoopStatus(self.loop.cycle_number, at_s, healthy)

    # Building.

    def _engine(self, watching: Sequence[WatchingPolicy], executor: Executor, fencing_token: int) -> Engine[Any]:
        """``watching``: the policy inside those who look on, each inside the next."""
        settings = self._settings
        phases = self._phases
        leader_store = LeaderStore(self._database, self._ground.lead, fencing_token)
        store = MeasuredStore(PatientStore(leader_store, lambda: self._warming.warm), phases)
        sink = WatchingSink(MetricsSink(log.LogSink(), phases.metrics), watching)
        return Engine(
            MeasuredPolicy(watching[-1], phases),
            self._ground.cluster,
            Ports(
                store,
                MeasuredExecutor(executor, phases),
                self._clock,
                MeasuredPredictor(self._warming, phases),
                sink,
            ),
            Costs(settings.checkpoint_s, settings.restart_s),
            engine_settings(settings, fencing_token, self._ground.host),
        )

    def _fleet(self) -> FleetExecutor:
        ground = self._ground
        return FleetExecutor(
            ground.executor, ground.lead, ground.database, ground.host, ground.clock, ground.settings.stop_grace_s
        )

    def _warm(self) -> Callable[[], None] | None:
        """Let the predictor learn from the past; what is left to do of it, where that is too much to wait for.

        The past ends with the newest label that there is now: a job that ends later is told by the loop, and must not be
        learnt twice.
        """
        unfinished = [
            PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in self.engine.world.jobs.values()
        ]
        last = last_label(self._database)
        if last + len(unfinished) > WARM_ROWS_AT_ONCE:
            return partial(self._learn, unfinished, last)
        self._warming.warm_with(partial(self.predictor.warm, *self._past(unfinished, last)))
        return None

    def _learn(self, unfinished: Sequence[PredictionRequest], last: int) -> None:
        with made_to_stay():
            self.predictor.warm(*self._past(unfinished, last))

    def _past(self, unfinished: Sequence[PredictionRequest], last: int) -> _Past:
        said = list(first_said(self._database, SAID_ROWS_MAX, [request.job for request in unfinished]))
        return list(ended_jobs(self._database, newest=WARM_ROWS_MAX, last=last)), unfinished, said

    # Scheduled work.

    def _keep_forecasts(self) -> None:
        self._keeper.run(self.forecaster, self.forecaster.unfinished)

    def _prune(self) -> None:
        prune(self._database, self._settings, self._clock.now_s(), self._ground.delete_files)

    def _count_webhook(self, outcome: str) -> None:
        self._ground.metrics.webhook_attempts.labels(outcome).inc()

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
            with self._database.writing() as session:
                record_progress(session, points)
        except Exception:
            # A curve with a gap is not worth a cycle.
            logger.exception("progress points were not stored")


def engine_settings(settings: Settings, fencing_token: int, host: str) -> EngineSettings:
    """What of the settings concerns the engine."""
    return EngineSettings(
        retry_backoff_s=settings.retry_backoff_s,
        yields_max=settings.yields_max,
        facts_per_cycle_max=settings.facts_per_cycle_max,
        dump_every_cycles=settings.dump_every_cycles,
        stop_grace_s=settings.stop_grace_s,
        fencing_token=fencing_token,
        host=host,
    )


def make_recorder(settings: Settings) -> Recorder:
    """The configured policy, recorded cycle by cycle. Raises OptionError."""
    return Recorder(
        configured_policy(settings),
        configured_options(settings),
        jobs_max=settings.snapshot_jobs_max,
        kept=settings.snapshots_kept,
    )
