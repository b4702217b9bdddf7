"""The overview: one reading of the whole service, which all callers share, and its document for one caller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from policies.lifecycle import JobState
from policies.model.cluster import Cluster
from policies.model.reasons import Reason
from predictor.head_state import COVERAGE_MIN
from predictor.serving import PredictorStatus
from service.api.deps import ApiDependencies, ClusterNow, LoopStatus
from service.api.documents import document, instant, instant_or_none
from service.api.limit_documents import concerns
from service.db import overview
from service.db.limits import StoredLimit, stored_limits
from service.db.overview import UnfinishedJobs
from service.db.reservations import open_reservations
from service.db.servers import NOT_LISTED
from service.db.services import ServiceNow
from service.domain.access import Identity
from service.domain.duration import words_of
from service.wire.overview import (
    AttentionDocument,
    AttentionKind,
    OverviewCycleDocument,
    OverviewDocument,
    OverviewGpusDocument,
    OverviewLeaderDocument,
    OverviewModelDocument,
    OverviewQueueDocument,
)

KEPT_S: Final = 1.0
"""Age up to which a reading is given while no cycle has run since."""

KEPT_RATIO: Final = 20.0
"""A reading is given for this many times the CPU time that it took, whatever has happened since: so readings take at most a
twentieth of a core. Its waits, such as for the end of a cycle, cost nothing."""

NAMES_MAX: Final = 5
"""Names in one sentence. The page that it links to shows all."""


class ServerTrouble(NamedTuple):
    """A server that takes no new jobs. ``listed``: whether the cluster still has it."""

    name: str
    gpus: int
    down: bool
    unhealthy: str
    listed: bool


class Reading(NamedTuple):
    """The state of the whole service at one instant. ``cluster`` and ``predictor`` are None while no service leads."""

    at_s: float
    loop: LoopStatus
    migrated: bool
    layout: Cluster
    cluster: ClusterNow | None
    predictor: PredictorStatus | None
    trained_at_s: float | None
    jobs: UnfinishedJobs
    reserved_gpus: int
    troubled: Sequence[ServerTrouble]
    limits: Sequence[StoredLimit]
    services: Sequence[ServiceNow]


def read(dependencies: ApiDependencies) -> Reading:
    """A new reading. O(servers) besides one pass of the database over the unfinished jobs. May wait for a cycle."""
    leader, layout = dependencies.scheduler.leader(), dependencies.scheduler.layout()
    cluster = leader.cluster() if leader is not None else None
    predictor = leader.predictor_status() if leader is not None else None
    services, migrated = dependencies.fleet.services(), dependencies.process.is_migrated()
    at_s = dependencies.now_s()
    with dependencies.reading() as connection:
        active = [each.window for each in open_reservations(connection, at_s) if each.window.active(at_s)]
        model = predictor.model_version if predictor is not None else ""
        return Reading(
            at_s,
            dependencies.scheduler.status(),
            migrated,
            layout,
            cluster,
            predictor,
            overview.trained_at_s(connection, model) if model else None,
            overview.unfinished(connection),
            sum(layout.servers[server].gpus for server in {server for window in active for server in window.servers}),
            [
                ServerTrouble(
                    row.name,
                    layout.servers[row.position].gpus,
                    row.down,
                    row.health_reason if row.drained else "",
                    row.detail != NOT_LISTED,
                )
                for row in overview.troubled_servers(connection)
                # A server that another service has just added.
                if row.position < len(layout.servers)
            ],
            stored_limits(connection),
            services,
        )


class Overviews:
    """The newest reading of one application. Only one thread reads at a time; meanwhile the others get the last reading."""

    def __init__(
        self,
        read: Callable[[], Reading],
        monotonic_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._read = read
        self._monotonic_s = monotonic_s
        self._cpu_s = cpu_s
        self._newest: Reading | None = None
        self._fresh_until_s = self._kept_until_s = 0.0
        self._reading = threading.Lock()

    def now(self, cycle: int) -> Reading:
        """A reading since the end of that cycle, or one that is new enough. Raises what the ports raise."""
        if (found := self._kept(cycle)) is not None:
            return found
        last = self._newest
        if not self._reading.acquire(blocking=last is None):
            assert last is not None
            return last
        try:
            # Another thread may have read while this one waited.
            if (found := self._kept(cycle)) is not None:
                return found
            before_s = self._cpu_s()
            found = self._newest = self._read()
            ended_s = self._monotonic_s()
            self._kept_until_s = ended_s + KEPT_RATIO * (self._cpu_s() - before_s)
            self._fresh_until_s = ended_s + KEPT_S
            return found
        except BaseException:
            self._newest = None
            raise
        finally:
            self._reading.release()

    def _kept(self, cycle: int) -> Reading | None:
        found, now_s = self._newest, self._monotonic_s()
        if found is None or now_s < self._kept_until_s:
            return found
        return found if found.loop.cycle == cycle and now_s < self._fresh_until_s else None


def overview_document(reading: Reading, policy: str, caller: Identity) -> OverviewDocument:
    """What this caller may see of a reading."""
    return OverviewDocument(
        at=instant(reading.at_s),
        gpus=_gpus(reading),
        queue=_queue(reading, caller),
        cycle=_cycle(reading),
        leader=next((_leader(service) for service in reading.services if service.leads), None),
        model=_model(reading),
        policy=policy,
        attention=[
            AttentionDocument(kind=kind, text=text, link=link) for kind, text, link in _attention(reading, caller)
        ],
    )


def _gpus(reading: Reading) -> OverviewGpusDocument:
    total = reading.layout.gpus
    down = sum(server.gpus for server in reading.troubled if server.down)
    drained = sum(server.gpus for server in reading.troubled if not server.down)
    now = reading.cluster
    return OverviewGpusDocument(
        total=total,
        usable=total - down - drained,
        busy=reading.jobs.gpus_held if now is None else now.held_gpus,
        free=None if now is None else sum(now.free_gpus),
        down=down,
        drained=drained,
        reserved=reading.reserved_gpus,
    )


def _queue(reading: Reading, caller: Identity) -> OverviewQueueDocument:
    states, oldest = reading.jobs.states, reading.jobs.oldest
    seen = oldest is not None and caller.sees(oldest.project, oldest.user)
    return OverviewQueueDocument(
        queued=states.get(JobState.QUEUED, 0),
        held=reading.jobs.reasons.get(Reason.HELD, 0),
        reasons=dict(reading.jobs.reasons),
        starting=states.get(JobState.STARTING, 0),
        running=states.get(JobState.RUNNING, 0),
        stopping=states.get(JobState.PREEMPTING, 0) + states.get(JobState.CANCELLING, 0),
        oldest_wait_s=None if oldest is None else max(0.0, reading.at_s - oldest.submitted_at_s),
        oldest_job_id=oldest.id if oldest is not None and seen else None,
    )


def _cycle(reading: Reading) -> OverviewCycleDocument:
    loop = reading.loop
    return OverviewCycleDocument(
        number=loop.cycle,
        at=instant_or_none(loop.at_s),
        age_s=None if loop.at_s is None else max(0.0, reading.at_s - loop.at_s),
        healthy=loop.healthy,
        duration_s=loop.duration_s,
    )


def _leader(service: ServiceNow) -> OverviewLeaderDocument:
    return document(OverviewLeaderDocument, service.registered, service)


def _model(reading: Reading) -> OverviewModelDocument | None:
    status = reading.predictor
    if status is None:
        return None
    return OverviewModelDocument(
        version=status.model_version or None,
        trained_at=instant_or_none(reading.trained_at_s),
        drifting=any(status.drifting.values()),
        known_jobs=max(status.known_jobs.values(), default=0),
    )


def _attention(reading: Reading, caller: Identity) -> Iterator[tuple[AttentionKind, str, str]]:
    """Kind, sentence and page; the most urgent first."""
    yield from _loop_attention(reading)
    if not reading.migrated:
        yield "migration_pending", "The database needs a migration: run `sooner db upgrade`.", "admin"
    down = [server.name for server in reading.troubled if server.down and server.listed]
    if down:
        yield "servers_down", f"{_servers(down)} down: {_names(down)}.", "cluster"
    unhealthy = [server for server in reading.troubled if server.unhealthy and not server.down]
    if unhealthy:
        names = [f"{server.name} ({server.unhealthy})" for server in unhealthy]
        yield "servers_unhealthy", f"{_servers(names)} drained for signs of a fault: {_names(names)}.", "cluster"
    for stored in reading.limits:
        if stored.limit.paused and concerns(caller, stored.owner):
            reason = f": {stored.limit.pause_reason.rstrip('.')}" if stored.limit.pause_reason else ""
            yield "queue_paused", f"{stored.owner.title} is paused{reason}.", "queue"
    yield from _prediction_attention(reading)
    silent = [service.registered.name for service in reading.services if service.condemned]
    if silent:
        verb = "service was" if len(silent) == 1 else "services were"
        text = f"{len(silent)} {verb} silent for too long; their attempts count as lost: {_names(silent)}."
        yield "service_silent", text, "admin"


def _loop_attention(reading: Reading) -> Iterator[tuple[AttentionKind, str, str]]:
    loop = reading.loop
    if not loop.leads:
        if not loop.healthy:
            yield "no_leader", "No service leads: no job starts and no server is watched.", "admin"
    elif not loop.healthy:
        since = "has run yet" if loop.at_s is None else f"has ended for {words_of(max(0.0, reading.at_s - loop.at_s))}"
        yield "loop_stale", f"The scheduling loop is stale: no cycle {since}.", "admin"


def _prediction_attention(reading: Reading) -> Iterator[tuple[AttentionKind, str, str]]:
    status = reading.predictor
    if status is None:
        return
    for unit, buckets in status.buckets.items():
        for bucket in buckets:
            if bucket.coverage is not None and bucket.coverage < COVERAGE_MIN:
                text = (
                    f"{bucket.coverage:.0%} of the newest jobs with {bucket.bucket} past runs ended inside their 80% interval "
                    f"({unit.value}); {COVERAGE_MIN:.0%} is the least."
                )
                yield "coverage_low", text, "predictions"
        if status.drifting[unit]:
            yield (
                "drift",
                f"The errors of the predictions ({unit.value}) have drifted from those of the past.",
                "predictions",
            )


def _servers(names: Sequence[str]) -> str:
    return "1 server is" if len(names) == 1 else f"{len(names)} servers are"


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
