"""What the API is given by whoever composes the application, and how routes get at it.

The API knows the database, the store's two inserts and these callables; it never imports an executor, a scheduled task
or the engine's instances.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Depends, Request
from sqlmodel import Session

from policies.model.cluster import Cluster
from policies.model.estimate import Unit
from policies.model.ids import AttemptId, JobId
from policies.model.job import JobSpec
from policies.model.reasons import Explanation
from predictor.explain import Contributions
from predictor.serving import PredictorStatus
from service.api.idempotency import Keys
from service.api.room import Room
from service.config.settings import Settings
from service.db.services import ServiceNow
from service.db.session import Database
from service.engine.events import Fact
from service.forecast.forecast import Forecast
from service.forecast.forecaster import Planned
from service.history.cycles import CycleSnapshot
from service.shadow.live import JobOpinion, ShadowReport


class Refused(Exception):
    """The composed application will not do it in its present state; the message says why, for a person (409)."""


class Submitter(Protocol):
    """The inserts of the store that are not the engine's."""

    def submit(self, session: Session, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
        """New jobs and their SUBMITTED facts, in the caller's transaction."""

    def add_fact(self, session: Session, fact: Fact) -> int:
        """One accepted request, in the caller's transaction; returns its id (``fact.id`` is ignored)."""

    def add_facts(self, session: Session, facts: Sequence[Fact]) -> None:
        """Accepted requests about jobs, in the caller's transaction."""


class ClusterNow(NamedTuple):
    """The cluster as the loop sees it: GPUs by server index. ``usable`` is 0 where a server is down or drained."""

    cluster: Cluster
    usable_gpus: Sequence[int]
    free_gpus: Sequence[int]


class LoopStatus(NamedTuple):
    """Where the scheduling loop stands: its newest cycle, when it last looked (None: never), whether that is recent.

    Of a loop that runs elsewhere (``leads`` is false) the newest cycle in which something happened is known, and whether
    somebody leads.
    """

    cycle: int
    at_s: float | None
    healthy: bool
    leads: bool = True


class LogPart(Protocol):
    """A part of a log: ``cut_bytes`` in front of ``data`` are gone, ``size_bytes`` were written in all so far."""

    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def cut_bytes(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


ReadLogs = Callable[[JobId, int | None, int, int], LogPart]
"""(job, attempt number or None for the newest, offset, most bytes). A negative offset counts from the end. Raises
KeyError where there is no log (not launched yet, or deleted after a while)."""

ProgressSink = Callable[[AttemptId, str, Mapping[str, Any]], bool]
"""(attempt, token, line). False if the line was ignored because it breaks a rule of progress files (too many a second, for
instance). Raises PermissionError where the token does not open that attempt (unknown, ended, or another's)."""


Contribute = Callable[[str, Unit, Sequence[float | None]], Contributions | None]
"""(model version, unit, stored feature vector of this version). None where that model is gone or cannot be explained."""


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """Everything that :func:`service.api.app.create_app` needs.

    The callables may wait for the loop, which in turn writes to the database: the API never calls one inside a writing
    transaction. ``now_s`` is the wall clock in seconds since the Unix epoch. ``nudge`` wakes the loop and returns at once.
    ``explain`` is None for a job that the loop does not hold (ended, or not seen yet). ``train`` starts a retraining and
    returns its run's id, ``promote`` makes a model the champion; both raise :class:`Refused`. ``migrated`` says whether
    the schema is this program's. ``forecast`` raises :class:`~service.forecast.forecast.NoForecast`; it and ``plan`` take
    seconds for a long queue. ``recorded`` are the cycles of which ``snapshot`` has one, newest first;
    ``snapshot_now`` is None for more than ``forecast_jobs_max`` unfinished jobs. ``shadow`` is None
    without a second policy, ``shadow_opinion`` also where that has nothing to say of a job. ``wait_pass`` returns how many
    passes the loop has finished: as soon as they are more than the number given, or after so many seconds. ``metrics`` is
    the text that a scraper reads. ``leads`` says whether the live loop runs here, ``stopping`` whether the service is about
    to end, ``log_holder`` which other service has the log of an attempt (None for the newest; None: no other).
    """

    settings: Settings
    database: Database
    store: Submitter
    token: str
    now_s: Callable[[], float]
    nudge: Callable[[], None]
    layout: Callable[[], Cluster]
    cluster: Callable[[], ClusterNow]
    explain: Callable[[JobId], Explanation | None]
    loop_status: Callable[[], LoopStatus]
    migrated: Callable[[], bool]
    read_logs: ReadLogs
    train: Callable[[], int]
    promote: Callable[[str], None]
    progress_sink: ProgressSink
    forecast: Callable[[], Forecast]
    plan: Callable[[Sequence[JobSpec]], Planned]
    recorded: Callable[[], Sequence[int]]
    snapshot: Callable[[int], CycleSnapshot | None]
    snapshot_now: Callable[[], CycleSnapshot | None]
    shadow: Callable[[], ShadowReport | None]
    shadow_opinion: Callable[[JobId], JobOpinion | None]
    contributions: Contribute
    wait_pass: Callable[[int, float], int]
    predictor_status: Callable[[], PredictorStatus]
    services: Callable[[], Sequence[ServiceNow]]
    leads: Callable[[], bool]
    stopping: Callable[[], bool]
    log_holder: Callable[[JobId, int | None], str | None]
    metrics: Callable[[], bytes]
    room: Room = field(default_factory=Room)


async def _dependencies(request: Request) -> ApiDependencies:
    found = request.app.state.dependencies
    assert isinstance(found, ApiDependencies)
    return found


async def _keys(request: Request) -> Keys:
    found = request.app.state.idempotency_keys
    assert isinstance(found, Keys)
    return found


Deps = Annotated[ApiDependencies, Depends(_dependencies)]
KeyStore = Annotated[Keys, Depends(_keys)]
