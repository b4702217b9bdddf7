"""The parts that only a leader runs: the loop of the live stack, training, forecasts, what-if runs, webhooks, shadow records,
pruning.

They are built when this service becomes the leader and closed when it loses the lead. They are never reused, because another
leader may have changed the state.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.estimate import PredictionRequest, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Explanation
from policies.model.shares import Shares
from predictor.explain import Contributions
from predictor.serving import PredictorStatus
from service.api.deps import ClusterNow, LoopStatus, Refused
from service.background.forecasts import ForecastKeeper
from service.background.health import HEALTH_PERIOD_S
from service.background.loop import CycleConditions, LoopSettings, SchedulerLoop
from service.background.model_explanations import Explainer
from service.background.prune import prune
from service.background.retrain import Trainer, TrainingUnderWay, UnknownModel
from service.background.simulations import LOOK_EVERY_S, SimulationRunner
from service.background.timers import SteadyScheduler, patient
from service.background.webhooks import WebhookSender
from service.db.notifications import Listener
from service.db.store import SqlStore
from service.engine.engine import Engine
from service.forecast.forecaster import Forecaster
from service.forecast.past import RecordedPast
from service.forecast.process import ForecastProcess
from service.history.cycles import CycleSnapshot
from service.runtime.garbage import set_aside
from service.runtime.workers import cores
from service.server.live_stack import LeaderContext, make_live_stack
from service.server.warming import warm_up
from service.shadow.live import Shadowing

logger = logging.getLogger(__name__)

LOOP_STALE_PERIODS = 4.0
"""The loop is unhealthy after this many periods without a cycle."""

TRAINING_CHECK_S = 60.0
"""Period of the check whether a training is due."""

SHADOW_SAVED_S = 300.0
"""Period of saving the shadow's records, seconds. A service that is killed loses at most this much of them."""

FIRST_CYCLE_S = 10.0
"""Longest wait for the first cycle before a long history is read."""

ONCE: dict[str, Any] = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
"""Options of all periodic tasks: one run at a time, and a late run instead of a skipped one."""


