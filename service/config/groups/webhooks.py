"""Webhooks: how many, how patiently they are delivered, and where to."""

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, between


class Webhooks(BaseModel):
    """What is told to other programs."""

    webhooks_max: int = between(
        100, 0, 10_000, "Webhooks of all users together: each is matched against every change of a job."
    )
    webhook_private_addresses: bool = Field(
        False,
        description="Whether webhooks may go to this machine and to inner networks. Off: whoever adds one could reach into them.",
    )
    webhook_timeout_s: float = between(
        10.0,
        0.1,
        60.0,
        "Time for one delivery, the name's resolution included: a receiver has to take it, not to act on it.",
    )
    webhook_attempts_max: int = between(
        15, 1, 100, "Deliveries tried before one is given up: with pauses from 10 s to an hour, after about six hours."
    )
    webhook_pending_max: int = between(
        10_000, 1, 1_000_000, "Deliveries that may wait for one webhook; what comes beyond is given up at once."
    )
    webhook_period_s: float = between(
        2.0,
        0.1,
        3600.0,
        "How often it is looked whether there is something to deliver: a person would not notice less.",
    )
    deliveries_kept_s: float = between(
        7 * DAY_S,
        60.0,
        3650 * DAY_S,
        "Deliveries that have ended are forgotten after this: long enough to look into a fault.",
    )
