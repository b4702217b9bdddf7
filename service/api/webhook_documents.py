"""Webhooks: what clients send and are shown."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from service.api.documents import instant, instant_or_none
from service.api.schemas import Body, Name
from service.domain.webhooks import WebhookEvent

URL_MAX = 2048

JobEventName = Literal["job.started", "job.preempted", "job.requeued", "job.succeeded", "job.failed", "job.cancelled"]


_ENDS: tuple[JobEventName, ...] = ("job.succeeded", "job.failed", "job.cancelled")
"""What most want to know."""


class WebhookBody(Body):
    """Where to tell of changes of jobs, and of which."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://hooks.example.org/sooner", "events": ["job.failed"]}]}
    )

    url: Annotated[str, Field(min_length=1, max_length=URL_MAX, pattern=r"^[\x21-\x7e]+$")] = Field(
        description="https:// or http://; not in an inner network unless the setting webhook_private_addresses allows it."
    )
    events: Annotated[list[JobEventName], Field(min_length=1, max_length=len(WebhookEvent))] = Field(
        default_factory=lambda: list(_ENDS), description="Left out: the three ends of a job."
    )
    user: Name | None = Field(default=None, description="Only jobs of this user; without the role operator: one's own.")
    project: Name | None = Field(default=None, description="Only jobs of this project.")
    secret: Annotated[str, Field(min_length=16, max_length=200, pattern=r"^[\x21-\x7e]+$")] | None = Field(
        default=None, description="Signs what is sent; left out: one is made. It is shown once, in this answer."
    )


class WebhookDocument(BaseModel):
    """A webhook, without its secret."""

    id: int
    url: str
    events: list[str]
    owner: str | None = Field(description="Who added it; null: the token in the data folder.")
    user: str | None = Field(description="Only jobs of this user; null: of everybody.")
    project: str | None = Field(description="Only jobs of this project; null: of all.")
    created_at: datetime


class NewWebhookDocument(WebhookDocument):
    """A webhook that has just been added."""

    secret: str | None = Field(description="Shown this once; null where the request is repeated.")


class DeliveryDocument(BaseModel):
    """One thing told, or to be told, to a webhook."""

    id: int
    event: str
    event_id: str | None = Field(description="The 'id' in the body that is sent; null for a test.")
    job_id: int | None
    state: Literal["pending", "delivered", "given_up"]
    attempts: int
    status: int | None = Field(description="The HTTP status of the newest attempt; null where no answer came.")
    error: str | None = Field(description="Why the newest attempt failed.")
    created_at: datetime
    next_at: datetime | None = Field(description="When it is tried next; null once it has ended.")
    ended_at: datetime | None


def webhook_document(row: Row[Any]) -> WebhookDocument:
    """A row of ``webhooks``."""
    return WebhookDocument(
        id=row.id,
        url=row.url,
        events=list(row.events),
        owner=row.owner or None,
        user=row.user,
        project=row.project,
        created_at=instant(row.created_at_s),
    )


def delivery_document(row: Row[Any]) -> DeliveryDocument:
    """A row of ``webhook_deliveries``."""
    return DeliveryDocument(
        id=row.id,
        event=row.event,
        event_id=row.body.get("id"),
        job_id=row.body.get("job", {}).get("id"),
        state=row.state,
        attempts=row.attempts,
        status=row.status,
        error=row.error or None,
        created_at=instant(row.created_at_s),
        next_at=instant(row.next_at_s) if row.state == "pending" else None,
        ended_at=instant_or_none(row.ended_at_s),
    )
