"""Webhooks: events, signatures, and retries. Pure, except for the creation of secrets.

A receiver checks ``Sooner-Signature: t=<seconds>,v1=<hex>``: the HMAC-SHA256, under the webhook's secret, of the bytes
``<seconds>.<body>``. With the time the receiver can refuse a recorded old request. A delivery may come more than once and in any
order; the ``id`` in the body identifies repetitions.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from policies.lifecycle import JobState

SIGNATURE_HEADER = "Sooner-Signature"
EVENT_HEADER = "Sooner-Event"
SECRET_PREFIX = "whsec_"  # noqa: S105 (prefix of every secret)

RETRY_FIRST_S = 10.0
RETRY_LONGEST_S = 3600.0


class WebhookEvent(StrEnum):
    """Events that a webhook can receive."""

    STARTED = "job.started"
    PREEMPTED = "job.preempted"
    REQUEUED = "job.requeued"
    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    TEST = "webhook.test"
    """Sent on request. All webhooks receive it."""


_EVENT_OF: Mapping[JobState, WebhookEvent] = {
    JobState.RUNNING: WebhookEvent.STARTED,
    JobState.PREEMPTING: WebhookEvent.PREEMPTED,
    JobState.QUEUED: WebhookEvent.REQUEUED,
    JobState.SUCCEEDED: WebhookEvent.SUCCEEDED,
    JobState.FAILED: WebhookEvent.FAILED,
    JobState.CANCELLED: WebhookEvent.CANCELLED,
}


def event_of(target: JobState) -> WebhookEvent | None:
    """The event for a job that changed to this state from another one; None for intermediate states."""
    return _EVENT_OF.get(target)


def new_secret() -> str:
    """A secret with 256 random bits."""
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def origin_of(url: str) -> str:
    """Scheme and host of a webhook's URL. Logs hold no more of it: path and query are often a secret."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0]}"


def body_of(document: Mapping[str, Any]) -> bytes:
    """The bytes that are sent and signed."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"), sort_keys=True).encode("ascii")


def signature(secret: str, at_s: int, body: bytes) -> str:
    """The value of the signature header."""
    digest = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def retry_after_s(attempts: int) -> float:
    """Pause after the ``attempts``-th failure: doubled each time, an hour at most."""
    return float(min(RETRY_LONGEST_S, RETRY_FIRST_S * 2.0 ** min(attempts - 1, 30)))
