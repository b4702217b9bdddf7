"""Users, keys and webhooks: from rows and identities to the documents of :mod:`service.wire.access`."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from service.api.documents import document, instant_or_none
from service.domain.access import NO_PROJECT, Identity
from service.wire.access import (
    DeliveryDocument,
    IdentityDocument,
    KeyDocument,
    UserDocument,
    WebhookDocument,
)


def key_document(row: Row[Any]) -> KeyDocument:
    """A row of ``api_keys``."""
    return document(KeyDocument, row)


def user_document(row: Row[Any], projects: Sequence[str]) -> UserDocument:
    """A row of ``users`` with the user's projects."""
    return document(UserDocument, row, projects=list(projects))


def identity_document(caller: Identity, expires_at_s: float | None) -> IdentityDocument:
    """The caller's own identity; ``expires_at_s`` is of its key."""
    projects = None if caller.projects is None else sorted(caller.projects - {NO_PROJECT})
    return document(IdentityDocument, caller, projects=projects, expires_at=instant_or_none(expires_at_s))


def webhook_document(row: Row[Any]) -> WebhookDocument:
    """A row of ``webhooks``."""
    return document(WebhookDocument, row, owner=row.owner or None)


def delivery_document(row: Row[Any]) -> DeliveryDocument:
    """A row of ``webhook_deliveries``; ``body`` is what is sent."""
    return document(
        DeliveryDocument,
        row,
        event_id=row.body.get("id"),
        job_id=row.body.get("job", {}).get("id"),
        error=row.error or None,
        next_at=instant_or_none(row.next_at_s if row.state == "pending" else None),
    )
