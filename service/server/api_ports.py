"""Implementations of the ports in :mod:`service.api.deps`: the scheduler here or elsewhere, the services, this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from policies.model.cluster import Cluster
from policies.model.ids import JobId
from service.api.deps import LoopStatus
from service.db import migrate, reads
from service.db.models import run_outcomes
from service.db.notifications import notify_leader
from service.db.servers import CachedCluster
from service.db.services import ServiceNow, services, url_of_attempt
from service.db.session import Database
from service.engine.ports import Clock
from service.server.leadership import Leadership
from service.server.leading import Leading
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import LoopNow, Readings, exposition, queue_now
from service.wire.cluster import ContainmentKind

ELSEWHERE_S = 0.1
"""Pause before a reader looks again for the effect of a cycle of another service."""


@dataclass(frozen=True, slots=True)
class ServiceScheduler:
    """Implements :class:`service.api.deps.Scheduler`. ``stored``: the cluster while another service leads."""

    database: Database
    leadership: Leadership
    stored: CachedCluster

    def leader(self) -> Leading | None:
        """The leader in this process; None on a standby service."""
        return self.leadership.leading

    def status(self) -> LoopStatus:
        """The status of the loop in this process; on a standby service that of the leader, from the database."""
        leading = self.leadership.leading
        if leading is not None:
            return leading.status()
        with self.database.reading() as session:
            newest = next(iter(reads.cycles(session.connection(), None, 1)), None)
        at_s = None if newest is None else newest.at_s
        led = any(service.leads for service in services(self.database))
        return LoopStatus(0 if newest is None else newest.number, at_s, healthy=led, leads=False)

    def nudge(self) -> None:
        """Wake the loop here, or another service's through the database. A loop that is not woken polls for requests."""
        leading = self.leadership.leading
        if leading is not None:
            leading.loop.nudge()
        else:
            notify_leader(self.database)

    def layout(self) -> Cluster:
        """The cluster's description: a frozen value, so a submission does not wait for a cycle."""
        leading = self.leadership.leading
        return self.stored() if leading is None else leading.stack.engine.world.cluster

    def wait_cycle(self, seen: int, timeout_s: float) -> int:
        """Wait for a cycle of the loop in this process. On a standby service, sleep for a short time."""
        leading = self.leadership.leading
        if leading is not None:
            return leading.loop.wait_cycle(seen, timeout_s)
        time.sleep(min(timeout_s, ELSEWHERE_S))
        return seen + 1


@dataclass(frozen=True, slots=True)
class ServiceFleet:
    """Implements :class:`service.api.deps.Fleet`. ``host`` is the id of this service."""

    database: Database
    host: str

    def services(self) -> Sequence[ServiceNow]:
        """All services of the database."""
        return services(self.database)

    def log_holder(self, job: JobId, attempt: int) -> str | None:
        """The URL of the other service that ran the attempt; None if there is none."""
        return url_of_attempt(self.database, self.host, job, attempt)


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """Implements :class:`service.api.deps.Process`."""

    database: Database
    metrics: Metrics
    is_stopping: Callable[[], bool]
    containment: ContainmentKind | None

    def is_migrated(self) -> bool:
        """Whether the database has this program's schema."""
        with self.database.reading() as session:
            return migrate.state_of(session.connection()) is migrate.SchemaState.CURRENT

    def exposition(self) -> bytes:
        """The metrics as text."""
        return exposition(self.metrics)


def readings(clock: Clock, scheduler: ServiceScheduler, process: ServiceProcess) -> Readings:
    """The sources of a scrape of the metrics."""
    leader = scheduler.leader

    def loop_now() -> LoopNow:
        leading = leader()
        if leading is None:
            return LoopNow(False, None, 0)
        return LoopNow(True, leading.loop.last_cycle_at_s, leading.loop.cycle_number)

    return Readings(
        now_s=clock.now_s,
        loop=loop_now,
        queue=lambda: None if (leading := leader()) is None else leading.loop.read(queue_now),
        predictor=lambda: None if (leading := leader()) is None else leading.predictor_status(),
        retrainings=lambda: run_outcomes(process.database),
        migrated=process.is_migrated,
        version=version("sooner"),
    )
