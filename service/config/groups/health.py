"""Signs of faulty servers, and what follows from them."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from service.config.kinds import DAY_S, Seconds, between, split
from service.domain.health import Sign

Signs = Annotated[tuple[Sign, ...], BeforeValidator(split)]


class Health(BaseModel):
    """When a server counts as conspicuous."""

    health_hang_factor: float = between(
        20.0,
        0.0,
        1e6,
        "A running attempt without progress for this many times its usual time between two reports counts as hanging. "
        "Evaluations and checkpoints take some such times. 0: hangs are not looked for.",
    )
    health_hang_s_min: Seconds = between(
        600.0, 1.0, 30 * DAY_S, "No attempt without progress for less time counts as hanging."
    )
    health_failures_max: int = between(
        5,
        2,
        10_000,
        "Different programs (user and job name) that fail on one server, without a success between them, until it counts as "
        "conspicuous.",
    )
    health_failures_window_s: Seconds = between(3600.0, 1.0, 30 * DAY_S, "Time within which these failures must lie.")
    health_drain: Signs = Field(
        (),
        description="Signs that drain a server: any of xid, ecc, gpu_lost, hang, failures. Default: none, and "
        "a sign is only an event. A hang drains only if the attempt is on one server.",
    )
    health_usable_min: float = between(
        0.5, 0.0, 1.0, "Share of the servers that answer which signs never drain. One usable server always stays."
    )