class Leading:
    """Leads from :meth:`start` to :meth:`close`. Implements :class:`service.api.deps.Leader`.

    Raises FencedOff if the lead is lost already.
    """

    def __init__(self, context: LeaderContext) -> None:
        settings, database, now_s = context.settings, context.database, context.clock.now_s
        self._context = context
        self._closing = ExitStack()
        self.stack = stack = make_live_stack(context)
        if stack.shadow is not None:
            self._closing.callback(stack.shadow.close)
        self.recorder = stack.recorder
        self.trainer = Trainer(database, settings, stack.predictor, now_s, context.cluster, lambda: stack.warming.warm)
        self.trainer.recover()
        world = stack.engine.world
        context.clock.at_least(world.now_s)
        unfinished = [PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in world.jobs.values()]
        self._work_to_warm = warm_up(database, stack.predictor, stack.warming, unfinished, stack.measured.predicted)
        self._closing.callback(self.trainer.close)
        self._scheduler = SteadyScheduler()
        self.loop = SchedulerLoop(
            stack.engine,
            stack.executor,
            context.clock,
            self._scheduler,
            LoopSettings(settings.reschedule_period_s, settings.poll_period_s),
            stack.phases,
            CycleConditions(context.lead.holds, SqlStore(database).has_requests),
        )
        self.shadowing = Shadowing(stack.shadow, self.loop, settings)
        self._forecasting = ForecastProcess()
        # A forecast uses as many cores at a time as it has futures.
        ratio = settings.forecast_cpu_ratio / min(cores(), settings.forecast_samples)
        self._keeper = ForecastKeeper(database, now_s, ratio, settings.forecast_jobs_max)
        self.forecaster = Forecaster(
            self.loop,
            now_s,
            stack.predictor.preview,
            settings,
            self._forecasting,
            self._keeper.keep,
            RecordedPast(database),
        )
        self._webhooks = WebhookSender(database, settings, now_s, context.lead.holds, self._count_webhook)
        self._explainer = Explainer(database, stack.predictor)
        self._simulations = SimulationRunner(database, settings, context.lead, now_s, self.snapshot_now)

    def start(self) -> None:
        """Run until :meth:`close`."""
        settings = self._context.settings

        def add(work: Callable[[], None], *arguments: Any, **options: Any) -> None:
            self._scheduler.add_job(patient(work), *arguments, **options)

        add(self.trainer.run_if_due, "interval", seconds=TRAINING_CHECK_S, id="retrain", **ONCE)
        add(self._prune, "interval", seconds=settings.prune_period_s, id="prune", **ONCE)
        add(self._keep_forecasts, "interval", seconds=settings.forecast_period_s, id="forecasts", **ONCE)
        add(self._webhooks.run, "interval", seconds=settings.webhook_period_s, id="webhooks", **ONCE)
        add(self._simulations.run_waiting, "interval", seconds=LOOK_EVERY_S, id="simulations", **ONCE)
        add(self.shadowing.save, "interval", seconds=SHADOW_SAVED_S, id="shadow", **ONCE)
        add(self._look_at_health, "interval", seconds=HEALTH_PERIOD_S, id="health", **ONCE)
        self._closing.enter_context(self.stack.health.watching())
        self._closing.enter_context(set_aside())
        # Not kept: it holds a request for each unfinished job.
        work, self._work_to_warm = self._work_to_warm, None
        if work is not None:
            self._closing.callback(self.stack.warming.close)
            self.stack.warming.begin(partial(self._after_first_cycle, work), self.loop.nudge)
        self.loop.start()
        self._closing.callback(self.shadowing.save)
        self._closing.callback(self._simulations.close)
        self._closing.callback(self._scheduler.shutdown, wait=True)
        self._closing.callback(self.loop.close)
        self._scheduler.start()
        self._closing.callback(Listener(self._context.database, self.loop.nudge).close)

    def _after_first_cycle(self, work: Callable[[], None]) -> None:
        """Reading a long history computes for seconds, and would delay the first cycle, with which the lead begins."""
        self.loop.wait_cycle(0, FIRST_CYCLE_S)
        work()

    def close(self) -> None:
        """Stop everything. Attempts run on."""
        # First what could delay the end by seconds: a running forecast, and a webhook receiver that does not answer.
        self._forecasting.close()
        self._webhooks.close()
        self._closing.close()

    # For the API.

    def status(self) -> LoopStatus:
        """The newest cycle, and whether the loop is healthy."""
        at_s = self.loop.last_cycle_at_s
        limit_s = LOOP_STALE_PERIODS * self._context.settings.reschedule_period_s
        healthy = at_s is not None and self._context.clock.now_s() - at_s < limit_s
        return LoopStatus(self.loop.cycle_number, at_s, healthy, duration_s=self.loop.last_cycle_s)

    def cluster(self) -> ClusterNow:
        """The cluster between two cycles."""
        return self.loop.read(_cluster_now)

    def explain(self, job: JobId) -> Explanation | None:
        """None for a job that the loop does not hold."""
        return self.loop.read(lambda engine: engine.explain(job) if job in engine.world.jobs else None)

    def queue(self, wanted: QueueWanted) -> QueueSlice:
        """A part of the queue in the order of the policy."""
        return self.loop.read(lambda engine: engine.queue(wanted))

    def shares(self) -> Shares:
        """What the policy has counted of users and projects."""
        return self.loop.read(lambda engine: engine.shares())

    def snapshot_now(self) -> CycleSnapshot | None:
        """The cluster and its queue as they are; None if that is too much to copy."""

        def look(engine: Engine[Any]) -> CycleSnapshot | None:
            if len(engine.world.jobs) > self._context.settings.forecast_jobs_max:
                return None
            now_s = self._context.clock.now_s()
            return self.recorder.present(engine.world, engine.dump(), self.loop.cycle_number, now_s)

        return self.loop.read(look)

    def predictor_status(self) -> PredictorStatus:
        """As the predictor reports it."""
        return self.stack.predictor.status()

    def contributions(self, version: str, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
        """As :meth:`service.background.model_explanations.Explainer.contributions`."""
        return self._explainer.contributions(version, unit, vector)

    def train(self) -> int:
        """Start a retraining; returns the id of its run. Raises Refused."""
        try:
            return self.trainer.start()
        except TrainingUnderWay as error:
            raise Refused(str(error)) from error

    def promote(self, model: str) -> None:
        """Make a model the champion. Raises Refused."""
        try:
            self.trainer.promote(model)
        except UnknownModel as error:
            raise Refused(str(error)) from error

    # Scheduled work.

    def _keep_forecasts(self) -> None:
        self._keeper.run(self.forecaster, self.forecaster.unfinished)

    def _look_at_health(self) -> None:
        self.stack.health.run(self.loop)

    def _prune(self) -> None:
        files = self._context.executor.attempts
        delete_files = files.prune if files.keeps_files else None
        prune(self._context.database, self._context.settings, self._context.clock.now_s(), delete_files)

    def _count_webhook(self, outcome: str) -> None:
        self._context.metrics.webhook_attempts.labels(outcome).inc()


def _cluster_now(engine: Engine[Any]) -> ClusterNow:
    world = engine.world
    servers = [ServerIndex(index) for index in range(len(world.cluster.servers))]
    usable = [world.usable_gpus(server) for server in servers]
    free = [world.free_gpus(server) for server in servers]
    return ClusterNow(world.cluster, usable, free, world.spares(), world.held_gpus())
