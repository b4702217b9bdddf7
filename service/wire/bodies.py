"""The bodies of requests. Unknown keys are refused, types are strict, every number is finite and bounded.

Rules between several values are in :mod:`service.api.parse`, as are the limits of settings (layers, jobs per request).
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from policies.model.ids import ID_MAX
from service.domain.api_key import LIFETIME_S_MIN
from service.domain.duration import PERIOD_S_MIN, DurationError, seconds_of
from service.domain.webhooks import WebhookEvent
from service.wire import examples
from service.wire.base import (
    DIGITS_ALONE,
    IMAGE,
    NO_CONTROLS,
    NO_NUL,
    PRINTABLE_ASCII,
    STAGES_MAX,
    TEXT_MAX,
    AbsolutePath,
    Body,
    EnvName,
    JobName,
    LabelKey,
    Name,
    ProjectName,
    ServerName,
    Text,
    UserName,
)
from service.wire.plans import PlanBody

SECONDS_MAX = 10 * 366 * 86400.0
"""Ten years: no time of a job is longer, and sums of such numbers stay exact enough."""

GRACE_S_MAX = 3600.0

BYTES_MAX = 2**53
"""Exactly representable in every JSON reader."""

ITERATIONS_MAX = 10**12
"""A microsecond each, this many iterations take eleven days; more is a mistake."""

GPUS_MAX = 1_000_000
CPUS_MAX = 100_000_000
MEMORY_GIB_MAX = 1e9
"""CPUs and memory of one job: those of a million GPUs."""
GPU_MEMORY_GIB_MAX = 1e5
SERVER_CPUS_MAX = 65_536
SERVER_MEMORY_GIB_MAX = 1e6
VOLUMES_MAX = 64
PRIORITY_MAX = 1_000_000
GPU_TYPES_MAX = 16
"""More than any cluster has; each is tried."""
STAGE_NAME_MAX = 2 * TEXT_MAX + len("..")
"""A stage is named after its first and its last layer."""

ARGUMENT_MAX = 32_768
ARGUMENTS_MAX = 4_096
ENV_MAX = 1_024
LABELS_MAX = 64
PROJECTS_MAX = 100
"""Projects that one key can be narrowed to."""
SERVERS_MAX = 10_000
URL_MAX = 2048
AFTER_MAX = 1_000
ELEMENTS_MAX = 100_000
"""As many as the setting jobs_per_request_max can allow."""


def _text_of_number(value: object) -> object:
    """A finite number as text: in YAML, ``LR: 0.1`` is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(value) if math.isfinite(value) else value


def _seconds(value: object) -> object:
    """The seconds of a duration that is written as text."""
    if not isinstance(value, str):
        return value
    try:
        if value.strip().replace(".", "", 1).isdigit():
            raise DurationError("a number is written without quotes")
        return seconds_of(value)
    except DurationError:
        # Without the text: values of a request are not repeated, because they may be secrets.
        raise ValueError("must be seconds, or a duration such as 2h, 30min or 02:30:00") from None


Argument = Annotated[
    str,
    Field(max_length=ARGUMENT_MAX, pattern=NO_NUL),
    BeforeValidator(_text_of_number),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": ARGUMENT_MAX, "pattern": NO_NUL}, {"type": "number"}]}),
]
"""A text; a number is taken as its text."""
Moment = Annotated[str, Field(max_length=40, description="ISO 8601 with a zone, as in 2026-03-01T18:00:00Z.")]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]


def _duration_schema(least_s: float, most_s: float) -> WithJsonSchema:
    number = {"type": "number", "minimum": least_s, "maximum": most_s}
    text = {"type": "string", "description": "2h, 1h30m, 30min, HH:MM:SS"}
    return WithJsonSchema({"anyOf": [number, text]})


