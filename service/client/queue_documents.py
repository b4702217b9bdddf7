"""The JSON documents about quotas, pauses and reservations as a client sees them; see :mod:`service.client.documents`."""

from typing import TypedDict


class Quota(TypedDict):
    """What a user or a project may use at a time, and what it uses now."""

    scope: str
    name: str
    gpus_running_max: int | None
    jobs_queued_max: int | None
    gpus_running: int
    jobs: int


class Reservation(TypedDict):
    """Servers set aside for a time."""

    id: int
    servers: list[str]
    starts_at: str
    ends_at: str
    user: str | None
    project: str | None
    preempt: bool
    reason: str
    created_at: str
    active: bool


class Pause(TypedDict):
    """Whose jobs do not start, and why."""

    scope: str
    name: str
    reason: str


class QueueStatus(TypedDict):
    """The queue in numbers, and which parts of it are paused."""

    jobs: int
    gpus_running: int
    pauses: list[Pause]
