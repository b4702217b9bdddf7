"""The engine's records: slotted and mutable. Only ``service.engine`` changes them; policies read them."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from math import inf
from operator import attrgetter
from typing import Any

from policies.lifecycle import ATTEMPT_OPEN, TERMINAL, AttemptState, JobState
from policies.model.estimate import Estimate, LossCurve, Unit
from policies.model.ids import AttemptId, JobId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, Slowdown, SpanSeconds
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from service.engine.limits import LimitOwner, OwnerLimit


@dataclass(slots=True)
class AttemptRecord:
    """One attempt. ``resume_*`` is the progress at its start, ``host`` the service or the cluster whose executor runs it.

    ``gpu_ids`` are the GPU indices of the launch. ``got_gpu_ids`` are those that the executor reported instead, if it did: an
    engine that picks the indices itself gives as many.
    """

    id: AttemptId
    job: JobId
    number: int
    state: AttemptState
    placement: Placement
    gpu_ids: tuple[tuple[int, ...], ...]
    opened_at_s: float
    resume_iteration: float = 0.0
    resume_service_s: float = 0.0
    started_at_s: float | None = None
    stop_requested_at_s: float | None = None
    ended_at_s: float | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    last_iteration: float | None = None
    first_progress_at_s: float | None = None
    first_progress_iteration: float | None = None
    fencing_token: int = 0
    host: str = ""
    got_gpu_ids: tuple[tuple[int, ...], ...] | None = None

    @property
    def open(self) -> bool:
        """Whether the attempt may still have processes."""
        return self.state in ATTEMPT_OPEN


@dataclass(slots=True)
class JobRecord:
    """One job: its specification, its state, and the anchor from which its progress at any time follows.

    Progress between reports is extrapolated from an anchor: ``iterations`` and ``service_s`` hold at ``anchor_s`` and grow
    by ``iterations_per_s`` and 1.0 per second from then on, while the job runs. ``checkpoint_*`` is the progress that
    survives a crash.

    ``spec`` may be one value that all elements of an array share, with the index of any of them. ``array_index`` is then the
    job's own index, and :attr:`own_spec` its own spec.
    """

    id: JobId
    spec: JobSpec
    submitted_at_s: float
    state: JobState = JobState.QUEUED
    reason: Reason = Reason.NEW
    version: int = 0
    priority: int = 0
    held: bool = False
    unmet_dependencies: int = 0
    not_before_s: float = 0.0
    retries: int = 0
    yields: int = 0
    attempts: int = 0
    preemptions: int = 0
    attempt: AttemptRecord | None = None
    reservation: Placement | None = None
    estimate: Estimate | None = None
    iteration_times: IterationTimes | None = None
    iterations: float = 0.0
    service_s: float = 0.0
    anchor_s: float = 0.0
    iterations_per_s: float = 0.0
    progressing: bool = False
    checkpoint_iteration: float = 0.0
    checkpoint_service_s: float = 0.0
    reports_iterations: bool = False
    reports_checkpoints: bool = False
    measured_s_per_iteration: float | None = None
    seconds_by_span: SpanSeconds | None = None
    reported_iterations: float | None = None
    """The least reported total. It may be wrong."""
    loss_curve: LossCurve | None = None
    held_gpu_s: float = 0.0
    wasted_gpu_s: float = 0.0
    first_started_at_s: float | None = None
    finished_at_s: float | None = None
    exit_code: int | None = None
    stop_cause: Reason | None = None
    array_index: int | None = None
    gate: Reason | None = None
    """Why admission keeps the job from competing. :mod:`service.engine.admission` updates it after each start."""

    @property
    def own_spec(self) -> JobSpec:
        """The spec with the job's own index, made anew where it is shared."""
        array = self.spec.array
        if array is None or self.array_index is None:
            return self.spec
        return replace(self.spec, array=replace(array, index=self.array_index))

    @property
    def eligible(self) -> bool:
        """Whether the job is QUEUED and neither held, dependent nor paused. Admission may still hold it back."""
        return (
            self.state is JobState.QUEUED
            and not self.held
            and self.unmet_dependencies == 0
            and self.not_before_s == 0.0
        )

    @property
    def waiting(self) -> bool:
        """Whether the job is QUEUED and competes for GPUs."""
        # Does not call ``eligible``: a simulation reads this several times an event.
        return (
            self.state is JobState.QUEUED
            and not self.held
            and self.unmet_dependencies == 0
            and self.not_before_s == 0.0
            and self.gate is None
        )

    @property
    def finished(self) -> bool:
        """Whether the state is terminal."""
        return self.state in TERMINAL

    @property
    def placement(self) -> Placement | None:
        """Held GPUs."""
        return self.attempt.placement if self.attempt is not None else None

    @property
    def attempt_started_at_s(self) -> float | None:
        """When a cycle decided to start the open attempt."""
        return self.attempt.opened_at_s if self.attempt is not None else None

    @property
    def attempt_began_at_s(self) -> float | None:
        """When the program of the open attempt began; before that, when a cycle decided to start it."""
        if self.attempt is None:
            return None
        return self.attempt.opened_at_s if self.attempt.started_at_s is None else self.attempt.started_at_s

    @property
    def graceful(self) -> bool:
        """Whether a preemption loses no work."""
        return self.spec.preemption is not None or self.reports_checkpoints

    @property
    def slowdown(self) -> Slowdown | None:
        """That of the estimate."""
        return self.estimate.slowdown if self.estimate is not None else None

    def done(self, unit: Unit, now_s: float) -> float:
        """Progress at ``now_s``, extrapolated from the anchor. O(1)."""
        elapsed = now_s - self.anchor_s if self.progressing and now_s > self.anchor_s else 0.0
        if unit is Unit.SERVICE_S:
            return self.service_s + elapsed
        return self.iterations + elapsed * self.iterations_per_s

    def speed(self, unit: Unit) -> float:
        """Units per second while the job runs, else 0.0."""
        if not self.progressing:
            return 0.0
        return 1.0 if unit is Unit.SERVICE_S else self.iterations_per_s

    def seconds_per_iteration(self) -> float | None:
        """The measured value, else the best of the stage graph, else the predictor's."""
        if self.measured_s_per_iteration is not None:
            return self.measured_s_per_iteration
        if self.iteration_times is not None and self.spec.stage_graph is not None:
            return self.iteration_times.min_s
        if self.estimate is not None and self.estimate.unit is Unit.ITERATIONS:
            return self.estimate.seconds_per_unit
        return None

    def attained_service_s(self, now_s: float) -> float:
        """GPU-seconds held so far, including those of the open attempt."""
        if self.attempt is None:
            return self.held_gpu_s
        return self.held_gpu_s + self.spec.gpus * max(0.0, now_s - self.attempt.opened_at_s)

    def lost_s(self, now_s: float) -> float:
        """Seconds of work that a stop would lose: those since the last checkpoint."""
        if self.graceful or not self.progressing:
            return 0.0
        return max(0.0, self.done(Unit.SERVICE_S, now_s) - self.checkpoint_service_s)

    def settle(self, now_s: float) -> None:
        """Move the anchor to ``now_s``. Called before a change of speed and before a stop."""
        if self.progressing and now_s > self.anchor_s:
            elapsed = now_s - self.anchor_s
            self.service_s += elapsed
            self.iterations += elapsed * self.iterations_per_s
            self.anchor_s = now_s

    def copy(self) -> "JobRecord":
        """A copy that shares nothing mutable with this record."""
        # Not replace(): it looks at each field in Python, and takes four times as long.
        copy = JobRecord(*_FIELDS(self))
        if self.attempt is not None:
            copy.attempt = replace(self.attempt)
        return copy


