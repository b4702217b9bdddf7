"""The overview of the service: GPUs, queue, scheduling loop, model, and what an operator must look at."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from policies.model.reasons import Reason
from service.wire.times import Time

AttentionKind = Literal[
    "no_leader",
    "loop_stale",
    "migration_pending",
    "queue_paused",
    "servers_down",
    "servers_unhealthy",
    "drift",
    "coverage_low",
    "service_silent",
]


class OverviewGpusDocument(TypedDict):
    """Numbers of GPUs. `total` is the sum of `usable`, `down` and `drained`."""

    total: int
    usable: Annotated[int, Field(description="On servers that take new jobs.")]
    busy: Annotated[int, Field(description="Held by jobs, on servers of every state.")]
    free: Annotated[int | None, Field(description="Usable and not held; null while no service leads.")]
    down: int
    drained: int
    reserved: Annotated[int, Field(description="On servers of a reservation that is active now, held or not.")]


class OverviewQueueDocument(TypedDict):
    """Numbers of unfinished jobs of all users."""

    queued: int
    held: Annotated[int, Field(description="Queued jobs that wait for a release.")]
    reasons: Annotated[dict[Reason, int], Field(description="Queued jobs by the reason of their state.")]
    starting: int
    running: int
    stopping: Annotated[int, Field(description="Jobs that are being preempted or cancelled.")]
    oldest_wait_s: Annotated[
        float | None,
        Field(
            description="Seconds since the submission of the oldest queued job that is not held, waits for no other job and "
            "for no retry; null without one."
        ),
    ]
    oldest_job_id: Annotated[int | None, Field(description="That job; null also if the caller may not see it.")]


class OverviewCycleDocument(TypedDict):
    """The newest cycle. `duration_s` is null while no service leads."""

    number: int
    at: Annotated[Time | None, Field(description="The last look at the queue, with or without changes.")]
    age_s: float | None
    healthy: bool
    duration_s: float | None


class OverviewLeaderDocument(TypedDict):
    """The service that schedules."""

    id: str
    name: str
    version: str
    started_at: Time


class OverviewModelDocument(TypedDict):
    """What predicts new jobs."""

    version: Annotated[str | None, Field(description="null: predictions come from history alone.")]
    trained_at: Time | None
    drifting: bool
    known_jobs: Annotated[int, Field(description="Ended jobs in the history.")]


class AttentionDocument(TypedDict):
    """Something that an operator must look at."""

    kind: AttentionKind
    text: str
    link: Annotated[str, Field(description="The page of the dashboard, relative to its root.")]


class OverviewDocument(TypedDict):
    """The state of the service in numbers."""

    at: Time
    gpus: OverviewGpusDocument
    queue: OverviewQueueDocument
    cycle: OverviewCycleDocument
    leader: Annotated[OverviewLeaderDocument | None, Field(description="null: no service schedules.")]
    model: Annotated[OverviewModelDocument | None, Field(description="null while no service leads.")]
    policy: str
    attention: Annotated[list[AttentionDocument], Field(description="The most urgent first.")]
