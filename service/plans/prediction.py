"""What a plan asks of GPUs, as the document ``sooner.plan/1``: the plan with the origin of each value, and its memory."""

from dataclasses import asdict
from typing import Any

from policies.model.plan import PlanError, TrainingPlan
from policies.training.hardware import GpuModel
from policies.training.memory import MemoryBill, memory_bill
from policies.training.operations import parameters
from service.plans.reading import Reading
from service.plans.values import ReadError


def predict(reading: Reading, gpu: GpuModel) -> dict[str, Any]:
    """The document of a reading on a GPU type. Raises :class:`ReadError` without a model, and for a plan that it refuses."""
    shape = reading.shape
    if shape is None:
        raise ReadError("model", "is not in the configuration; add --model with a catalogue name or a config.json")
    try:
        bill = memory_bill(shape, reading.plan)
    except PlanError as error:
        raise ReadError(error.field, str(error).partition(": ")[2]) from None
    return {
        "schema": "sooner.plan/1",
        "model": {"name": shape.name, "parameters": parameters(shape).total},
        "gpu_type": gpu.name,
        "gpus": reading.plan.gpus,
        "plan": plan_document(reading.plan),
        "sources": [asdict(source) for source in reading.sources],
        "warnings": list(reading.warnings),
        "memory": memory_document(bill, gpu),
    }


def plan_document(plan: TrainingPlan) -> dict[str, Any]:
    """All fields of a plan, and the micro-batches that follow from them."""
    return {**asdict(plan), "micro_batches": plan.micro_batches}


def memory_document(bill: MemoryBill, gpu: GpuModel) -> dict[str, Any]:
    """The stage that needs most, part by part."""
    worst = bill.worst
    return {
        "fits": bill.fits(gpu),
        "limit_bytes": gpu.memory_bytes,
        "peak_bytes": round(worst.total),
        "stage": worst.stage,
        "parts_bytes": {name: round(size) for name, size in worst.parts().items()},
    }