_FIELDS: Callable[[JobRecord], tuple[Any, ...]] = attrgetter(*(each.name for each in fields(JobRecord)))


@dataclass(slots=True)
class ServerRecord:
    """The state of one server as set by operators and reported by the executor.

    ``drained``: by an operator of this service. ``engine_drained``: by one of the executor's engine. Each is undone only by its
    own side. ``detail``: the executor's newest reason for ``down`` or ``engine_drained``. ``health_reason``: why this service
    itself drained the server; empty where ``drained`` came from an operator.
    """

    drained: bool = False
    down: bool = False
    engine_drained: bool = False
    detail: str = ""
    health_reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether new attempts may start on the server."""
        return not (self.drained or self.down or self.engine_drained)


@dataclass(slots=True)
class StoredWorld:
    """Everything that a store loads at start: unfinished jobs, servers, limits, and the position of the loop.

    ``at_s``: the newest committed time. The engine's time never falls below it.
    """

    jobs: list[JobRecord] = field(default_factory=list)
    servers: list[ServerRecord] = field(default_factory=list)
    cycle: int = 0
    policy_dump: dict[str, object] | None = None
    limits: dict[LimitOwner, OwnerLimit] = field(default_factory=dict)
    at_s: float = -inf
    windows: tuple[ServerReservation, ...] = ()
