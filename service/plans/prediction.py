"""What a plan asks of GPUs, as the document ``sooner.plan/1``: time, memory, and the other plans on the same GPUs."""

from dataclasses import asdict, replace
from typing import Any

from policies.model.plan import PlanError, Precision, TrainingPlan
from policies.model.shape import ModelShape
from policies.training.hardware import GpuModel, Links
from policies.training.iteration import iteration_time
from policies.training.memory import MemoryBill
from policies.training.nearest import FittingPlan, PlanDoesNotFit, require_fit
from policies.training.operations import parameters
from policies.training.ranking import RankedPlan, rank_plans
from service.plans.cluster import Servers
from service.plans.reading import Draft, Given, Model, Reading
from service.plans.values import ReadError

ALTERNATIVES_MAX = 10
"""Plans of the ranking that the document holds."""

SERVER_GPUS_MAX = 16
"""Above it an NVLink domain spans servers, and the GPUs of a server do not limit it."""

BILLION = 1e9
USUAL_TOKENS = 4 * 2**20
"""Tokens of an iteration where nothing says them, at most :data:`USUAL_SAMPLES` a GPU."""

USUAL_SAMPLES = 32


def unplanned(given: Given, model: Model, gpus_max: int | None = None) -> tuple[int, Reading]:
    """GPUs, and what a ranking without a configuration keeps: batch, sequence, precision. Raises :class:`ReadError`.

    ``gpus_max``: the GPUs of a cluster file, all of which are used where no number is given.
    """
    if given.micro_batch is not None:
        problem = (
            f"must be left out without a configuration: a ranking chooses that of each plan (got {given.micro_batch})"
        )
        raise ReadError("--micro-batch", problem)
    draft = Draft(given, model)
    if given.nodes is None:
        draft.set("gpus", gpus_max, "all of this type in the cluster file")
    gpus = draft.gpus()
    if draft.get("sequence") is None:
        raise ReadError("sequence", f"is not known for {model.shape.name}; add --sequence TOKENS")
    if draft.get("precision") is None:
        draft.set("precision", Precision.BF16, "assumed")
    if draft.get("global_batch") is None:
        each = min(max(round(USUAL_TOKENS / draft.get("sequence") / gpus), 1), USUAL_SAMPLES)
        draft.set("global_batch", gpus * each, f"assumed: {each} a GPU")
    fields = ("global_batch", "sequence", "precision", "dropout")
    plan = TrainingPlan(**{name: draft.get(name) for name in fields if draft.get(name) is not None})
    return gpus, replace(draft.reading(plan), plan=plan)


def rank(given: Given, model: Model, servers: Servers) -> dict[str, Any]:
    """The document of a model without a configuration: the ranking alone. Raises :class:`ReadError`."""
    gpus, reading = unplanned(given, model, servers.gpus)
    _check_number(gpus, servers)
    own: dict[str, Any] = {"plan": None, "iteration": None, "memory": None, "nearest": []}
    return _document(reading, model.shape, gpus, servers, own)


def predict(reading: Reading, servers: Servers) -> dict[str, Any]:
    """The document of a configuration on these servers.

    Raises :class:`ReadError` without a model, for more GPUs than there are, and for a plan that the model refuses.
    """
    shape, plan = reading.shape, reading.plan
    if shape is None:
        raise ReadError("model", "is not in the configuration; add --model with a catalogue name or a config.json")
    _check_number(plan.gpus, servers)
    try:
        own = _own(shape, plan, servers.gpu, within(servers.links, reading.gpus_per_node))
    except PlanError as error:
        raise ReadError(error.field, str(error).partition(": ")[2]) from None
    return _document(reading, shape, plan.gpus, servers, own)


def within(links: Links, gpus_per_node: int) -> Links:
    """The links with NVLink among the GPUs of a server alone, where their number is said."""
    if gpus_per_node and links.domain <= SERVER_GPUS_MAX:
        return replace(links, domain=min(links.domain, gpus_per_node))
    return links


def _check_number(gpus: int, servers: Servers) -> None:
    if servers.gpus is not None and gpus > servers.gpus:
        raise ReadError("gpus", f"must be at most {servers.gpus}, those of this type in the cluster file (got {gpus})")


def _document(reading: Reading, shape: ModelShape, gpus: int, servers: Servers, own: dict[str, Any]) -> dict[str, Any]:
    ranked = rank_plans(shape, reading.plan, gpus, servers.gpu, within(servers.links, reading.gpus_per_node))
    return {
        "schema": "sooner.plan/1",
        "model": {"name": shape.name, "parameters": parameters(shape).total},
        "gpu_type": servers.gpu.name,
        "gpus": gpus,
        "unit": "tokens" if reading.plan.sequence > 1 else "samples",
        "sources": [asdict(source) for source in reading.sources],
        "warnings": [*reading.warnings, *_lacking(reading.plan, servers.gpu), *filter(None, [servers.problem])],
        **own,
        "alternatives": [_alternative(each) for each in ranked[:ALTERNATIVES_MAX]],
    }


def _lacking(plan: TrainingPlan, gpu: GpuModel) -> list[str]:
    """What to say of a format narrower than the GPU's: libraries refuse it, while tf32 becomes fp32 without a word."""
    timed = gpu.format_of(plan.precision)
    if timed is plan.precision or plan.precision is Precision.TF32:
        return []
    return [f"precision {plan.precision}: {gpu.name} has no such matrix units; timed in {timed}"]


def _own(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links) -> dict[str, Any]:
    """Of the plan that was read: itself, its time, its memory, and the nearest plans where it does not fit."""
    nearest: tuple[FittingPlan, ...] = ()
    fits = True
    try:
        bill = require_fit(shape, plan, gpu, links)
    except PlanDoesNotFit as refusal:
        bill, nearest, fits = refusal.bill, refusal.nearest, False
    found = RankedPlan(plan, iteration_time(shape, plan, gpu, links), bill)
    return {
        "plan": plan_document(plan),
        "iteration": {
            "time_s": found.time.total_s,
            "parts_s": found.time.parts,
            "bottleneck": found.limit,
            "tokens_per_s": found.tokens_per_s,
            "tokens_per_s_per_gpu": found.tokens_per_s / plan.gpus,
            "gpu_hours_per_billion": found.gpu_hours(BILLION),
        },
        "memory": _memory(bill, gpu, fits),
        "nearest": [_near(each) for each in nearest],
    }


def plan_document(plan: TrainingPlan) -> dict[str, Any]:
    """All fields of a plan, and what follows from them."""
    return {**asdict(plan), "gpus": plan.gpus, "micro_batches": plan.micro_batches}


def _memory(bill: MemoryBill, gpu: GpuModel, fits: bool) -> dict[str, Any]:
    """The stage that needs most, part by part."""
    worst = bill.worst
    return {
        "fits": fits,
        "limit_bytes": gpu.memory_bytes,
        "peak_bytes": round(worst.total),
        "stage": worst.stage,
        "parts_bytes": {name: round(size) for name, size in worst.parts().items()},
    }


def _near(found: FittingPlan) -> dict[str, Any]:
    return {
        "plan": plan_document(found.plan),
        "changes": found.changes,
        "time_s": found.iteration_s,
        "peak_bytes": round(found.peak),
    }


def _alternative(found: RankedPlan) -> dict[str, Any]:
    return {
        "plan": plan_document(found.plan),
        "time_s": found.time.total_s,
        "tokens_per_s": found.tokens_per_s,
        "gpu_hours_per_billion": found.gpu_hours(BILLION),
        "peak_bytes": round(found.bill.peak),
        "limit": found.limit,
    }
