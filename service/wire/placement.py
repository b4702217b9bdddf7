"""Where the stages and replicas of a job are, what they send to one another, and what an iteration takes there."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import AttemptState
from policies.model.placement import Span


class PlacedServerDocument(TypedDict):
    """The GPUs of the attempt on one server."""

    server: str
    rack: str
    gpu_type: str
    gpus: int
    gpu_ids: list[int]


class PlacedGpuDocument(TypedDict):
    """One GPU. `server` is a position in `servers`."""

    server: int
    gpu_id: int
    rank: int


class PlacedReplicaDocument(TypedDict):
    """One data-parallel replica of a stage: the GPUs of its tensor group."""

    replica: int
    gpus: list[PlacedGpuDocument]


class PlacedStageDocument(TypedDict):
    """A pipeline stage. The seconds are those of its slowest replica; null where no stage graph is known."""

    stage: int
    name: str
    tensor: Annotated[int, Field(description="GPUs of a replica.")]
    replicas: list[PlacedReplicaDocument]
    compute_s: float | None
    tensor_s: float | None
    activations_s: float | None
    all_reduce_s: float | None


class EdgeDocument(TypedDict):
    """Traffic of one iteration. `activations`: between two stages, gradients included; `all_reduce`: of the replicas of a
    stage; `tensor`: inside the tensor groups of a stage.
    """

    kind: Literal["activations", "all_reduce", "tensor"]
    source: Annotated[int, Field(description="A stage.")]
    target: Annotated[int, Field(description="A stage; the source for traffic inside a stage.")]
    total_bytes: Annotated[float, Field(description="What all its GPUs send in an iteration.")]
    span: Annotated[
        Span, Field(description="The widest link that it crosses: inside a server, a rack, or the cluster.")
    ]
    seconds: Annotated[float, Field(description="What it adds to the iteration of the GPUs that it takes longest.")]


class IterationPartsDocument(TypedDict):
    """What `iteration_s` is made of. The first three are of the slowest stage; the parts add up to it."""

    compute_s: float
    tensor_s: float
    activations_s: float
    all_reduce_s: float
    bubble_s: Annotated[float, Field(description="The pipeline fills and drains.")]


class BottleneckDocument(TypedDict):
    """The largest part of an iteration, and where it arises."""

    part: Literal["compute", "tensor", "activations", "all_reduce", "bubble"]
    seconds: float
    stage: int
    server: Annotated[
        str | None, Field(description="null for an all-reduce, in which all servers of the stage take part.")
    ]


class PlacementDocument(TypedDict):
    """The placement of a job's open attempt, else of its newest one."""

    job_id: int
    attempt: Annotated[str | None, Field(description="null before the first attempt.")]
    state: AttemptState | None
    span: Annotated[Span | None, Field(description="How far apart its GPUs are.")]
    servers: list[PlacedServerDocument]
    stages: Annotated[list[PlacedStageDocument], Field(description="Empty for a job without stages.")]
    edges: Annotated[list[EdgeDocument], Field(description="Empty where no stage graph is known.")]
    iteration_s: Annotated[
        float | None,
        Field(
            description="Predicted seconds of an iteration here: the model's, times `correction`. null without a graph."
        ),
    ]
    correction: Annotated[
        float | None, Field(description="Measured over modelled seconds on this GPU type and span, as far as is known.")
    ]
    parts: Annotated[IterationPartsDocument | None, Field(description="With the correction.")]
    bottleneck: BottleneckDocument | None
    reason: Annotated[str | None, Field(description="Why stages or seconds are missing.")]
