"""Users, keys, the audit log, usage and webhooks as the API answers them."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from service.domain.access import Role
from service.wire.times import Day, Time


class KeyDocument(TypedDict):
    """An API key, without its secret."""

    id: str
    user: str
    role: Role
    projects: Annotated[list[str] | None, Field(description="null: all of its user's.")]
    note: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Annotated[Time | None, Field(description="To the minute.")]


class NewKeyDocument(KeyDocument):
    """A key that has just been made."""

    key: Annotated[
        str | None, Field(description="The key itself, shown this once; null where the request was repeated.")
    ]


class UserDocument(TypedDict):
    """A user: a person or program with API keys."""

    name: str
    projects: list[str]
    created_at: Time
    disabled_at: Time | None


class ProjectDocument(TypedDict):
    """A project with its members."""

    name: str
    members: list[str]


class MembershipDocument(TypedDict):
    """Whether a user is a member of a project from now on."""

    project: str
    user: str
    member: bool


class IdentityDocument(TypedDict):
    """The identity of the caller."""

    user: Annotated[str | None, Field(description="null for the local token, which has no name.")]
    role: Role
    projects: Annotated[list[str] | None, Field(description="Those whose jobs the caller sees; null: all.")]
    key_id: Annotated[str | None, Field(description="The public part of the caller's key; null for the local token.")]
    expires_at: Annotated[Time | None, Field(description="When the key ends; null for the local token.")]


class AuditDocument(TypedDict):
    """One change."""

    id: int
    at: Time
    user: Annotated[str | None, Field(description="null: the local token, or a command on the machine itself.")]
    role: Role
    key_id: str | None
    address: Annotated[str | None, Field(description="From where; null: a command on the machine itself.")]
    request_id: Annotated[str, Field(description="The answer's header X-Request-Id.")]
    action: Annotated[str, Field(description="Method and route.")]
    target: str
    outcome: Annotated[
        Literal["done", "asked", "refused"],
        Field(
            description="done: written in the transaction of the change. asked: written before an action outside the database. "
            "refused: the caller may not do it."
        ),
    ]
    status: Annotated[int, Field(description="HTTP status of the answer; 0 where there was none yet.")]
    detail: dict[str, Any]


class UsageRowDocument(TypedDict):
    """The sums of one group; what was not grouped by is null."""

    day: Annotated[Day | None, Field(description="UTC.")]
    user: Annotated[str | None, Field(description="Empty for jobs without a user.")]
    project: Annotated[str | None, Field(description="Empty for jobs without a project.")]
    held_gpu_h: Annotated[
        float, Field(description="GPU-hours held, from the decision to start until the GPUs were free again.")
    ]
    useful_gpu_h: Annotated[float, Field(description="Of these, the hours that moved jobs on for good.")]
    wasted_gpu_h: Annotated[
        float, Field(description="The others: launching, restarting, work that was lost in a stop or a crash.")
    ]
    jobs: Annotated[int, Field(description="Jobs that ended.")]
    attempts: Annotated[int, Field(description="Attempts that ended.")]
    preemptions: Annotated[int, Field(description="Attempts that were preempted.")]


class UsageDocument(TypedDict):
    """What was used of the GPUs on the days from ``first_day`` to ``last_day``, both included."""

    first_day: Day
    last_day: Day
    at: Annotated[Time, Field(description="Attempts that still run count until then.")]
    group: list[str]
    rows: list[UsageRowDocument]


class WebhookDocument(TypedDict):
    """A webhook, without its secret."""

    id: int
    url: str
    events: list[str]
    owner: Annotated[str | None, Field(description="The user who added it; null: the token in the data folder.")]
    user: Annotated[str | None, Field(description="Only jobs of this user; null: of all users.")]
    project: Annotated[str | None, Field(description="Only jobs of this project; null: of all.")]
    created_at: Time


class NewWebhookDocument(WebhookDocument):
    """A webhook that has just been added."""

    secret: Annotated[str | None, Field(description="Shown this once; null where the request is repeated.")]


class DeliveryDocument(TypedDict):
    """The delivery of one event to a webhook."""

    id: int
    event: str
    event_id: Annotated[str | None, Field(description="The 'id' in the body that is sent; null for a test.")]
    job_id: int | None
    state: Literal["pending", "delivered", "given_up"]
    attempts: int
    status: Annotated[
        int | None, Field(description="The HTTP status of the newest attempt; null where no answer came.")
    ]
    error: Annotated[str | None, Field(description="Why the newest attempt failed.")]
    created_at: Time
    next_at: Annotated[Time | None, Field(description="When it is tried next; null once it has ended.")]
    ended_at: Time | None
