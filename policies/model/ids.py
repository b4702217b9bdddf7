"""Identifiers, each with its own type, so that the type checker tells them apart."""

from typing import NewType

ID_MAX = 2**31 - 1
"""Largest number of a job, an attempt, or a cycle: databases store them in 32 bits."""

JobId = NewType("JobId", int)
"""A job's serial number: it grows with submission, so it also breaks ties between equal ranks."""

ServerIndex = NewType("ServerIndex", int)
"""Position of a server in ``Cluster.servers``. Servers are only ever appended, so a position is never reused."""

AttemptId = NewType("AttemptId", str)
"""``<job id>.<attempt number>``, for instance ``42.1``: unique, and sorted with its job."""


def attempt_id(job_id: JobId, number: int) -> AttemptId:
    """The id of a job's ``number``-th attempt (counted from 1)."""
    return AttemptId(f"{job_id}.{number}")


def job_of(attempt: AttemptId) -> JobId:
    """The job that an attempt belongs to."""
    return JobId(int(attempt.partition(".")[0]))
