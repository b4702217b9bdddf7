"""The ports of the API: what it needs of the service around it, and how routes get it.

The API knows the database, the inserts of the store and these protocols. It never imports an executor, a background task or
an instance of the engine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, NamedTuple, Protocol

from fastapi import Depends, Request
from sqlalchemy import Connection
from sqlmodel import Session

from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.cluster import Cluster
from policies.model.estimate import Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Explanation
from policies.model.resources import Amounts
from policies.model.shares import Shares
from predictor.explain import Contributions
from predictor.serving import PredictorStatus
from service.api.capacity import QueueCapacity
from service.api.idempotency import Keys
from service.api.problems import no_leader
from service.config.settings import Settings
from service.db.services import ServiceNow
from service.db.session import Database
from service.engine.events import EngineRequest
from service.engine.ports import AttemptLogs, ProgressInput
from service.forecast.forecast import Forecast
from service.forecast.forecaster import Planned
from service.history.cycles import CycleSnapshot
from service.shadow.live import JobOpinion, ShadowReport
from service.wire.cluster import ContainmentKind


class Refused(Exception):
    """The present state does not allow it; the message says why, for a person (409)."""


class ClusterNow(NamedTuple):
    """The cluster as the loop sees it: GPUs by server index. ``usable`` is 0 for a server that is down or drained.

    ``spare``: CPUs and memory that no job holds, of the servers that state any. ``held_gpus``: by all jobs, on servers of every
    state.
    """

    cluster: Cluster
    usable_gpus: Sequence[int]
    free_gpus: Sequence[int]
    spare: Mapping[ServerIndex, Amounts] = MappingProxyType({})
    held_gpus: int = 0


class LoopStatus(NamedTuple):
    """The newest cycle, the time of the last look (None: never), and whether the loop is healthy.

    If the loop runs elsewhere (``leads`` is false), ``cycle`` is the newest one on record, ``healthy`` says whether any
    service leads, and ``duration_s`` of the cycle is not known.
    """

    cycle: int
    at_s: float | None
    healthy: bool
    leads: bool = True
    duration_s: float | None = None


class Forecasts(Protocol):
    """Sampled futures of the queue. To make one takes seconds for a long queue."""

    def current(self) -> Forecast:
        """Of all unfinished jobs. Raises :class:`~service.forecast.forecast.NoForecast`."""

    def kept(self) -> Forecast | None:
        """The last forecast, of whichever cycle; None without one. Makes none."""

    def plan(self, specs: Sequence[JobSpec], /) -> Planned:
        """Of these jobs, if they were submitted now."""


class CycleRecords(Protocol):
    """The newest cycles with all that their decisions rest on."""

    def cycles(self) -> Sequence[int]:
        """The numbers that :meth:`snapshot` knows, newest first."""

    def snapshot(self, cycle: int, /) -> CycleSnapshot | None:
        """None if nothing is kept of the cycle."""


class ShadowReports(Protocol):
    """What the shadow policy would have done."""

    def report(self) -> ShadowReport | None:
        """None without a shadow policy."""

    def opinion(self, job: JobId, /) -> JobOpinion | None:
        """None without a shadow policy, and if the shadow has nothing to say of the job."""


class Leader(Protocol):
    """What only the leader can answer. May wait for a cycle: never call it inside a writing transaction."""

    @property
    def forecaster(self) -> Forecasts: ...
    @property
    def recorder(self) -> CycleRecords: ...
    @property
    def shadowing(self) -> ShadowReports: ...

    def cluster(self) -> ClusterNow:
        """The cluster between two cycles."""

    def explain(self, job: JobId) -> Explanation | None:
        """None for a job that the loop does not hold (ended, or not admitted yet)."""

    def queue(self, wanted: QueueWanted) -> QueueSlice:
        """A part of the queue in the order of the policy, between two cycles."""

    def shares(self) -> Shares:
        """What the policy has counted of users and projects, between two cycles."""

    def snapshot_now(self) -> CycleSnapshot | None:
        """The cluster and its queue; None for more than ``forecast_jobs_max`` unfinished jobs."""

    def predictor_status(self) -> PredictorStatus:
        """What predicts now."""

    def contributions(self, version: str, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
        """What moved the model of a prediction; None if the model is gone or cannot be explained."""

    def train(self) -> int:
        """Start a retraining; returns the id of its run. Raises :class:`Refused`."""

    def promote(self, model: str) -> None:
        """Make a model the champion. Raises :class:`Refused`."""


class Scheduler(Protocol):
    """The scheduling loop of this database, which may run in another service."""

    def leader(self) -> Leader | None:
        """None while this service does not lead."""

    def status(self) -> LoopStatus:
        """Where the loop stands."""

    def nudge(self) -> None:
        """Wake the loop; returns at once."""

    def layout(self) -> Cluster:
        """All servers, whatever their state."""

    def wait_cycle(self, seen: int, timeout_s: float) -> int:
        """The number of finished cycles, once it exceeds ``seen`` or after ``timeout_s``."""


class Fleet(Protocol):
    """The services of this database."""

    @property
    def host(self) -> str:
        """The id of this service."""

    def services(self) -> Sequence[ServiceNow]:
        """All of them."""

    def log_holder(self, job: JobId, attempt: int) -> str | None:
        """The URL of the other service that has the log of the attempt; None if no other has it."""


class Process(Protocol):
    """The process that serves the API."""

    @property
    def containment(self) -> ContainmentKind | None:
        """What holds the processes of its attempts together; None if its attempts are no processes."""

    def is_stopping(self) -> bool:
        """Whether it is about to end."""

    def is_migrated(self) -> bool:
        """Whether the database has this program's schema."""

    def exposition(self) -> bytes:
        """The metrics as text."""


