"""Limits of running attempts."""

from pydantic import BaseModel

from service.config.kinds import DAY_S, MIB, between


class Attempts(BaseModel):
    """What one running attempt may do."""

    lease_s: float = between(
        3600.0,
        1.0,
        30 * DAY_S,
        "An attempt is stopped when no service has asked for it for so long. An hour outlasts an upgrade.",
    )
    leader_lease_s: float = between(
        5.0,
        1.0,
        3600.0,
        "A service that has not renewed its lead for so long has lost it, and another one leads within ten seconds.",
    )
    executor_timeout_s: float = between(
        5.0,
        0.1,
        600.0,
        "Whoever calls the executor waits no longer. It answers within milliseconds, unless its disk or a lock hangs.",
    )
    log_bytes_max: int = between(
        64 * MIB, 4096, 1024 * 1024 * MIB, "Log kept of one attempt; of more, the beginning and the end."
    )
    progress_line_bytes_max: int = between(
        65_536, 256, MIB, "Longest progress line of a program; longer ones are counted and ignored."
    )
    progress_lines_per_s_max: float = between(
        10.0, 0.001, 1000.0, "Progress lines taken from one attempt a second; more are counted and ignored."
    )
    progress_rows_max: int = between(
        1000, 10, 1_000_000, "Progress points kept of one job; older ones are thinned out: enough for a curve."
    )
