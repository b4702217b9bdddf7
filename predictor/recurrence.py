"""Recurrence levels: which past jobs count as runs of the same program, from the narrowest group to the whole cluster.

Most training jobs recur (A-SRPT, arXiv 2501.05563), so the user and the program predict more than any model. Keys are names,
never numbers: a new name has an empty history, and no encoding of names is needed.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from predictor.rows import Submission

BUCKETS: Final = ("0", "1-4", "5-19", "20+")
"""History buckets: how many past runs of the recurrence (with the same GPUs) had ended at submission."""


class Level(StrEnum):
    """Back-off levels, narrowest first."""

    __hash__ = str.__hash__  # Enum's own is Python code, and every feature is looked up by level

    RECURRENCE_GPUS = "recurrence_gpus"
    RECURRENCE = "recurrence"
    PROGRAM = "program"
    USER_GPUS = "user_gpus"
    USER = "user"
    PROJECT = "project"
    MODEL = "model"
    CLUSTER = "cluster"


BACKOFF: Final = (Level.RECURRENCE_GPUS, Level.RECURRENCE, Level.USER, Level.CLUSTER)
"""The levels that a recurrence baseline tries, in order."""


_newest: tuple[Submission | None, dict[Level, Hashable | None]] = (None, {})


def keys_of(submission: Submission) -> dict[Level, Hashable | None]:
    """The group key of a job at each level; None where the job has no such group.

    A user's unnamed jobs are one recurrence, because user and size still predict much. Jobs without user and name belong to
    none. The last result is cached, because the same object is looked up several times in a row: do not modify it.
    """
    global _newest
    newest = _newest  # another thread may replace the cached entry
    if newest[0] is not submission:
        newest = _newest = (submission, _keys(submission))
    return newest[1]


def _keys(submission: Submission) -> dict[Level, Hashable | None]:
    user, project, name = submission.recurrence
    known = bool(name or user)
    return {
        Level.RECURRENCE_GPUS: (user, project, name, submission.gpus) if known else None,
        Level.RECURRENCE: (user, project, name) if known else None,
        Level.PROGRAM: (name, submission.gpus) if name else None,
        Level.USER_GPUS: (user, submission.gpus) if user else None,
        Level.USER: user or None,
        Level.PROJECT: project or None,
        Level.MODEL: _requested(submission, project),
        Level.CLUSTER: "",
    }


def _requested(submission: Submission, project: str) -> Hashable:
    """The model that is trained, or without one the walltime within the project: the closest to an identity that jobs without
    user and name have.
    """
    if submission.model:
        return (submission.model, submission.batch_size, submission.gpus)
    return (project, submission.walltime_s, submission.gpus)


def error_group(user: str, project: str, name: str) -> Hashable | None:
    """The group whose prediction errors are correlated: the user's jobs, else the program's; None where neither is known."""
    if user:
        return user
    return (project, name) if project or name else None


def bucket_of(count: int) -> int:
    """Position in :data:`BUCKETS` of a history of ``count`` past runs."""
    if count <= 0:
        return 0
    if count <= 4:
        return 1
    return 2 if count <= 19 else 3
