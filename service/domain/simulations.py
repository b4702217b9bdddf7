"""States and limits of what-if runs of the service."""

from enum import StrEnum

POLICIES_MAX = 8
"""Policies of one run."""

WAITING_MAX = 10
"""Runs that wait at a time: with one hour each, the last one begins within half a day."""

STARTS_MAX = 5
"""A run whose service has ended so often is given up: it may be the cause."""

KEPT_S = 30 * 86_400.0
"""Age, since its end, at which a run is deleted with its report."""


class SimulationState(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