_FROM_TEXT = BeforeValidator(_seconds)
Duration = Annotated[Seconds, _FROM_TEXT, _duration_schema(0, SECONDS_MAX)]
"""Seconds, or a text such as ``2h`` or ``02:30:00``."""
Period = Annotated[
    float, Field(ge=PERIOD_S_MIN, le=SECONDS_MAX), _FROM_TEXT, _duration_schema(PERIOD_S_MIN, SECONDS_MAX)
]
GracePeriod = Annotated[float, Field(ge=0, le=GRACE_S_MAX), _FROM_TEXT, _duration_schema(0, GRACE_S_MAX)]
Bytes = Annotated[int, Field(ge=0, le=BYTES_MAX)]
JobNumber = Annotated[int, Field(ge=1, le=ID_MAX)]
"""The number of a job in a body, where a text is no number."""
Id = Annotated[JobNumber, DIGITS_ALONE]
"""The number of a job, an attempt, an array, a reservation, a webhook or a training run, where a path or a query names one."""
CycleNumber = Annotated[int, Field(ge=0, le=ID_MAX), DIGITS_ALONE]
Gpus = Annotated[int, Field(ge=1, le=GPUS_MAX)]
Degree = Annotated[int, Field(ge=1, le=GPUS_MAX)]
ElementIndex = Annotated[int, Field(ge=0, le=ID_MAX)]
Cpus = Annotated[int, Field(ge=1, le=CPUS_MAX)]
MemoryGib = Annotated[float, Field(gt=0, le=MEMORY_GIB_MAX)]
Priority = Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class LayerBody(Body):
    """One layer, for one global mini-batch on one GPU of the job's type."""

    name: Name
    forward_s: Seconds
    backward_s: Seconds
    parameter_bytes: Bytes
    activation_bytes: Bytes
    tensor_bytes: Bytes = Field(
        default=0, description="Bytes that one replica all-reduces inside its tensor group per iteration, if split."
    )


class LayersGraphBody(Body):
    """A network as a directed acyclic graph of layers."""

    layers: Annotated[list[LayerBody], Field(min_length=1)]
    edges: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list, description="Pairs of layer names: from, to."
    )


class CatalogueGraphBody(Body):
    """A network of the catalogue."""

    model: Name
    batch_size: Annotated[int, Field(ge=1, le=10**9)] = Field(description="Global mini-batch: over all replicas.")


class StageBody(Body):
    """A pipeline stage: the sums over its layers, for one global mini-batch on the reference GPU."""

    name: Annotated[str, Field(min_length=1, max_length=STAGE_NAME_MAX, pattern=NO_CONTROLS)]
    forward_s: Annotated[float, Field(ge=0)]
    backward_s: Annotated[float, Field(ge=0)]
    parameter_bytes: Annotated[int, Field(ge=0)]
    tensor_bytes: Annotated[int, Field(ge=0)] = 0


class StageGraphBody(Body):
    """A network that is cut into pipeline stages: the form in which the service stores a graph."""

    stages: Annotated[list[StageBody], Field(min_length=1, max_length=STAGES_MAX)]
    edges: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3, max_length=3)]] = Field(
        default_factory=list,
        description="From stage, to a later stage (positions in 'stages'), bytes of activations per mini-batch.",
    )
    model: Name | None = Field(default=None, description="The network of the catalogue that was cut.")
    batch_size: Annotated[int, Field(ge=1, le=10**9)] | None = Field(default=None, description="Its global mini-batch.")


def _graph_tag(value: Any) -> str:
    if isinstance(value, StageGraphBody) or (isinstance(value, dict) and "stages" in value):
        return "<stage-graph>"
    catalogue = isinstance(value, CatalogueGraphBody) or (
        isinstance(value, dict) and ("model" in value or "batch_size" in value)
    )
    return "<catalogue-graph>" if catalogue else "<layers-graph>"


GraphBody = Annotated[
    Annotated[LayersGraphBody, Tag("<layers-graph>")]
    | Annotated[CatalogueGraphBody, Tag("<catalogue-graph>")]
    | Annotated[StageGraphBody, Tag("<stage-graph>")],
    Discriminator(_graph_tag),
]

StageCount = Annotated[int, Field(ge=1, le=STAGES_MAX)]
StageLists = Annotated[list[Annotated[list[Name], Field(min_length=1)]], Field(min_length=1, max_length=STAGES_MAX)]
Degrees = Annotated[list[Degree], Field(max_length=STAGES_MAX)]


def _stages_tag(value: Any) -> str:
    return "<stage-lists>" if isinstance(value, list) else "<stage-count>"


class ParallelismBody(Body):
    """The parallelism of a job: pipeline stages, and the replicas and tensor degree of each stage."""

    stages: Annotated[
        Annotated[StageCount, Tag("<stage-count>")] | Annotated[StageLists, Tag("<stage-lists>")],
        Discriminator(_stages_tag),
    ] = Field(description="A number (the service cuts the graph) or a list of layer-name lists.")
    replicas: Annotated[Degrees, Field(min_length=1)] = Field(description="One number per stage.")
    tensor: Degrees | None = Field(default=None, description="One number per stage. Default: 1 for every stage.")
    schedule: Literal["1f1b", "interleaved", "gpipe", "zero_bubble", "pipedream", "sync"] = Field(
        default="pipedream",
        description="'pipedream' is asynchronous; the others flush once a mini-batch. 'sync' is an old name of '1f1b'.",
    )
    micro_batches: Annotated[int, Field(ge=1, le=100_000)] = 1
    virtual_stages: Annotated[int, Field(ge=1, le=STAGES_MAX)] = Field(
        default=1, description="Parts of each stage's layers that take turns; above 1 with 'interleaved' alone."
    )


