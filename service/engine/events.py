"""Inputs of the engine (requests from users, reports from executors) and its job events."""

from dataclasses import replace
from enum import StrEnum

from policies.lifecycle import Cause, JobState
from policies.model.cluster import Server
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.model.value import value
from service.engine.limits import LimitOwner, OwnerLimit


class RequestKind(StrEnum):
    """Kinds of requests."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    SUBMITTED = "submitted"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    SERVER_ADDED = "server_added"
    SERVER_DRAINED = "server_drained"
    SERVER_RESUMED = "server_resumed"
    SERVER_UNHEALTHY = "server_unhealthy"
    QUOTA_SET = "quota_set"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_RESUMED = "queue_resumed"
    RESERVATION_MADE = "reservation_made"
    RESERVATION_CANCELLED = "reservation_cancelled"


@value
class EngineRequest:
    """One accepted request. It is stored before it is answered. A cycle consumes it once, by a mark set in its transaction.

    ``preempt`` goes with HOLD (stop the attempt too), ``priority`` with PRIORITY, ``server_spec`` with SERVER_ADDED,
    ``owner`` with quotas and pauses, ``gpus_running_max`` (None: none) with QUOTA_SET, ``note`` with QUEUE_PAUSED and
    SERVER_UNHEALTHY (the reason), ``drain`` with SERVER_UNHEALTHY (drain the server, too), ``window`` with RESERVATION_MADE (its
    id is that of the request), ``reservation`` with RESERVATION_CANCELLED.
    """

    id: int
    kind: RequestKind
    at_s: float
    job: JobId | None = None
    server: ServerIndex | None = None
    priority: int | None = None
    preempt: bool = False
    server_spec: Server | None = None
    owner: LimitOwner | None = None
    gpus_running_max: int | None = None
    note: str = ""
    window: ServerReservation | None = None
    reservation: int | None = None
    drain: bool = False


def limit_after(limit: OwnerLimit, request: EngineRequest) -> OwnerLimit:
    """An owner's limits after a request."""
    if request.kind is RequestKind.QUOTA_SET:
        return replace(limit, gpus_running_max=request.gpus_running_max)
    if request.kind is RequestKind.QUEUE_PAUSED:
        return replace(limit, paused=True, pause_reason=request.note)
    return replace(limit, paused=False, pause_reason="")


class ReportKind(StrEnum):
    """Kinds of reports about an attempt or a server."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    STARTED = "started"
    PROGRESS = "progress"
    EXITED = "exited"
    """The attempt has ended; ``exit_code`` and ``stop_signalled`` are set."""
    LAUNCH_FAILED = "launch_failed"
    """The attempt never ran; ``reason`` is set."""
    LOST = "lost"
    """The attempt has ended without an exit status. ``server`` is set if it was lost together with a server: one that failed,
    that was restarted, or whose service did not renew the lease."""
    SERVER_DOWN = "server_down"
    SERVER_UP = "server_up"
    """It answers. Drained servers stay drained."""
    SERVER_DRAINED = "server_drained"
    """An operator of the executor's engine keeps new jobs away from the server. Running ones continue."""
    SERVER_RETURNED = "server_returned"
    """The end of such a drain. A drain by an operator of this service is another thing and stays."""
    SERVER_ADDED = "server_added"
    """The executor has found a server that the cluster does not have; ``server_spec`` is set. SERVER_UP follows if it is up."""


class Warned(StrEnum):
    """What became of the warning signal of a stop."""

    DELIVERED = "delivered"
    """A process of the program that handles the signal got it."""
    NOT_DELIVERED = "not_delivered"
    """No process of the program handles the signal, or none was left."""


@value
class Report:
    """One observation of an executor. The engine accepts reports that are doubled, late or out of order.

    ``checkpoint_iteration`` is the newest iteration that is complete on disk. ``stop_signalled`` says whether the stop
    signal was sent before the end. ``iterations_per_s`` is the speed and ``lost_service_s`` the work since the last
    checkpoint; only a simulated executor sets them. ``loss`` is the program's reported training loss. ``input_s`` is the time
    that it has waited for input; no decision uses it.
    ``gpu_ids`` goes with STARTED: the GPU indices that the attempt really has, in the order of its placement's shares (None:
    those of the launch). ``warning`` goes with an end: whether a warning signal reached a process that handles it (None: none
    was sent). ``detail`` is the reason of a report about a server.
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
    input_s: float | None = None
    detail: str = ""
    server_spec: Server | None = None
    gpu_ids: tuple[tuple[int, ...], ...] | None = None
    warning: Warned | None = None


class ServerEventKind(StrEnum):
    """Kinds of changes of a server."""

    ADDED = "added"
    DOWN = "down"
    UP = "up"
    DRAINED = "drained"
    RESUMED = "resumed"
    UNHEALTHY = "unhealthy"
    """A sign that the server is faulty. Its state does not change."""
    ENGINE_DRAINED = "engine_drained"
    ENGINE_RETURNED = "engine_returned"


@value
class ServerEvent:
    """One change of a server, with its reason. Append-only. ``cycle`` wrote it."""

    server: ServerIndex
    at_s: float
    kind: ServerEventKind
    cycle: int
    detail: str = ""


@value
class JobEvent:
    """One change of a job's state. Append-only; the job's history consists of them.

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
