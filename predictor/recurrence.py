"""Recurrence levels: which past jobs count as "the same again", from the narrowest group to the whole cluster.

Most training jobs recur (A-SRPT, arXiv 2501.05563): who runs which program is worth more than any model. Keys are names, never
numbers: a name that was never seen simply has an empty history, so there is nothing to encode and nothing to mistake.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from predictor.rows import Submission

BUCKETS: Final = ("0", "1-4", "5-19", "20+")
"""History buckets: how many past runs of the recurrence (with the same GPUs) had ended at submission."""


class Level(StrEnum):
    """Back-off levels, narrowest first."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code, and every feature is looked up by level

    RECURRENCE_GPUS = "recurrence_gpus"
    RECURRENCE = "recurrence"
    PROGRAM = "program"
    USER_GPUS = "user_gpus"
    USER = "user"
    PROJECT = "project"
    MODEL = "model"
    CLUSTER = "cluster"


LADDER: Final = (Level.RECURRENCE_GPUS, Level.RECURRENCE, Level.USER, Level.CLUSTER)
"""Where a recurrence baseline looks, in order."""


_newest: tuple[Submission | None, dict[Level, Hashable | None]] = (None, {})


def keys_of(submission: Submission) -> dict[Level, Hashable | None]:
    """The group of a job at each level; None where the job says nothing that could group it.

    A user's unnamed jobs are one recurrence: who and how large still says much. Jobs of nobody in particular are none. Nobody may
    change the answer: whoever asks again about the same object, which happens several times in a row, is given it again.
    """
    global _newest
    newest = _newest  # another thread may put its own there
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
        Level.MODEL: _asked_for(submission, project),
        Level.CLUSTER: "",
    }


def _asked_for(submission: Submission, project: str) -> Hashable:
    """What is asked for: the network that is trained, or where none is named the walltime within the project. The nearest thing
    to an identity that jobs of nobody in particular have.
    """
    if submission.model:
        return (submission.model, submission.batch_size, submission.gpus)
    return (project, submission.walltime_s, submission.gpus)


def errs_alike(user: str, project: str, name: str) -> Hashable | None:
    """Whose errors a job's error is likely to resemble: its user's, else its program's; None where neither is known."""
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