class PreemptionBody(Body):
    """The warning to the program before a stop."""

    signal: Literal["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM"] = "SIGUSR1"
    grace_s: GracePeriod = 30.0


class AfterBody(Body):
    """A job that must end first, successfully or not."""

    job: JobNumber
    when: Literal["success", "any"] = "success"


def _after_tag(value: Any) -> str:
    return "<condition>" if isinstance(value, dict | AfterBody) else "<number>"


AfterEntry = Annotated[
    Annotated[JobNumber, Tag("<number>")] | Annotated[AfterBody, Tag("<condition>")], Discriminator(_after_tag)
]


class ArrayBody(Body):
    """The indices of a job array: 0 to `count` - 1, or `indices`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"count": 100, "max_running": 10}, {"indices": [3, 17, 20]}]}
    )

    count: Annotated[int, Field(ge=1, le=ELEMENTS_MAX)] | None = None
    indices: Annotated[list[ElementIndex], Field(min_length=1, max_length=ELEMENTS_MAX)] | None = Field(
        default=None, description="Distinct, in any order."
    )
    max_running: Annotated[int, Field(ge=1, le=ELEMENTS_MAX)] | None = Field(
        default=None, description="Elements that may hold GPUs at a time; null = no limit."
    )

    @property
    def elements(self) -> Sequence[int]:
        """The indices of the array's elements."""
        return range(self.count) if self.count is not None else self.indices or ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.count is None) == (self.indices is None):
            raise ValueError("must have either count or indices")
        if self.indices is not None and len(set(self.indices)) < len(self.indices):
            raise ValueError("must have each index once")
        return self


class TopologyBody(Body):
    """All GPUs within one server or one rack."""

    level: Literal["server", "rack"]
    required: bool = Field(
        default=True, description="true: the job waits for such GPUs. false: it takes other free GPUs."
    )


class VolumeBody(Body):
    """A folder or file of the server, and its path in the container."""

    source: AbsolutePath
    target: AbsolutePath
    read_only: bool = False


