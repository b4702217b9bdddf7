"""A training plan, its time and its memory in words."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument

Document = Mapping[str, Any]

_GIB = 2**30
_DEGREES = ("data", "tensor", "pipeline", "context", "expert")
PARTS = {
    "products": "matrix products",
    "experts": "products of experts",
    "memory": "reading and writing memory",
    "recompute": "recomputation",
    "launch": "starting kernels",
    "output": "logits and loss",
    "tensor": "tensor-parallel traffic",
    "expert": "traffic to experts",
    "context": "context-parallel traffic",
    "stage": "traffic between stages",
    "shard": "gathering sharded weights",
    "bubble": "pipeline bubble",
    "data": "gradient traffic",
    "optimizer": "optimizer step",
}
"""Parts of an iteration in words, where their name is not one."""


def plan_lines(job: "JobDocument") -> Iterator[tuple[str, str]]:
    """What a job's plan asks of the cluster, a line a property; nothing for a job without a plan."""
    found = job.get("plan")
    if found is None:
        return
    plan, time, memory = found["plan"], found["iteration"], found["memory"]
    on = f" on {plan['gpus']} {found['gpu_type'] or 'GPUs'}"
    yield "plan", f"{found['model'] or 'unknown model'}{on}: {plan_words(plan)}"
    if time is not None:
        unit = "tokens" if plan["sequence"] > 1 else "samples"
        speed = f"{time['tokens_per_s']:,.0f} {unit}/s"
        yield "iteration", f"{seconds_text(time['time_s'])}, {speed}, limited by {part_words(time['bottleneck'])}"
    if memory is not None:
        limit = memory["limit_bytes"]
        yield "gpu memory", gib_text(memory["peak_bytes"]) + (f" of {gib_text(limit)}" if limit is not None else "")
    for warning in found["warnings"]:
        yield "warning", warning


def plan_words(plan: Document) -> str:
    """The degrees above 1, the micro-batch, and what else sets a plan apart."""
    words = [f"{name} {plan[name]}" for name in _DEGREES if plan[name] > 1]
    if plan["virtual_stages"] > 1:
        words.append(f"{plan['virtual_stages']} virtual stages")
    words.append(f"micro-batch {plan['micro_batch']}")
    if plan["zero_stage"]:
        group = f" in groups of {plan['shard_group']}" if plan["shard_group"] else ""
        words.append(f"ZeRO-{plan['zero_stage']}{group}")
    if plan["recompute"] != "none":
        words.append(f"{plan['recompute']} recomputation")
    return ", ".join(words)


def part_words(part: str) -> str:
    return PARTS.get(part, part)


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def gib_text(size: float) -> str:
    return f"{size / _GIB:,.1f} GiB"
