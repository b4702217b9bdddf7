"""The state machine of jobs and attempts: which changes are possible and what may cause them.

Every change of a state goes through :func:`check_transition`.
"""

from enum import StrEnum
from typing import NamedTuple


class JobState(StrEnum):
    """The state of a job. Its :class:`policies.model.reasons.Reason` explains it."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PREEMPTING = "preempting"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """One run of a job, from a start to a stop."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"


HOLDS_GPUS = frozenset({JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING, JobState.CANCELLING})
"""GPUs are held in exactly these states."""

TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""A job never leaves one of these."""

ATTEMPT_OPEN = frozenset({AttemptState.LAUNCHING, AttemptState.RUNNING, AttemptState.STOPPING})
"""An attempt in one of these may still have processes; at most one attempt of a job is open."""


class Cause(StrEnum):
    """The cause of a change of state (see `docs/reference/states.md`)."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    SUBMITTED = "submitted"
    START_DECIDED = "start_decided"
    PREEMPT_DECIDED = "preempt_decided"
    STARTED = "started"
    EXITED_ZERO = "exited_zero"
    FINISHED_FIRST = "finished_first"
    """Exit code 0 arrived while the job was being stopped."""
    RETRYABLE_FAILURE = "retryable_failure"
    """Launch failed, crashed or confirmed dead; retries left."""
    FATAL_FAILURE = "fatal_failure"
    """The same with retries exhausted, or a reason that a retry cannot fix."""
    YIELDED = "yielded"
    """Exit code 75 without a request to stop."""
    STOPPED = "stopped"
    """The requested stop is complete."""
    WALLTIME = "walltime"
    CANCEL_REQUESTED = "cancel_requested"
    DEPENDENCY_FAILED = "dependency_failed"


class Transition(NamedTuple):
    """One allowed change of a job."""

    source: JobState
    target: JobState
    cause: Cause


_S = JobState
TRANSITIONS: frozenset[Transition] = frozenset(
    Transition(source, target, cause)
    for sources, target, cause in (
        ((_S.QUEUED,), _S.STARTING, Cause.START_DECIDED),
        ((_S.QUEUED,), _S.CANCELLED, Cause.CANCEL_REQUESTED),
        ((_S.QUEUED,), _S.CANCELLED, Cause.DEPENDENCY_FAILED),
        ((_S.STARTING,), _S.RUNNING, Cause.STARTED),
        ((_S.STARTING, _S.RUNNING), _S.SUCCEEDED, Cause.EXITED_ZERO),
        ((_S.STARTING, _S.RUNNING, _S.PREEMPTING), _S.QUEUED, Cause.RETRYABLE_FAILURE),
        ((_S.STARTING, _S.RUNNING, _S.PREEMPTING), _S.FAILED, Cause.FATAL_FAILURE),
        ((_S.STARTING, _S.RUNNING), _S.QUEUED, Cause.YIELDED),
        ((_S.STARTING, _S.RUNNING), _S.FAILED, Cause.YIELDED),
        ((_S.RUNNING,), _S.CANCELLING, Cause.WALLTIME),
        ((_S.CANCELLING,), _S.FAILED, Cause.WALLTIME),
        ((_S.STARTING, _S.RUNNING), _S.PREEMPTING, Cause.PREEMPT_DECIDED),
        ((_S.STARTING, _S.RUNNING, _S.PREEMPTING), _S.CANCELLING, Cause.CANCEL_REQUESTED),
        ((_S.PREEMPTING,), _S.QUEUED, Cause.STOPPED),
        ((_S.PREEMPTING, _S.CANCELLING), _S.SUCCEEDED, Cause.FINISHED_FIRST),
        ((_S.CANCELLING,), _S.CANCELLED, Cause.STOPPED),
    )
    for source in sources
)
"""Every change of a job that may happen. (new) -> QUEUED is its birth and not in the table."""

_A = AttemptState
_ENDS_BY_ITSELF = (_A.COMPLETED, _A.FAILED, _A.LOST)
ATTEMPT_TRANSITIONS: frozenset[tuple[AttemptState, AttemptState]] = frozenset(
    (source, target)
    for source, targets in (
        (_A.LAUNCHING, (_A.RUNNING, _A.STOPPING, *_ENDS_BY_ITSELF)),
        (_A.RUNNING, (_A.STOPPING, *_ENDS_BY_ITSELF)),
        (_A.STOPPING, (_A.PREEMPTED, _A.CANCELLED, *_ENDS_BY_ITSELF)),
    )
    for target in targets
)
"""Every change of an attempt that may happen."""


class ImpossibleTransition(Exception):
    """A change that is not in the table: a defect of the caller. Carries the job's history so far."""

    def __init__(self, what: str, source: str, target: str, cause: str, history: str) -> None:
        super().__init__(f"{what}: {source} -> {target} because of {cause} is not a transition; history: {history}")


def check_transition(job: int | str, source: JobState, target: JobState, cause: Cause, history: str = "") -> None:
    """Raise :class:`ImpossibleTransition` unless the table holds this change. O(1)."""
    if (source, target, cause) not in TRANSITIONS:
        raise ImpossibleTransition(f"job {job}", source, target, cause, history)


def check_attempt_transition(attempt: str, source: AttemptState, target: AttemptState, history: str = "") -> None:
    """Raise :class:`ImpossibleTransition` unless an attempt may change so. O(1)."""
    if (source, target) not in ATTEMPT_TRANSITIONS:
        raise ImpossibleTransition(f"attempt {attempt}", source, target, "report", history)