class JobBody(Body):
    """A job to submit."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [examples.JOB, examples.CATALOGUE_JOB, examples.PLAIN_JOB]}
    )

    name: JobName
    user: Text | None = Field(default=None, description="null = the authenticated user.")
    project: Text | None = None
    command: Annotated[list[Argument], Field(min_length=1, max_length=ARGUMENTS_MAX)] = Field(
        description="Executed directly, without a shell."
    )
    env: Annotated[dict[EnvName, Argument], Field(max_length=ENV_MAX)] = Field(default_factory=dict)
    secret_env: Annotated[list[EnvName], Field(max_length=ENV_MAX)] = Field(
        default_factory=list, description="Names in 'env' whose values are never shown again."
    )
    working_dir: AbsolutePath | None = Field(default=None, description="An absolute path on the server.")
    graph: GraphBody | None = Field(default=None, description="null = the speed is learned; 'gpus' is then required.")
    parallelism: ParallelismBody | None = None
    plan: PlanBody | None = Field(
        default=None,
        description="How the model is trained, instead of 'graph' and 'parallelism', which follow from it.",
    )
    gpus: Gpus | None = Field(default=None, description="Gang size; required unless 'parallelism' or 'plan' says it.")
    gpus_min: Gpus | None = None
    gpus_max: Gpus | None = None
    gpu_type: Name | None = None
    gpu_types: Annotated[list[Name], Field(max_length=GPU_TYPES_MAX)] = Field(
        default_factory=list,
        description="Instead of 'gpu_type': all accepted types, the preferred type first. Layer times refer to that type.",
    )
    topology: TopologyBody | None = Field(default=None, description="All GPUs within one server or rack.")
    servers: Gpus | None = Field(
        default=None,
        description="The GPUs on exactly this many servers, as many on each; it divides the number of GPUs.",
    )
    tensor_across_servers: bool = False
    declared_iterations: Annotated[int, Field(ge=1, le=ITERATIONS_MAX)] | None = None
    walltime_s: Period | None = None
    min_run_s: Duration = Field(default=0.0, description="Minimum run time of each attempt before a preemption.")
    priority: Priority = 0
    checkpoint_period_s: Period | None = Field(
        default=300.0, description="Checkpoint interval of the program; null = it cannot checkpoint."
    )
    max_retries: Annotated[int, Field(ge=0, le=1000)] = 2
    after: Annotated[list[AfterEntry], Field(max_length=AFTER_MAX)] = Field(
        default_factory=list, description="Jobs that must end first: a number (it must succeed), or with a condition."
    )
    hold: bool = False
    labels: Annotated[dict[LabelKey, Text], Field(max_length=LABELS_MAX)] = Field(default_factory=dict)
    recurrence_key: Name | None = Field(
        default=None, description="Replaces the name in matching runs of the same program."
    )
    preemption: PreemptionBody | None = None
    launch: Literal["server", "gpu"] = "server"
    array: ArrayBody | None = Field(default=None, description="Submit one job per index.")
    cpus: Cpus | None = Field(
        default=None,
        description="CPUs of the whole job. Each server gives its part by the job's GPUs there, rounded up. null = not limited.",
    )
    memory_gib: MemoryGib | None = Field(
        default=None, description="Memory of the whole job, shared over its servers as 'cpus'. null = not limited."
    )
    gpu_memory_gib: Annotated[float, Field(gt=0, le=GPU_MEMORY_GIB_MAX)] | None = Field(
        default=None, description="Minimum memory of each GPU. Servers that do not state theirs are accepted."
    )
    image: Annotated[str, Field(min_length=1, max_length=4096, pattern=IMAGE)] | None = Field(
        default=None, description="Container image in which the command runs (podman or apptainer)."
    )
    volumes: Annotated[list[VolumeBody], Field(max_length=VOLUMES_MAX)] = Field(
        default_factory=list, description="Folders and files of the server that the container sees."
    )

    @property
    def needs(self) -> list[AfterBody]:
        """The entries of ``after``, each with its condition."""
        return [AfterBody(job=entry) if isinstance(entry, int) else entry for entry in self.after]


SpecDocument = create_model(
    "SpecDocument",
    __base__=JobBody,
    __doc__="A job's specification: a body that can be submitted again.",
    env=(
        dict[str, str | None],
        Field(
            description="Secret values are null. Other values are null unless the caller is the job's user or an admin."
        ),
    ),
)


class JobsBody(Body):
    """Several jobs. All are accepted, or none."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.JOBS]})

    jobs: Annotated[list[JobBody], Field(min_length=1)]


def _submission_tag(value: Any) -> str:
    many = isinstance(value, JobsBody) or (isinstance(value, dict) and "jobs" in value)
    return "<many>" if many else "<one>"


class SubmissionBody(
    RootModel[
        Annotated[
            Annotated[JobBody, Tag("<one>")] | Annotated[JobsBody, Tag("<many>")],
            Discriminator(_submission_tag),
        ]
    ]
):
    """One job, or ``{"jobs": [...]}``."""

    model_config = ConfigDict(strict=True, frozen=True, json_schema_extra={"examples": [examples.JOB, examples.JOBS]})


class HoldBody(Body):
    """How to hold a job."""

    preempt: bool = Field(default=False, description="Also preempt a running attempt; otherwise it continues.")


class PriorityBody(Body):
    """A new priority."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": 10}]})

    priority: Priority = Field(description="Larger comes first.")


class ServerBody(Body):
    """A server to add."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.SERVER]})

    name: ServerName
    gpus: Annotated[int, Field(ge=1, le=1024)]
    gpu_type: Name = "V100"
    rack: Name = "r1"
    nic_gbps: Annotated[float, Field(gt=0, le=1e6)] = Field(default=100.0, description="Whole server, one direction.")
    intra_gbps: Annotated[float, Field(gt=0, le=1e6)] = Field(default=960.0, description="Whole server, one direction.")
    gpu_speed: Annotated[float, Field(gt=0, le=1000)] = Field(default=1.0, description="1.0 = the reference GPU.")
    gpu_memory_gib: Annotated[float, Field(gt=0, le=GPU_MEMORY_GIB_MAX)] | None = None
    cpus: Annotated[int, Field(ge=1, le=SERVER_CPUS_MAX)] | None = Field(
        default=None, description="CPUs for jobs. null = unknown, not limited."
    )
    memory_gib: Annotated[float, Field(gt=0, le=SERVER_MEMORY_GIB_MAX)] | None = Field(
        default=None, description="Memory for jobs. null = unknown, not limited."
    )