class Attempts(AttemptLogs, ProgressInput, Protocol):
    """The attempts of this service."""


class Submitter(Protocol):
    """The inserts of the store that are not the engine's. All run in the caller's transaction."""

    def submit(
        self, session: Session, specs: Sequence[JobSpec], now_s: float, sizes: Sequence[int] | None = None
    ) -> list[JobId]:
        """Insert new jobs and their SUBMITTED requests. ``sizes``: of each submission; None: all are one submission's."""

    def add_request(self, session: Session, request: EngineRequest) -> int:
        """Insert one accepted request; returns its id (``request.id`` is ignored)."""

    def add_requests(self, session: Session, requests: Sequence[EngineRequest]) -> None:
        """Insert accepted requests about jobs."""


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """Everything that :func:`service.api.app.create_app` needs. ``now_s``: seconds since the Unix epoch.

    ``machine``: the only names that a server can have, those of this machine; None where servers are elsewhere or pretended.
    """

    settings: Settings
    database: Database
    store: Submitter
    token: str
    now_s: Callable[[], float]
    scheduler: Scheduler
    attempts: Attempts
    fleet: Fleet
    process: Process
    machine: frozenset[str] | None = None
    capacity: QueueCapacity = field(default_factory=QueueCapacity)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a read transaction. Raises what :meth:`service.db.session.Database.reading` raises."""
        with self.database.reading() as session:
            yield session.connection()

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """A connection for single queries (:meth:`service.db.session.Database.looking`), which is quicker."""
        with self.database.looking() as connection:
            yield connection


def dependencies_of(request: Request) -> ApiDependencies:
    """The dependencies of the application that serves the request."""
    found = request.app.state.dependencies
    assert isinstance(found, ApiDependencies)
    return found


async def _dependencies(request: Request) -> ApiDependencies:
    return dependencies_of(request)


def keys_of(request: Request) -> Keys:
    """The idempotency keys of the application that serves the request."""
    found = request.app.state.idempotency_keys
    assert isinstance(found, Keys)
    return found


async def _keys(request: Request) -> Keys:
    return keys_of(request)


async def the_leader(request: Request) -> Leader:
    """The leader, if it is this service. Raises Problem (503) if not."""
    leader = dependencies_of(request).scheduler.leader()
    if leader is None:
        raise no_leader()
    return leader


Deps = Annotated[ApiDependencies, Depends(_dependencies)]
KeyStore = Annotated[Keys, Depends(_keys)]
ToLeader = Annotated[Leader, Depends(the_leader)]
"""A route with a parameter of this type needs the leader: any other service forwards its requests to the leader."""
