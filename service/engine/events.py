"""What the engine is told (requests from users, reports from executors) and what it tells (job events)."""

from dataclasses import replace
from enum import StrEnum

from policies.lifecycle import Cause, JobState
from policies.model.cluster import Server
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.model.value import value
from service.engine.limits import Owner, OwnerLimit


class RequestKind(StrEnum):
    """What a user or an operator may ask of the engine."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    SUBMITTED = "submitted"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    SERVER_ADDED = "server_added"
    SERVER_DRAINED = "server_drained"
    SERVER_RESUMED = "server_resumed"
    QUOTA_SET = "quota_set"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_RESUMED = "queue_resumed"
    RESERVATION_MADE = "reservation_made"
    RESERVATION_CANCELLED = "reservation_cancelled"


@value
class EngineRequest:
    """One accepted request, durable before it is answered and consumed once, by a mark set in the cycle's transaction.

    ``preempt`` goes with HOLD (stop the attempt too), ``priority`` with PRIORITY, ``server_spec`` with SERVER_ADDED,
    ``owner`` with all that are about quotas and pauses, ``gpus_running_max`` (None: none) with QUOTA_SET, ``note`` with
    QUEUE_PAUSED, ``window`` with RESERVATION_MADE (its id is the fact's), ``reservation`` with RESERVATION_CANCELLED.
    """

    id: int
    kind: RequestKind
    at_s: float
    job: JobId | None = None
    server: ServerIndex | None = None
    priority: int | None = None
    preempt: bool = False
    server_spec: Server | None = None
    owner: Owner | None = None
    gpus_running_max: int | None = None
    note: str = ""
    window: ServerReservation | None = None
    reservation: int | None = None


def limit_after(limit: OwnerLimit, request: EngineRequest) -> OwnerLimit:
    """An owner's limits once a request about them is granted."""
    if request.kind is RequestKind.QUOTA_SET:
        return replace(limit, gpus_running_max=request.gpus_running_max)
    if request.kind is RequestKind.QUEUE_PAUSED:
        return replace(limit, paused=True, pause_reason=request.note)
    return replace(limit, paused=False, pause_reason="")


class ReportKind(StrEnum):
    """What an executor may say of an attempt or a server."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    STARTED = "started"
    PROGRESS = "progress"
    EXITED = "exited"
    """The attempt has no process any more: ``exit_code`` and ``stop_signalled`` say how it ended."""
    LAUNCH_FAILED = "launch_failed"
    """It never ran: ``reason`` says why."""
    LOST = "lost"
    """Confirmed dead without an exit status (its node's lease ran out, the machine rebooted). ``server`` is given where it
    was lost together with a server."""
    SERVER_DOWN = "server_down"
    SERVER_UP = "server_up"


@value
class Report:
    """One observation of an executor. Reports may come twice, late or out of order; the engine sorts that out.

    ``checkpoint_iteration`` is the newest iteration that is complete on disk. ``stop_signalled`` says whether the stop
    signal had been sent before the end. ``iterations_per_s`` is given where the executor knows the speed (simulation).
    ``lost_service_s`` is the work since the last checkpoint where the executor knows it (simulation). ``loss`` is what the
    program says of its training; nothing is decided by it.
    """

    kind: ReportKind
    at_s: float
    attempt: AttemptId | None = None
    server: ServerIndex | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    stop_signalled: bool = False
    iteration: float | None = None
    checkpoint_iteration: float | None = None
    total_iterations: float | None = None
    iterations_per_s: float | None = None
    lost_service_s: float | None = None
    loss: float | None = None
    detail: str = ""


@value
class JobEvent:
    """One line of a job's story: append-only, and the source of its state history.

    ``cycle`` wrote it. The first event of a job has no ``source`` and the time of the submission.
    """

    job: JobId
    at_s: float
    source: JobState | None
    target: JobState
    cause: Cause
    reason: Reason
    cycle: int
    attempt: AttemptId | None = None
    detail: str = ""
