"""Webhooks: what is told, how it is signed, and when a delivery is tried again. Pure but for the making of secrets.

A receiver checks ``Sooner-Signature: t=<seconds>,v1=<hex>``: the HMAC-SHA256, under the webhook's secret, of the bytes
``<seconds>.<body>``. The time inside it lets an old request that somebody recorded be refused. Deliveries come at least once and
in no promised order; the ``id`` in the body tells repetitions apart.
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
SECRET_PREFIX = "whsec_"  # noqa: S105 (what every secret begins with)

RETRY_FIRST_S = 10.0
RETRY_LONGEST_S = 3600.0


class WebhookEvent(StrEnum):
    """What a webhook can be told of."""

    STARTED = "job.started"
    PREEMPTED = "job.preempted"
    REQUEUED = "job.requeued"
    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    TEST = "webhook.test"
    """Asked for by hand; every webhook gets it."""


_EVENT_OF: Mapping[JobState, WebhookEvent] = {
    JobState.RUNNING: WebhookEvent.STARTED,
    JobState.PREEMPTING: WebhookEvent.PREEMPTED,
    JobState.QUEUED: WebhookEvent.REQUEUED,
    JobState.SUCCEEDED: WebhookEvent.SUCCEEDED,
    JobState.FAILED: WebhookEvent.FAILED,
    JobState.CANCELLED: WebhookEvent.CANCELLED,
}


def event_of(target: JobState) -> WebhookEvent | None:
    """The event of a job that an engine moved into this state from another one; None for states on the way to one."""
    return _EVENT_OF.get(target)


def new_secret() -> str:
    """A secret with 256 bits of chance."""
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
