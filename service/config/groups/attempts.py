"""Limits of running attempts."""

from typing import Literal

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, MIB, Pairs, Seconds, between


class Attempts(BaseModel):
    """What one running attempt may do."""

    run_as: Literal["service", "submitter"] = Field(
        "service",
        description="The system user of jobs: that of the service, or that of each job's user. The latter needs root.",
    )
    run_as_users: Pairs = Field(
        default_factory=dict,
        description="System users with other names than the jobs' users, as user=system user,... For run_as=submitter.",
    )
    lease_s: Seconds = between(
        600.0,
        1.0,
        30 * DAY_S,
        "Time without contact to their service until supervisors stop their attempts. Ten minutes are longer than an "
        "upgrade or an outage of the database. A dead machine's jobs start anew soon after them.",
    )
    leader_lease_s: Seconds = between(
        5.0,
        1.0,
        3600.0,
        "Duration of the leader's lease. After the leader's death another service leads within ten seconds.",
    )
    containment: Literal["auto", "cgroup", "subreaper"] = Field(
        "auto",
        description=(
            "How the processes of an attempt are held together. auto: in a control group (cgroup v2) where one can be made. "
            "cgroup: the same, and serve refuses to start elsewhere. subreaper: without one."
        ),
    )
    executor_timeout_s: Seconds = between(
        5.0,
        0.1,
        600.0,
        "Timeout of calls to the executor. It answers within milliseconds unless its disk or a lock hangs.",
    )
    log_bytes_max: int = between(
        64 * MIB, 4096, 1024 * 1024 * MIB, "Log size of one attempt. Of a longer log, beginning and end are kept."
    )
    progress_line_bytes_max: int = between(
        65_536, 256, MIB, "Longest progress line of a program. Longer lines are counted and ignored."
    )
    progress_lines_per_s_max: float = between(
        10.0, 0.001, 1000.0, "Progress lines accepted from one attempt per second. More are counted and ignored."
    )
    progress_rows_max: int = between(
        1000, 10, 1_000_000, "Progress points stored per job, enough for a curve. Older points are thinned out."
    )
