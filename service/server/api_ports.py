"""What the API is given: how each of its questions finds whoever can answer it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, ServerIndex
from service.api.deps import ApiDependencies, ClusterNow, LogPart, LoopStatus, Refused
from service.api.problems import no_leader
from service.background.retrain import TrainingUnderWay, UnknownModel
from service.config.settings import Settings
from service.db import migrate, reads
from service.db.models import run_outcomes
from service.db.servers import RememberedCluster
from service.db.services import services, url_of_attempt
from service.db.session import Database
from service.db.store import SqlStore
from service.db.wake import wake_leader
from service.engine.engine import Engine
from service.engine.ports import Clock
from service.executors.local import LocalExecutor
from service.server.leadership import Leadership
from service.server.leading import Leading
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import LoopNow, Readings, exposition, queue_now

ELSEWHERE_S = 0.1
"""How often it is looked whether the loop of another service has passed: nobody tells us."""


@dataclass(frozen=True, slots=True)
class ApiPorts:
    """The parts of a service that its API talks to. ``host`` is its identity, ``stored`` the cluster while another one leads."""

    settings: Settings
    clock: Clock
    database: Database
    host: str
    token: str
    local: LocalExecutor | None
    metrics: Metrics
    stored: RememberedCluster
    leadership: Leadership
    stopping: Callable[[], bool]

    def dependencies(self) -> ApiDependencies:
        """Everything that :func:`service.api.app.create_app` needs."""
        lead = self.lead
        return ApiDependencies(
            settings=self.settings,
            database=self.database,
            store=SqlStore(self.database),
            token=self.token,
            now_s=self.clock.now_s,
            nudge=self._nudge,
            layout=self._layout,
            cluster=lambda: lead().loop.read(_cluster_now),
            explain=lambda job: lead().explain(job),
            loop_status=self._loop_status,
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
            wait_pass=self._wait_pass,
            predictor_status=lambda: lead().predictor.status(),
            metrics=lambda: exposition(self.metrics),
            services=lambda: services(self.database),
            leads=lambda: self.leadership.leading is not None,
            stopping=self.stopping,
            log_holder=lambda job, attempt: url_of_attempt(self.database, self.host, job, attempt),
        )

    def readings(self) -> Readings:
        """Where a scrape looks."""
        return Readings(
            now_s=self.clock.now_s,
            loop=self._loop_now,
            queue=lambda: None if (leading := self.leadership.leading) is None else leading.loop.read(queue_now),
            predictor=lambda: None if (leading := self.leadership.leading) is None else leading.predictor.status(),
            retrainings=lambda: run_outcomes(self.database),
            migrated=self._migrated,
            version=version("sooner"),
        )

    def lead(self) -> Leading:
        """What runs while this service leads. Raises Problem while it does not."""
        leading = self.leadership.leading
        if leading is None:
            raise no_leader()
        return leading

    def _loop_now(self) -> LoopNow:
        leading = self.leadership.leading
        if leading is None:
            return LoopNow(False, None, 0)
        return LoopNow(True, leading.loop.last_pass_at_s, leading.loop.cycle_number)

    def _loop_status(self) -> LoopStatus:
        leading = self.leadership.leading
        if leading is not None:
            return leading.loop_status()
        with self.database.reading() as session:
            newest = next(iter(reads.cycles(session.connection(), None, 1)), None)
        at_s = None if newest is None else newest.at_s
        led = any(service.leads for service in services(self.database))
        return LoopStatus(0 if newest is None else newest.number, at_s, healthy=led, leads=False)

    def _nudge(self) -> None:
        """Whoever leads elsewhere finds the request in the database by itself, sooner where he can be told."""
        leading = self.leadership.leading
        if leading is not None:
            leading.loop.nudge()
        else:
            wake_leader(self.database)

    def _layout(self) -> Cluster:
        leading = self.leadership.leading
        if leading is not None:
            # The cluster is a frozen value: a submission need not wait for a cycle to see it.
            return leading.engine.world.cluster
        return self.stored()

    def _wait_pass(self, seen: int, timeout_s: float) -> int:
        leading = self.leadership.leading
        if leading is not None:
            return leading.loop.wait_pass(seen, timeout_s)
        time.sleep(min(timeout_s, ELSEWHERE_S))
        return seen + 1

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
