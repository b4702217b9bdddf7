"""The training plan of a job: in its body, and as it is answered."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from typing_extensions import TypedDict

from service.wire.base import NO_NUL, STAGES_MAX, Body, Name

COUNT_MAX = 10**9
"""Limit of every count of a plan and of a model's shape."""

PARAMETERS_MAX = 10**15
LAYERS_MAX = 10_000
COMMAND_MAX = 65_536

Count = Annotated[int, Field(ge=1, le=COUNT_MAX)]
CountOrNone = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Layers = Annotated[int, Field(ge=1, le=LAYERS_MAX)]
LayersOrNone = Annotated[int, Field(ge=0, le=LAYERS_MAX)]
Command = Annotated[str, Field(min_length=1, max_length=COMMAND_MAX, pattern=NO_NUL)]


class LatentAttentionBody(Body):
    """Multi-head latent attention: ranks and head dimensions."""

    query_rank: CountOrNone
    key_value_rank: Count
    nope_dim: Count
    rope_dim: CountOrNone
    value_dim: Count


class ExpertsBody(Body):
    """A token uses `top_k` of `count` experts with `ffn` units each, and the shared `shared_ffn` units."""

    count: Count
    top_k: Count
    ffn: Count
    shared_ffn: CountOrNone = 0

    @model_validator(mode="after")
    def _has_the_used_ones(self) -> Self:
        if self.top_k > self.count:
            raise ValueError(f"top_k must be at most count {self.count} (got {self.top_k})")
        return self


class TransformerShapeBody(Body):
    """The shape of a transformer, as `sooner job spec` prints it."""

    form: Literal["transformer"]
    name: Name
    layers: Layers
    hidden: Count
    ffn: CountOrNone
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocabulary: Count
    gated: bool = True
    attention: Literal["causal", "full"] = "causal"
    latent: LatentAttentionBody | None = None
    window: CountOrNone = 0
    windowed_layers: LayersOrNone = 0
    experts: ExpertsBody | None = None
    dense_layers: LayersOrNone = 0
    tied: bool = False

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads {self.heads} (got {self.kv_heads})")
        for name in ("windowed_layers", "dense_layers"):
            if getattr(self, name) > self.layers:
                raise ValueError(f"{name} must be at most layers {self.layers} (got {getattr(self, name)})")
        return self


class CountedShapeBody(Body):
    """A model of other layers, by its counts, as `sooner job spec` prints it. `flops`: training one sample."""

    form: Literal["counted"]
    name: Name
    kind: Name
    layers: Layers
    hidden: CountOrNone
    parameters: Annotated[int, Field(ge=1, le=PARAMETERS_MAX)]
    flops: Annotated[float, Field(gt=0, le=1e24)]
    activations: Annotated[int, Field(ge=0, le=PARAMETERS_MAX)] = 0


def _model_tag(value: Any) -> str:
    if isinstance(value, str):
        return "<name>"
    if isinstance(value, TransformerShapeBody) or (isinstance(value, dict) and value.get("form") == "transformer"):
        return "<transformer>"
    counted = isinstance(value, CountedShapeBody) or (isinstance(value, dict) and "form" in value)
    return "<counted>" if counted else "<config>"


class PlanBody(Body):
    """How a model is trained: the fields of a plan, or what a launcher is given, with such fields in addition.

    At most one of `megatron`, `deepspeed`, `accelerate` and `torchrun`. No file that they name is opened.
    """

    model: (
        Annotated[
            Annotated[Name, Tag("<name>")]
            | Annotated[TransformerShapeBody, Tag("<transformer>")]
            | Annotated[CountedShapeBody, Tag("<counted>")]
            | Annotated[dict[str, Any], Tag("<config>")],
            Discriminator(_model_tag),
        ]
        | None
    ) = Field(
        default=None,
        description="A name of the catalogue of models, or a Hugging Face config.json. null: that of the Megatron arguments, "
        "or no prediction of time and memory.",
    )
    megatron: Command | None = Field(default=None, description="Arguments of Megatron-LM, or of Megatron-Bridge.")
    deepspeed: dict[str, Any] | None = Field(default=None, description="The configuration of DeepSpeed.")
    accelerate: dict[str, Any] | None = Field(default=None, description="The file of `accelerate config`.")
    torchrun: Command | None = Field(default=None, description="A command of torchrun, deepspeed or accelerate launch.")
    data: Count | None = Field(default=None, description="Default: the GPUs divided by the other degrees.")
    tensor: Count | None = None
    pipeline: Annotated[int, Field(ge=1, le=STAGES_MAX)] | None = None
    virtual_stages: Count | None = None
    context: Count | None = None
    expert: Count | None = None
    expert_tensor: Count | None = None
    sequence_parallel: bool | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = Field(default=None, description="FSDP is 3.")
    shard_group: CountOrNone | None = Field(default=None, description="0 = all data and context ranks.")
    micro_batch: Count | None = None
    global_batch: Count | None = None
    sequence: Count | None = Field(default=None, description="Tokens of a sample; 1 for images.")
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"] | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    schedule: Literal["1f1b", "interleaved", "gpipe", "zero_bubble", "pipedream"] | None = None
    fp32_gradients: bool | None = None
    flash_attention: bool | None = None
    dropout: bool | None = None
    adapters: bool | None = None
    graphed: bool | None = None


class PlanTimeDocument(TypedDict):
    """The predicted iteration."""

    time_s: Annotated[float, Field(description="On the best placement of the empty cluster.")]
    bottleneck: Annotated[str, Field(description="The largest part.")]
    tokens_per_s: Annotated[float, Field(description="Samples per second where 'sequence' is 1.")]
    parts_s: Annotated[dict[str, float], Field(description="On servers that hold the ranks in their order.")]


class PlanMemoryDocument(TypedDict):
    """The predicted memory of the GPU that needs most."""

    peak_bytes: int
    limit_bytes: Annotated[int | None, Field(description="Of a GPU of the type; null where that is not known.")]
    stage: int
    parts_bytes: dict[str, int]


class JobPlanDocument(TypedDict):
    """A job's training plan, and what it asks of the cluster."""

    plan: dict[str, Any]
    model: str | None
    gpu_type: Annotated[str | None, Field(description="The type that time and memory are those of.")]
    iteration: PlanTimeDocument | None
    memory: PlanMemoryDocument | None
    warnings: Annotated[
        list[str],
        Field(description="What is not predicted. At submission also what the plan leaves out of its source."),
    ]
