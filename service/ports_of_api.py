"""What the API is given: how each of its questions finds whoever can answer it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from policies.model.ids import AttemptId, JobId, ServerIndex
from service.api.deps import ApiDependencies, ClusterNow, LogPart, Refused
from service.db import migrate
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.engine import Engine
from service.engine.ports import Clock
from service.executors.local import LocalExecutor
from service.leading import Leading
from service.settings import Settings
from service.tasks.model_records import run_outcomes
from service.tasks.retrain import TrainingUnderWay, UnknownModel
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import LoopNow, Readings, exposition, queue_now


@dataclass(frozen=True, slots=True)
class ApiPorts:
    """The parts of a service that its API talks to. ``lead`` is what runs while this service leads."""

    settings: Settings
    clock: Clock
    database: Database
    token: str
    local: LocalExecutor | None
    metrics: Metrics
    lead: Callable[[], Leading]

    def dependencies(self) -> ApiDependencies:
        """Everything that :func:`service.api.app.create_app` needs."""
        lead = self.lead
        return ApiDependencies(
            settings=self.settings,
            database=self.database,
            store=SqlStore(self.database),
            token=self.token,
            now_s=self.clock.now_s,
            nudge=lambda: lead().loop.nudge(),
            # The cluster is a frozen value: a submission need not wait for a cycle to see it.
            layout=lambda: lead().engine.world.cluster,
            cluster=lambda: lead().loop.read(_cluster_now),
            explain=lambda job: lead().explain(job),
            loop_status=lambda: lead().loop_status(),
            migrated=self._migrated,
            read_logs=self._read_logs,
            train=self._train,
            promote=self._promote,
            progress_sink=self._accept_progress,
            forecast=lambda: lead().forecaster.current(),
            plan=lambda specs: lead().forecaster.plan(specs),
            recorded=lambda: lead().recorder.cycles(),
            snapshot=lambda cycle: lead().recorder.snapshot(cycle),
            snapshot_now=lambda: lead().snapshot_now(),
            shadow=lambda: lead().shadowing.report(),
            shadow_opinion=lambda job: lead().shadowing.opinion(job),
            contributions=lambda version, unit, vector: lead().explainer.contributions(version, unit, vector),
            wait_pass=lambda seen, timeout_s: lead().loop.wait_pass(seen, timeout_s),
            predictor_status=lambda: lead().predictor.status(),
            metrics=lambda: exposition(self.metrics),
        )

    def readings(self) -> Readings:
        """Where a scrape looks."""
        lead = self.lead
        return Readings(
            now_s=self.clock.now_s,
            loop=lambda: LoopNow(True, lead().loop.last_pass_at_s, lead().loop.cycle_number),
            queue=lambda: lead().loop.read(queue_now),
            predictor=lambda: lead().predictor.status(),
            retrainings=lambda: run_outcomes(self.database),
            migrated=self._migrated,
            version=version("sooner"),
        )

    def _migrated(self) -> bool:
        with self.database.reading() as session:
            return migrate.state_of(session.connection()) is migrate.SchemaState.CURRENT

    def _read_logs(self, job: JobId, attempt: int | None, offset: int, limit: int) -> LogPart:
        if self.local is None:
            raise KeyError(job)
        return self.local.read_logs(job, attempt, offset, limit)

    def _train(self) -> int:
        try:
            return self.lead().trainer.start()
        except TrainingUnderWay as error:
            raise Refused(str(error)) from error

    def _promote(self, model: str) -> None:
        try:
            self.lead().trainer.promote(model)
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
