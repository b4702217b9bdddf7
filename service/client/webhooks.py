"""The client's side of webhooks, and their documents."""

from collections.abc import Mapping
from typing import Any, TypedDict

from service.client.usage import UsageClient


class Webhook(TypedDict):
    """A webhook, without its secret."""

    id: int
    url: str
    events: list[str]
    owner: str | None
    user: str | None
    project: str | None
    created_at: str


class NewWebhook(Webhook):
    """A webhook that has just been added; its secret is shown this once."""

    secret: str | None


class Delivery(TypedDict):
    """One thing told, or to be told, to a webhook."""

    id: int
    event: str
    event_id: str | None
    job_id: int | None
    state: str
    attempts: int
    status: int | None
    error: str | None
    created_at: str
    next_at: str | None
    ended_at: str | None


class WebhookClient(UsageClient):
    """Being told of changes of jobs."""

    def webhooks(self) -> list[Webhook]:
        """Those that the caller sees, oldest first."""
        return list(self._pages("/v1/webhooks"))

    def add_webhook(self, webhook: Mapping[str, Any], idempotency_key: str | None = None) -> NewWebhook:
        """Add one (keys as in the API: ``url``, ``events``, ...)."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key is not None else None
        found: NewWebhook = self._json("POST", "/v1/webhooks", body=webhook, headers=headers)
        return found

    def remove_webhook(self, webhook_id: int) -> Webhook:
        """Remove one with its secret and whatever was still to be told to it."""
        found: Webhook = self._json("DELETE", f"/v1/webhooks/{webhook_id}")
        return found

    def test_webhook(self, webhook_id: int) -> Delivery:
        """Have it told ``webhook.test``."""
        found: Delivery = self._json("POST", f"/v1/webhooks/{webhook_id}/test")
        return found

    def deliveries(self, webhook_id: int, *, limit: int | None = None) -> list[Delivery]:
        """What it was told, newest first; all pages, or at most ``limit``."""
        return list(self._pages(f"/v1/webhooks/{webhook_id}/deliveries", limit=limit))