class ProgressBody(BaseModel):
    """One progress report of a training program. Other keys are ignored, so that a program may report more metrics."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        json_schema_extra={"examples": [examples.PROGRESS]},
    )

    iteration: Annotated[float, Field(ge=0, le=ITERATIONS_MAX)]
    total_iterations: Annotated[float, Field(ge=0, le=ITERATIONS_MAX)] | None = None
    checkpoint_iteration: Annotated[float, Field(ge=0, le=ITERATIONS_MAX)] | None = Field(
        default=None, description="A checkpoint of this iteration is complete on disk."
    )
    loss: float | None = Field(default=None, description="The training loss; smaller is better.")
    input_s: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Seconds that the program has waited for input since it started."
    )

    @model_validator(mode="after")
    def _checkpoint_is_behind(self) -> Self:
        if self.checkpoint_iteration is not None and self.checkpoint_iteration > self.iteration:
            raise ValueError("checkpoint_iteration must be at most iteration")
        return self


class KeyBody(Body):
    """An API key to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.KEY]})

    user: UserName = Field(description="The user of the key; added if unknown.")
    role: Literal["viewer", "submitter", "operator", "admin"]
    projects: Annotated[list[ProjectName], Field(min_length=1, max_length=PROJECTS_MAX)] | None = Field(
        default=None,
        description="Limits the key to these projects, and adds the user to them; null: all projects of the user. "
        "Operators and admins see every project.",
    )
    expires_in_s: Annotated[float, Field(ge=LIFETIME_S_MIN)] | None = Field(
        default=None, description="Default: the setting key_lifetime_s; at most key_lifetime_s_max."
    )
    note: Text = Field(default="", description="Purpose of the key.")


class UserBody(Body):
    """The state of a user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"disabled": False}]})

    disabled: bool | None = Field(
        default=None,
        description="While true, all keys of the user are refused. null: as before; a new user is enabled.",
    )


JobEventName = Literal["job.started", "job.preempted", "job.requeued", "job.succeeded", "job.failed", "job.cancelled"]


JOB_ENDS: tuple[JobEventName, ...] = ("job.succeeded", "job.failed", "job.cancelled")


class WebhookBody(Body):
    """A webhook to add: the URL, and the events that it receives."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://hooks.example.org/sooner", "events": ["job.failed"]}]}
    )

    url: Annotated[str, Field(min_length=1, max_length=URL_MAX, pattern=PRINTABLE_ASCII)] = Field(
        description="https:// or http://; private addresses need the setting webhook_private_addresses."
    )
    events: Annotated[list[JobEventName], Field(min_length=1, max_length=len(WebhookEvent))] = Field(
        default_factory=lambda: list(JOB_ENDS),
        description="Default: the three ends of a job.",
    )
    user: Name | None = Field(
        default=None, description="Only jobs of this user; without the role operator: the caller."
    )
    project: Name | None = Field(default=None, description="Only jobs of this project.")
    secret: Annotated[str, Field(min_length=16, max_length=200, pattern=PRINTABLE_ASCII)] | None = Field(
        default=None,
        description="Signs the deliveries. Default: a generated secret, which only this response contains.",
    )


class QuotaBody(Body):
    """A quota; null = no limit. A missing value becomes null."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"gpus_running_max": 16, "jobs_queued_max": 100}]})

    gpus_running_max: Annotated[int, Field(ge=0, le=GPUS_MAX)] | None = Field(
        default=None, description="GPUs that the jobs may hold at a time."
    )
    jobs_queued_max: Annotated[int, Field(ge=0, le=ID_MAX)] | None = Field(
        default=None, description="Unfinished jobs; a submission above it is refused with 429."
    )


class ReservationBody(Body):
    """A reservation of servers for a period: for a user, a project, a user's jobs in a project, or (neither) for maintenance."""

    model_config = ConfigDict(json_schema_extra={"examples": [*examples.RESERVATIONS]})

    servers: Annotated[list[Name], Field(min_length=1, max_length=SERVERS_MAX)] | None = None
    count: Annotated[int, Field(ge=1, le=SERVERS_MAX)] | None = Field(
        default=None,
        description="Instead of 'servers': this number of servers that are up, with the most free GPUs first.",
    )
    starts_at: Moment
    ends_at: Moment
    user: Name | None = None
    project: Name | None = None
    preempt: bool = Field(
        default=True, description="Preempt jobs that still run at the start; otherwise they continue."
    )
    reason: Text = ""


class QueuePartBody(Body):
    """A part of the queue: the jobs of a user or of a project; neither = the whole queue."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"project": "nlp"}]})

    user: Name | None = None
    project: Name | None = None


class PauseBody(QueuePartBody):
    """A part of the queue to pause, and the reason."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "the file server is being repaired"}, {"project": "nlp"}]}
    )

    reason: Text = Field(default="", description="Shown to users whose jobs wait.")
