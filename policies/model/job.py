"""The specification of a job. Frozen: the engine's record holds everything that changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policies.model.graph import StageGraph
from policies.model.ids import JobId
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown
from policies.model.plan import TrainingPlan
from policies.model.shape import ModelShape
from policies.model.value import value

PROFILE_LABEL = "sooner/profile"
"""Marks a run that only measures the program's speed. Its value is the number of iterations to leave out as warm-up."""


class Launch(StrEnum):
    """How often the command runs in an attempt: once a server, or once a GPU."""

    SERVER = "server"
    GPU = "gpu"


class Level(StrEnum):
    """How close together a gang's GPUs are."""

    SERVER = "server"
    RACK = "rack"


@value
class Topology:
    """All GPUs within one server or one rack: always, or wherever that is free."""

    level: Level
    required: bool = True


@value
class PreemptionSignal:
    """The warning before a stop: this signal first, SIGTERM after ``grace_s`` seconds."""

    signal: str = "SIGUSR1"
    grace_s: float = 30.0


@value
class ArrayPlace:
    """Which element of a job array a job is. ``id`` is the array's: the id of its first job; 0 before that is known.

    ``max_running``: elements that may hold GPUs at a time (None: any number).
    """

    index: int
    count: int
    id: JobId = JobId(0)
    max_running: int | None = None


@value
class Volume:
    """A folder or file of the server (``source``) that a job's container sees as ``target``. Both are absolute paths."""

    source: str
    target: str
    read_only: bool = False


@value
class JobSpec:
    """A submitted job.

    ``gpus`` is the gang size. ``stage_graph`` and ``parallelism`` are both given or both None; without them the job has
    no communication model and its speed is learnt. ``checkpoint_period_s`` None = the program cannot checkpoint.
    Jobs in ``after`` must succeed first, those in ``after_any`` must end; a job in both must succeed.
    ``gpu_type`` None = any type; ``gpu_type_fallbacks``: other types that it takes as well, in the order of preference.
    ``servers``: the gang is on exactly so many, with as many GPUs on each (None = any number).
    ``min_run_s``: each attempt runs this long before it may be preempted for another job.
    ``plan`` is how the model of ``shape`` is trained; the stages then follow from both where the GPU type
    is known. ``shape`` None: a plan of a model that is not known.
    ``cpus`` and ``memory_gib`` are of the whole job (see :mod:`policies.model.resources`), ``gpu_memory_gib`` is what each of its
    GPUs must have at least; None: any. ``image``: the container image in which the command runs, with ``volumes``.
    ``gpus_min`` / ``gpus_max`` are the elastic range for policies that resize (none given = rigid). Values of ``env`` whose
    names are in ``secret_env`` are never shown; ``env`` is left out where a spec is printed.
    """

    name: str
    user: str
    gpus: int
    project: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    working_dir: str | None = None
    stage_graph: StageGraph | None = None
    parallelism: ParallelismConfig | None = None
    model: str | None = None
    batch_size: int | None = None
    gpu_type: str | None = None
    gpu_type_fallbacks: tuple[str, ...] = ()
    topology: Topology | None = None
    servers: int | None = None
    declared_iterations: int | None = None
    walltime_s: float | None = None
    min_run_s: float = 0.0
    priority: int = 0
    checkpoint_period_s: float | None = 300.0
    max_retries: int = 2
    after: tuple[JobId, ...] = ()
    after_any: tuple[JobId, ...] = ()
    hold: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    recurrence_key: str | None = None
    gpus_min: int | None = None
    gpus_max: int | None = None
    preemption: PreemptionSignal | None = None
    launch: Launch = Launch.SERVER
    array: ArrayPlace | None = None
    secret_env: tuple[str, ...] = ()
    plan: TrainingPlan | None = None
    shape: ModelShape | None = None
    cpus: int | None = None
    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    image: str | None = None
    volumes: tuple[Volume, ...] = ()

    @property
    def needs(self) -> tuple[JobId, ...]:
        """Every job that must end first."""
        return self.after + self.after_any if self.after_any else self.after

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types that it takes, the preferred one first; none = any."""
        return () if self.gpu_type is None else (self.gpu_type, *self.gpu_type_fallbacks)

    @property
    def profile(self) -> int | None:
        """Warm-up iterations of a run that only measures its program (0 if the label names no number); None for others."""
        text = self.labels.get(PROFILE_LABEL)
        if text is None:
            return None
        return int(text) if text.isascii() and text.isdecimal() else 0

    @property
    def recurrence(self) -> tuple[str, str, str]:
        """The recurrence key: (user, project, name), where ``recurrence_key`` replaces the name if given."""
        return (self.user, self.project, self.recurrence_key or self.name)


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Constants of a job on a cluster, in seconds per iteration (alpha_floor <= alpha(x) <= alpha_ceil for every x).

    ``min_s`` is the least over a few good placements on the empty cluster. Those of a job without a stage graph follow from its
    ``slowdown``; they are no seconds, but multiples of its iteration on one server.
    """

    floor_s: float
    ceil_s: float
    min_s: float
    slowdown: Slowdown | None = None
