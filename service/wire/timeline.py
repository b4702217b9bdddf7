"""Which attempts held which GPUs over time, and which do now. Tables are columns, so that 20,000 bars are a small document."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import AttemptState
from policies.model.reasons import Reason
from service.wire.times import Time

ServerState = Literal["up", "drained", "down"]

Seconds = Annotated[float, Field(description="Seconds since the Unix epoch.")]


class TimelineServerDocument(TypedDict):
    """One server and its present state."""

    name: str
    rack: str
    gpus: int
    gpu_type: str
    state: ServerState
    reservation: Annotated[int | None, Field(description="Its current reservation.")]


class TimelineReservationDocument(TypedDict):
    """A reservation that overlaps the period."""

    id: int
    starts_s: Seconds
    ends_s: Seconds
    servers: Annotated[list[int], Field(description="Positions in `servers`.")]


class TimelineAttemptsDocument(TypedDict):
    """Attempts as columns. Of a job that the caller may not see, everything but the id and the times is null."""

    id: Annotated[list[str], Field(description="An attempt of a hidden job has an opaque one, equal in all answers.")]
    job: list[int | None]
    name: list[str | None]
    user: list[str | None]
    project: list[str | None]
    state: list[AttemptState | None]
    reason: list[Reason | None]
    starts_s: Annotated[list[float], Field(description="GPUs are held from then on.")]
    stop_requested_s: list[float | None]
    ends_s: Annotated[list[float | None], Field(description="null: the attempt is open.")]
    p10_s: Annotated[
        list[float | None],
        Field(
            description="10% point of the job's end, of its newest forecast record. null for ended and hidden attempts."
        ),
    ]
    p50_s: list[float | None]
    p90_s: list[float | None]


class TimelineBarsDocument(TypedDict):
    """Adjacent GPUs of one server that an attempt holds, as columns."""

    attempt: Annotated[list[int], Field(description="Positions in `attempts`.")]
    server: Annotated[list[int], Field(description="Positions in `servers`.")]
    first_gpu: list[int]
    gpus: list[int]


class TimelineMergedDocument(TypedDict):
    """Short attempts on the same GPUs that began within the same `resolution_s`, as columns."""

    server: list[int]
    first_gpu: list[int]
    gpus: list[int]
    starts_s: list[float]
    ends_s: list[float]
    attempts: Annotated[list[int], Field(description="How many each one stands for.")]


class TimelineDocument(TypedDict):
    """The attempts that held GPUs in a period, by their start. Instants in columns are seconds since the Unix epoch."""

    at: Time
    since: Time
    until: Time
    mark: Annotated[
        str,
        Field(
            description="The changes that this answer holds. Give it as `changed_since` to get the later ones. All pages have "
            "that of the first one."
        ),
    ]
    increment: Annotated[
        bool,
        Field(
            description="Whether these are only the attempts that changed after `changed_since`: each replaces the one of its "
            "id, also one that has ended before `since`. false: everything in the period."
        ),
    ]
    servers: list[TimelineServerDocument]
    reservations: list[TimelineReservationDocument]
    attempts: TimelineAttemptsDocument
    bars: TimelineBarsDocument
    left_out: Annotated[int, Field(description="Attempts shorter than `resolution_s`, which only `merged` shows.")]
    merged: TimelineMergedDocument
    next: Annotated[str | None, Field(description="Give it as `after` to get the next page; null on the last one.")]


class GpuDocument(TypedDict):
    """One GPU. Of a job that the caller may not see, only the state is shown."""

    index: int
    state: Annotated[
        Literal["held", "free", "unusable"],
        Field(description="unusable: no attempt holds it, and its server is down or drained."),
    ]
    attempt: str | None
    job_id: int | None
    stage: Annotated[
        int | None, Field(description="The pipeline stage that it computes; null for a job without stages.")
    ]
    replica: int | None


class GpuServerDocument(TypedDict):
    """The GPUs of one server."""

    server: str
    rack: str
    gpu_type: str
    state: ServerState
    reservation: Annotated[int | None, Field(description="Its current reservation.")]
    gpus: list[GpuDocument]


class GpusDocument(TypedDict):
    """Which attempt holds which GPU."""

    at: Time
    servers: list[GpuServerDocument]
