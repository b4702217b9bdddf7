"""Webhooks: how many, how patiently they are delivered, and where to."""

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, Seconds, between


class Webhooks(BaseModel):
    """What is told to other programs."""

    webhooks_max: int = between(
        100, 0, 10_000, "Webhooks of all users together. Each change of a job is matched against all of them."
    )
    webhook_private_addresses: bool = Field(
        False,
        description="Whether webhooks may go to this machine and to private networks. Every user can then reach those.",
    )
    webhook_timeout_s: Seconds = between(
        10.0,
        0.1,
        60.0,
        "Timeout of one delivery, name resolution included. A receiver should answer first and act later.",
    )
    webhook_attempts_max: int = between(
        15, 1, 100, "Attempts before a delivery is given up: about six hours, with pauses of 10 s to an hour."
    )
    webhook_pending_max: int = between(
        10_000, 1, 1_000_000, "Pending deliveries of one webhook. Further deliveries are given up at once."
    )
    webhook_period_s: Seconds = between(
        2.0,
        0.1,
        3600.0,
        "Time between two checks for pending deliveries. People do not notice so short a delay.",
    )
    deliveries_kept_s: Seconds = between(
        7 * DAY_S,
        60.0,
        3650 * DAY_S,
        "Age at which ended deliveries are deleted. A week is long enough to find a fault.",
    )
