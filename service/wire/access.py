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
    projects: Annotated[list[str] | None, Field(description="null: all projects of its user.")]
    note: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Annotated[Time | None, Field(description="With a resolution of one minute.")]


class NewKeyDocument(KeyDocument):
    """A new API key."""

    key: Annotated[
        str | None,
        Field(
            description="The key itself; null in the response to a repeated request. It is not stored and cannot be shown again."
        ),
    ]


class SignInCodeDocument(TypedDict):
    """A code that signs one browser in as the caller, once."""

    code: Annotated[str | None, Field(description="null in the response to a repeated request.")]
    path: Annotated[str | None, Field(description="The page that takes it, relative to the root of the service.")]
    expires_at: Time


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
    """Whether a user is now a member of a project."""

    project: str
    user: str
    member: bool


class IdentityDocument(TypedDict):
    """The identity of the caller."""

    user: Annotated[str | None, Field(description="null for the local token, which has no name.")]
    role: Role
    projects: Annotated[list[str] | None, Field(description="Projects whose jobs the caller may see; null: all.")]
    key_id: Annotated[str | None, Field(description="The public part of the caller's key; null for the local token.")]
    expires_at: Annotated[Time | None, Field(description="When the key expires; null for the local token.")]


class AuditDocument(TypedDict):
    """One change."""

    id: int
    at: Time
    user: Annotated[str | None, Field(description="null: the local token, or a command on the service's machine.")]
    role: Role
    key_id: str | None
    address: Annotated[str | None, Field(description="The client's address; null: a command on the service's machine.")]
    request_id: Annotated[str, Field(description="The header X-Request-Id of the response.")]
    action: Annotated[str, Field(description="Method and route.")]
    target: str
    outcome: Annotated[
        Literal["done", "asked", "refused"],
        Field(
            description="done: written in the transaction of the change. asked: written before an action outside the "
            "database. refused: the caller has no permission."
        ),
    ]
    status: Annotated[int, Field(description="HTTP status of the response; 0 if it was not known yet.")]
    detail: dict[str, Any]


class UsageRowDocument(TypedDict):
    """The sums of one group. Keys that are not grouped by are null."""

    day: Annotated[Day | None, Field(description="UTC.")]
    user: Annotated[str | None, Field(description="Empty for jobs without a user.")]
    project: Annotated[str | None, Field(description="Empty for jobs without a project.")]
    held_gpu_h: Annotated[
        float, Field(description="GPU-hours held, from the decision to start until the GPUs were free again.")
    ]
    useful_gpu_h: Annotated[float, Field(description="Of these, the hours of lasting progress.")]
    wasted_gpu_h: Annotated[
        float, Field(description="The others: launches, restarts, and work lost in a stop or a crash.")
    ]
    jobs: Annotated[int, Field(description="Jobs that ended.")]
    attempts: Annotated[int, Field(description="Attempts that ended.")]
    preemptions: Annotated[int, Field(description="Attempts that were preempted.")]


class UsageDocument(TypedDict):
    """The GPU usage from `first_day` to `last_day`, both included."""

    first_day: Day
    last_day: Day
    at: Annotated[Time, Field(description="Running attempts count up to this time.")]
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
    """A new webhook."""

    secret: Annotated[
        str | None,
        Field(description="The signing secret; null in the response to a repeated request. It cannot be shown again."),
    ]


class DeliveryDocument(TypedDict):
    """The delivery of one event to a webhook."""

    id: int
    event: str
    event_id: Annotated[str | None, Field(description="The 'id' in the posted body; null for a test.")]
    job_id: int | None
    state: Literal["pending", "delivered", "given_up"]
    attempts: int
    status: Annotated[
        int | None, Field(description="HTTP status of the newest attempt; null if there was no response.")
    ]
    error: Annotated[str | None, Field(description="The error of the newest attempt.")]
    created_at: Time
    next_at: Annotated[Time | None, Field(description="Time of the next attempt; null once the delivery has ended.")]
    ended_at: Time | None
