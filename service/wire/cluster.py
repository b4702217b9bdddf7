"""The cluster, the queue, cycles and services as the API answers them."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from service.engine.events import ServerEventKind
from service.engine.limits import Scope
from service.wire.times import Time


class ServerDocument(TypedDict):
    """One server."""

    name: str
    state: Literal["up", "drained", "down"]
    gpus: int
    usable_gpus: int
    free_gpus: int
    gpu_type: str
    rack: str
    nic_gbps: float
    intra_gbps: float
    gpu_speed: float
    gpu_memory_gib: float | None
    cpus: int | None
    free_cpus: int | None
    memory_gib: float | None
    free_memory_gib: float | None
    reservation: Annotated[int | None, Field(description="Its current reservation.")]
    drained_by: Annotated[
        list[Literal["operator", "health", "engine"]],
        Field(
            description="What keeps new jobs away: an operator of this service, this service because of signs of a fault (an "
            "operator ends it), an operator of the cluster's engine. Neither side ends the drain of the other."
        ),
    ]
    detail: Annotated[
        str,
        Field(
            description="Why the engine of the cluster reports it as down or drained, or why this service has drained it."
        ),
    ]


class ServerEventDocument(TypedDict):
    """One change of a server. `engine_drained` and `engine_returned` are drains by an operator of the cluster's engine.
    `unhealthy` is a sign of a fault.
    """

    id: int
    at: Time
    server: str
    kind: ServerEventKind
    detail: str
    cycle: int


class ClusterDocument(TypedDict):
    """All servers, and the sums of their GPUs."""

    name: str
    gpus: int
    usable_gpus: int
    free_gpus: int
    servers: list[ServerDocument]
    warnings: Annotated[list[str], Field(description="GPU types for which nothing states a speed, a sentence each.")]


class ReservationDocument(TypedDict):
    """A reservation of servers for a period. Only the owner and operators see owner and reason."""

    id: int
    servers: list[str]
    starts_at: Time
    ends_at: Time
    user: str | None
    project: str | None
    preempt: bool
    reason: str
    created_at: Time
    active: bool


class ReservationsDocument(TypedDict):
    """Current and future reservations by start time."""

    reservations: list[ReservationDocument]


class QuotaDocument(TypedDict):
    """The limits of a user or a project, and the current use."""

    scope: Literal["user", "project"]
    name: str
    gpus_running_max: int | None
    jobs_queued_max: int | None
    gpus_running: int
    jobs: int


class QuotasDocument(TypedDict):
    """All quotas that the caller may see."""

    quotas: list[QuotaDocument]


class PauseDocument(TypedDict):
    """A pause: of the whole queue (``queue``), a user's jobs or a project's."""

    scope: Scope
    name: str
    reason: str


class QueueDocument(TypedDict):
    """The counts of the queue, and its pauses."""

    jobs: int
    gpus_running: int
    pauses: list[PauseDocument]


class ServiceDocument(TypedDict):
    """One service. `condemned`: it was silent for too long and its attempts were declared lost. It returns only after it has
    verified that none of them runs.
    """

    id: str
    name: str
    url: str
    version: str
    role: Literal["leader", "standby"]
    started_at: Time
    seen_at: Time
    silent_s: float
    condemned: bool


class ServicesDocument(TypedDict):
    """All services of this database."""

    services: list[ServiceDocument]


class CycleSummary(TypedDict):
    """The counts of one cycle."""

    number: int
    at: Time
    changes: int
    actions: int
    refusals: int
    wake_at: Time | None
    duration_s: Annotated[dict[str, float], Field(description="Seconds, by phase.")]


class CycleDocument(TypedDict):
    """One cycle. With the policy state of an earlier cycle it can be replayed."""

    number: int
    at: Time
    changes: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    wake_at: Time | None
    duration_s: dict[str, float]
    dump: Annotated[dict[str, Any] | None, Field(description="The policy state after the cycle, if it was stored.")]


class SnapshotsDocument(TypedDict):
    """The cycles that can be replayed, newest first."""

    cycles: list[int]


class CycleSnapshotDocument(TypedDict):
    """One decision and its input (`sooner.cycle/2`), without commands and environments of jobs."""

    schema: str
    cycle: int
    now_s: Annotated[float, Field(description="Seconds since the Unix epoch.")]
    policy: str
    options: dict[str, str]
    cluster: dict[str, Any]
    costs: dict[str, Any]
    servers: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    arrays: Annotated[dict[str, dict[str, Any]], Field(description="The specifications of arrays, by their numbers.")]
    limits: Annotated[list[dict[str, Any]], Field(description="GPU limits and pauses, each with its owner.")]
    windows: Annotated[list[dict[str, Any]], Field(description="Reservations of servers.")]
    dump: Annotated[dict[str, Any], Field(description="The policy state before the decision.")]
    changes: dict[str, Any]
    actions: dict[str, Any]
    wake_at_s: float | None


class HealthDocument(TypedDict):
    """The process responds."""

    status: str


class ProofDocument(TypedDict):
    """The service has the token of its data folder."""

    proof: str


ContainmentKind = Literal["cgroup", "subreaper"]


class ReadinessDocument(TypedDict):
    """Whether the service is ready: its schema is current and, if it leads, its loop has run recently. On a standby,
    `loop_healthy` is true if a service leads, and `cycle` is the newest stored cycle. `containment` is what holds the processes
    of an attempt together on its machine; null if attempts are no processes.
    """

    ready: bool
    role: Literal["leader", "standby"]
    migrated: bool
    loop_healthy: bool
    cycle: int
    cycle_at: Time | None
    containment: ContainmentKind | None
