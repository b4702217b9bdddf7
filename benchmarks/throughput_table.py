"""Reads tables of published throughputs, models and GPUs: each row becomes a shape, a plan, a GPU, links and a measured time."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path

from policies.model.plan import PipelineSchedule, PlanError, Precision, Recompute, TrainingPlan
from policies.model.shape import Attention, CountedShape, Experts, LatentAttention, ModelShape, TransformerShape
from policies.training.hardware import GpuModel, Links

USUAL_TOKENS = 4 * 2**20
"""Tokens of a global batch where a row does not say."""

PADDED_ABOVE = 128
FILLED_SHARE = 0.65
"""Share of the positions of a bidirectional model's longer sequences that hold a token; about half of the corpus of BERT's second
phase is padding. Fitted like the constants, but a property of that data, so that the model does not have it."""

Row = Mapping[str, str]


class CannotJudge(ValueError):
    """A row whose time cannot be predicted; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table. An iteration gives ``count`` tokens of one GPU, or images of all; ``speed`` is measured, a second."""

    row: Row
    kind: str
    shape: ModelShape
    plan: TrainingPlan
    gpu: GpuModel
    links: Links
    count: float
    speed: float

    @property
    def iteration_s(self) -> float:
        return self.count / self.speed


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _number(row: Row, key: str, default: float = 0.0) -> float:
    text = row.get(key) or ""
    try:
        return float(text) if text else default
    except ValueError:
        raise CannotJudge(f"{key} is not a number: {text!r}") from None


def _whole(row: Row, key: str, default: int = 0) -> int:
    return int(_number(row, key, default))


def gpu_model(row: Row) -> GpuModel:
    """A row of ``gpus.csv``. A GPU without NVLink is a domain of one."""
    tera, giga = 1e12, 1e9
    for key in ("bf16_tflops_dense", "fp32_tflops", "hbm_gb_s", "typical_nic_gbps_per_gpu"):
        if not _number(row, key) > 0:
            raise CannotJudge(f"its GPU has no {key}")
    nic_bytes_s = _number(row, "typical_nic_gbps_per_gpu") / 8 * giga
    return GpuModel(
        name=row["gpu"], half_flops=_number(row, "bf16_tflops_dense") * tera,
        fp8_flops=_number(row, "fp8_tflops_dense") * tera, fp4_flops=_number(row, "fp4_tflops_dense") * tera,
        tf32_flops=_number(row, "tf32_tflops_dense") * tera, fp32_flops=_number(row, "fp32_tflops") * tera,
        memory_bytes=int(_number(row, "memory_gib") * 2**30), hbm_bytes_s=_number(row, "hbm_gb_s") * giga,
        nvlink_bytes_s=_number(row, "nvlink_gb_s_bidir") / 2 * giga or nic_bytes_s,
        nvlink_domain=max(1, _whole(row, "nvlink_domain", 1)), nic_bytes_s=nic_bytes_s,
    )  # fmt: skip


def model_shape(row: Row, kind: str) -> ModelShape:
    """A row of ``models.csv``; ``kind`` is the class of its rows in the table."""
    layers, hidden = _whole(row, "layers"), _whole(row, "hidden")
    if not layers or not hidden:
        flops = _number(row, "published_gflop_per_token") * 1e9
        if not flops:
            raise CannotJudge("the model has neither a shape nor published operations")
        kind = "cnn" if kind == "cnn" else "hybrid"
        return CountedShape(
            name=row["model"], kind=kind, layers=layers, hidden=hidden, flops=flops,
            parameters=round(_number(row, "params_b") * 1e9),
        )  # fmt: skip
    attention = row.get("attention") or ""
    if "transformer-xl" in attention:
        raise CannotJudge("recurrence over segments and an adaptive softmax are not modelled")
    experts = None
    if _whole(row, "experts"):
        experts = Experts(
            count=_whole(row, "experts"), top_k=_whole(row, "top_k"), ffn=_whole(row, "moe_ffn"),
            shared_ffn=_whole(row, "shared_expert_ffn"),
        )  # fmt: skip
    window, windowed = 0, 0
    if "sliding window" in attention:
        window = int(attention.split("sliding window")[1].split()[0])
        windowed = layers // 2 if "alternating" in attention else layers
    return TransformerShape(
        name=row["model"], layers=layers, hidden=hidden, ffn=_whole(row, "ffn"), heads=_whole(row, "heads"),
        kv_heads=_whole(row, "kv_heads"), head_dim=_whole(row, "head_dim"), vocabulary=_whole(row, "vocab"),
        gated=_whole(row, "gated_mlp") == 1, attention=Attention.FULL if "bidirectional" in attention else Attention.CAUSAL,
        latent=_latent(attention), window=window, windowed_layers=windowed, experts=experts,
        dense_layers=_whole(row, "dense_layers") if experts else 0,
    )  # fmt: skip


def _latent(attention: str) -> LatentAttention | None:
    """``mla q_lora 1536 kv_lora 512 nope 128 rope 64 v 128``."""
    words = attention.split()
    if not words or words[0] != "mla":
        return None
    values = {name: int(value) for name, value in zip(words[1::2], words[2::2], strict=True)}
    return LatentAttention(
        query_rank=values.get("q_lora", 0), key_value_rank=values["kv_lora"], nope_dim=values["nope"],
        rope_dim=values["rope"], value_dim=values["v"],
    )  # fmt: skip


_PRECISIONS = {"nvfp4": Precision.FP4, "mxfp4": Precision.FP4, "fp4": Precision.FP4}


def _precision(text: str) -> Precision:
    if text.startswith("fp8"):
        return Precision.FP8
    try:
        return _PRECISIONS.get(text) or Precision(text)
    except ValueError:
        raise CannotJudge(f"precision {text!r} is not known") from None


def _recompute(text: str) -> Recompute:
    if text.startswith("full"):
        return Recompute.FULL
    return Recompute.SELECTIVE if "core_attn" in text else Recompute.NONE


def plan_of(row: Row, shape: ModelShape, gpu: GpuModel) -> TrainingPlan:
    """The plan of a row. What the row leaves open is set to what its publisher's software does by default."""
    gpus = _whole(row, "gpus")
    tensor, pipeline, context = (max(1, _whole(row, key, 1)) for key in ("tp", "pp", "cp"))
    if gpus % (tensor * pipeline * context):
        raise CannotJudge("its GPUs are not a multiple of its degrees")
    data = gpus // (tensor * pipeline * context)
    precision = _precision(row["precision"])
    modern = precision in (Precision.BF16, Precision.FP8, Precision.FP4)
    sequence = 1 if isinstance(shape, CountedShape) and shape.kind == "cnn" else _whole(row, "sequence", 1)
    batch = _whole(row, "global_batch") or max(1, USUAL_TOKENS // (sequence * data)) * data
    micro = _whole(row, "micro_batch") or _usual_micro_batch(batch // data, tensor * pipeline)
    micro = min(micro, max(1, batch // data))
    batch = max(batch // (micro * data), 1) * micro * data
    virtual = _whole(row, "vp") or (_usual_virtual(shape.layers, pipeline) if modern else 1)
    virtual = virtual if pipeline > 1 else 1
    fsdp = _whole(row, "fsdp")
    recompute = _recompute(row.get("recompute") or "")
    expert_tensor = max(1, _whole(row, "etp", 1))
    expert = gcd(max(1, _whole(row, "ep", 1)), data * context * tensor // expert_tensor)
    try:
        return TrainingPlan(
            data=data, tensor=tensor, pipeline=pipeline, context=context, virtual_stages=virtual,
            expert=expert, expert_tensor=expert_tensor,
            sequence_parallel=tensor > 1 and (modern or "sequence parallel" in (row.get("recompute") or "")),
            zero_stage=3 if fsdp else 1 if modern else 0,
            shard_group=gcd(fsdp, data * context) if fsdp else 0,
            micro_batch=micro, global_batch=batch, sequence=sequence,
            precision=precision, recompute=recompute,
            schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.ONE_F_ONE_B,
            flash_attention=modern, adapters=(row.get("task") or "") == "lora",
            graphed=_graphed(row, gpu, precision),
        )  # fmt: skip
    except PlanError as error:
        raise CannotJudge(f"its plan contradicts itself: {error}") from error


def _graphed(row: Row, gpu: GpuModel, precision: Precision) -> bool:
    """Whether the publisher captured the iteration: Megatron-Bridge with experts in narrow formats since 26.06.

    Its release notes (0.5.1) name the recipes for Blackwell; those of hybrid models are not among them.
    """
    release = re.match(r"\d\d\.\d\d", row.get("release") or "")
    recent = release is not None and release[0] >= "26.06"
    narrow = precision in (Precision.FP8, Precision.FP4)
    return recent and narrow and gpu.fp4_flops > 0 and row.get("class") == "moe"


def _usual_micro_batch(share: int, ways: int) -> int:
    """Where a row does not say: one sample where the model is divided, else up to four."""
    if ways > 1:
        return 1
    return max(size for size in (1, 2, 4) if share % size == 0 or size == 1)


def _usual_virtual(layers: int, pipeline: int) -> int:
    """Where a row does not say: as many virtual stages as the layers divide into, up to eight."""
    return max(stages for stages in range(1, 9) if layers % (pipeline * stages) == 0 or stages == 1)


def measured(row: Row, models: Mapping[str, Row], gpus: Mapping[str, Row]) -> Measured:
    """A row as the model needs it. Raises :class:`CannotJudge`."""
    name, gpu_name = row["model"], row["gpu"]
    if name not in models:
        raise CannotJudge("its model is not in the table of models")
    if gpu_name not in gpus:
        raise CannotJudge("its GPU is not in the table of GPUs")
    kind = row.get("class") or "dense"
    shape, gpu = model_shape(models[name], kind), gpu_model(gpus[gpu_name])
    plan = plan_of(row, shape, gpu)
    links = Links.of(gpu)
    if _whole(row, "nic_gbps_per_gpu"):
        links = replace(links, beyond_bytes_s=_number(row, "nic_gbps_per_gpu") / 8 * 1e9)
    speed, count = _number(row, "tokens_per_s_per_gpu"), plan.tokens / plan.gpus
    if not speed:
        speed, count = _number(row, "samples_per_s"), float(plan.global_batch)
    if not speed:
        raise CannotJudge("it has no measured speed")
    return Measured(row, kind, shape, _without_padding(shape, plan), gpu, links, count, speed)


def _without_padding(shape: ModelShape, plan: TrainingPlan) -> TrainingPlan:
    """Publishers of bidirectional models count padding as tokens and remove it before the layers."""
    if (
        not isinstance(shape, TransformerShape)
        or shape.attention is not Attention.FULL
        or plan.sequence <= PADDED_ABOVE
    ):
        return plan
    return replace(plan, sequence=round(FILLED_SHARE * plan.sequence))


def load(table: Path, models: Path, gpus: Path) -> tuple[list[Measured], list[tuple[Row, str]]]:
    """The rows that can be judged, and those that cannot with the reason."""
    model_rows = {row["model"]: row for row in read(models)}
    gpu_rows = {row["gpu"]: row for row in read(gpus)}
    judged, skipped = [], []
    for row in read(table):
        try:
            judged.append(measured(row, model_rows, gpu_rows))
        except CannotJudge as error:
            skipped.append((row, str(error)))
    return judged, skipped


def by_reason(skipped: Iterable[tuple[Row, str]]) -> dict[str, int]:
    """Rows that cannot be judged, by reason."""
    return dict(Counter(reason for _, reason in skipped))
