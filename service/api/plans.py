"""The training plan of a body: read, checked against the memory of the GPUs, and answered with what it asks of the cluster."""

import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from policies.catalogue.shapes import SHAPES
from policies.model.cluster import Cluster
from policies.model.graph import StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import ModelShape, TransformerShape
from policies.suggestion import did_you_mean
from policies.throughput import NeverFits, times_of
from policies.training.gpu_names import with_types_of
from policies.training.hardware import GpuModel, Links
from policies.training.iteration import IterationTime, iteration_time
from policies.training.memory import MemoryBill, memory_bill
from policies.training.nearest import TOLERANCE, FittingPlan, PlanDoesNotFit, nearest_plans
from policies.training.stages import stages_of
from service.api.faults import is_tag, message_of
from service.plans.accelerate import read_accelerate
from service.plans.cluster import AcceptedType, accepted_types, kinds, links_on
from service.plans.deepspeed import read_deepspeed
from service.plans.huggingface import huggingface_model
from service.plans.megatron import read_megatron
from service.plans.prediction import plan_document
from service.plans.reading import Draft, Given, Model, Reading
from service.plans.torchrun import read_torchrun
from service.plans.values import ReadError
from service.wire.plans import (
    CountedShapeBody,
    JobPlanDocument,
    PlanBody,
    PlanMemoryDocument,
    PlanTimeDocument,
    TransformerShapeBody,
)

SEARCHES_MAX = 3
"""Plans of one request for which the nearest that fit are searched: a tenth of a second each."""

SEARCHED_STAGES_MAX = 6_000
"""Pipeline stages whose memory is counted in one search: a third of a second. Published plans need fewer."""

READERS = ("megatron", "deepspeed", "accelerate", "torchrun")
_KINDS = {"precision": Precision, "recompute": Recompute, "schedule": PipelineSchedule}
_PLAN_FIELDS = tuple(field.name for field in fields(TrainingPlan))
_DEGREES = ("data", "tensor", "pipeline", "context")
_GIVEN = ("micro_batch", "global_batch", "sequence", "precision")
_OPTION = re.compile(
    r"--(gpus-per-node|micro-batch|global-batch|sequence|precision|gpus|nodes|model)\b(?!-)(?: [A-Z]+\b)?"
)
_SHAPE: TypeAdapter[ModelShape] = TypeAdapter(ModelShape)


class PlanFault(ValueError):
    """A plan that cannot be read. ``path``: the key of the body at fault."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.path = path


def read_plan(body: PlanBody, gpus: int | None) -> Reading:
    """The plan and the shape of its model. Opens no file. Raises :class:`PlanFault`."""
    given = [name for name in READERS if getattr(body, name) is not None]
    if len(given) > 1:
        raise PlanFault(f"must be left out beside {given[0]}", "plan", given[1])
    model = _model(body)
    reader = given[0] if given else None
    try:
        reading = _read(body, reader, _beside(body, gpus, reader), model)
    except ReadError as error:
        raise _fault(error, body, reader) from None
    _check_limits(body, reading, reader)
    if gpus is not None and gpus != reading.plan.gpus:
        raise PlanFault(f"must be {_product(reading.plan)}, the GPUs of the plan (got {gpus})", "gpus")
    return reading


def _check_limits(body: PlanBody, reading: Reading, reader: str | None) -> None:
    """Hold what follows from several values to the limits of a body: the job's spec is one."""
    try:
        PlanBody.model_validate(_body_of(reading.plan, reading.shape))
    except ValidationError as error:
        fault = error.errors()[0]
        key, *below = [str(part) for part in fault["loc"] if not is_tag(part)]
        at = reader if reader is not None and getattr(body, key) is None else key
        shown = ".".join([key, *below] if at == reader else below)
        raise PlanFault(f"{shown}: {message_of(fault)}" if shown else message_of(fault), "plan", at) from None


def _product(plan: TrainingPlan) -> str:
    return " x ".join(f"{name} {getattr(plan, name)}" for name in _DEGREES) + f" = {plan.gpus}"


def _read(body: PlanBody, reader: str | None, given: Given, model: Model | None) -> Reading:
    match reader:
        case "megatron":
            return read_megatron(str(body.megatron), given, model)
        case "deepspeed":
            return read_deepspeed(body.deepspeed or {}, given, model)
        case "accelerate":
            return read_accelerate(body.accelerate or {}, given, model)
        case "torchrun":
            return read_torchrun(str(body.torchrun), given, model)
        case _:
            return Draft(given, model).finish()


def _beside(body: PlanBody, gpus: int | None, reader: str | None) -> Given:
    """The fields of the body. Without a reader and without GPUs these are the product of the degrees."""
    said: dict[str, Any] = {}
    for name in _PLAN_FIELDS:
        value = getattr(body, name)
        if value is not None:
            said[name] = _KINDS[name](value) if name in _KINDS else value
    if reader is None and gpus is None:
        gpus = math.prod(said.get(name, 1) for name in _DEGREES)
    if reader is None:
        said = {"precision": Precision.BF16, **said}
    apart = {name: said.pop(name) for name in _GIVEN if name in said}
    return Given(gpus=gpus, fields=said, **apart)


def _model(body: PlanBody) -> Model | None:
    match body.model:
        case None:
            return None
        case str() as name:
            if name not in SHAPES:
                known = ", ".join(SHAPES)
                raise PlanFault(
                    f"must be one of {known}{did_you_mean(name, SHAPES)}, or a config.json", "plan", "model"
                )
            return Model(SHAPES[name].shape, SHAPES[name].sequence)
        case TransformerShapeBody() | CountedShapeBody() as shape:
            return Model(_SHAPE.validate_python(_shape_fields(shape)))
        case content:
            try:
                return huggingface_model(content)
            except ReadError as error:
                raise PlanFault(str(error), "plan", "model") from None


def _shape_fields(shape: TransformerShapeBody | CountedShapeBody) -> dict[str, Any]:
    return shape.model_dump(exclude={"form"})


def _fault(error: ReadError, body: PlanBody, reader: str | None) -> PlanFault:
    """The fault where its key is; one of a launcher's configuration with the launcher's key."""
    problem = _OPTION.sub(lambda found: found[1].replace("-", "_"), error.problem)
    if error.key in ("gpus", "--gpus"):
        return PlanFault(problem, "gpus")
    if error.key in _PLAN_FIELDS and (reader is None or getattr(body, error.key) is not None):
        return PlanFault(problem, "plan", error.key)
    return PlanFault(f"{error.key:.100}: {problem}", "plan", *([reader] if reader else []))


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from a plan on a cluster. ``types``: those that the job takes, without those whose memory is too small;
    ``basis``: the type that its times are for. ``gpu_memory_gib``: what each GPU must have, where some servers of these types
    state less.
    """

    types: tuple[str, ...]
    left_out: tuple[str, ...]
    basis: AcceptedType | None
    graph: StageGraph | None = None
    parallelism: ParallelismConfig | None = None
    gpu_memory_gib: float | None = None


def derive(plan: TrainingPlan, shape: ModelShape | None, gpu_types: Sequence[str], cluster: Cluster) -> Derived:
    """The stages of a plan, on the first of the types that it fits; with no type named, on the fastest."""
    taken = accepted_types(gpu_types, cluster)
    if shape is None:
        return Derived(tuple(gpu_types), (), None)
    bill = _bill(shape, plan)
    roomy = [each for each in taken if each.holds(bill)]
    fit = roomy or taken  # where none fits, the job is refused with another error
    known = [each for each in fit if each.gpu is not None]
    if not gpu_types:
        known.sort(key=lambda each: _time(shape, plan, each, cluster).total_s)
    left_out = tuple(each.name for each in taken if each not in fit)
    types = tuple(gpu_types)
    if left_out:
        types = tuple(each.name for each in [*known, *(each for each in fit if each not in known)])
    needed_gib = _needed_gib(bill, {each.name for each in roomy}, cluster)
    if not known:
        return Derived(types, left_out, None, gpu_memory_gib=needed_gib)
    basis = known[0]
    assert basis.gpu is not None
    speed = min(server.gpu_speed for server in kinds(cluster) if server.gpu_type == basis.name)
    graph, parallelism = stages_of(shape, plan, basis.gpu, links_on(cluster, basis.name), speed)
    return Derived(types, left_out, basis, graph, parallelism, needed_gib)


def _needed_gib(bill: MemoryBill, types: Collection[str], cluster: Cluster) -> float | None:
    """What each GPU must have, if some servers of these types state less."""
    needed = math.ceil(bill.peak / TOLERANCE / 2**30 * 100) / 100
    stated = (server.gpu_memory_gib for server in kinds(cluster) if server.gpu_type in types)
    return needed if any(size is not None and size < needed for size in stated) else None


def _time(shape: ModelShape, plan: TrainingPlan, on: AcceptedType, cluster: Cluster) -> IterationTime:
    assert on.gpu is not None
    return _time_on(shape, plan, on.gpu, links_on(cluster, on.name))


@lru_cache(maxsize=1024)
def _time_on(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links) -> IterationTime:
    return iteration_time(shape, plan, gpu, links)


@lru_cache(maxsize=1024)
def _bill(shape: ModelShape, plan: TrainingPlan) -> MemoryBill:
    return memory_bill(shape, plan)


@lru_cache(maxsize=256)
def _nearest(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links) -> tuple[FittingPlan, ...]:
    return tuple(nearest_plans(shape, plan, gpu, links, SEARCHED_STAGES_MAX))


class MemoryCheck:
    """Whether plans fit any GPU type that their jobs take, for one request."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._searches = 0

    def refusal(self, spec: JobSpec) -> str | None:
        """The bill, and the nearest plans that fit, for a plan that fits no type; None for any other job."""
        if spec.plan is None or spec.shape is None:
            return None
        bill = _bill(spec.shape, spec.plan)
        taken = accepted_types(spec.gpu_types, self._cluster)
        if not taken or any(each.holds(bill) for each in taken):
            return None
        largest = max(taken, key=lambda each: each.memory_bytes or 0)
        assert largest.gpu is not None
        self._searches += 1
        near: tuple[FittingPlan, ...] = ()
        if self._searches <= SEARCHES_MAX:
            near = _nearest(spec.shape, spec.plan, largest.gpu, links_on(self._cluster, largest.name))
        text = str(PlanDoesNotFit(bill, largest.gpu, near))
        return text if near or self._searches <= SEARCHES_MAX else text.partition(" No plan")[0]


def plan_body(spec: JobSpec) -> dict[str, Any] | None:
    """The key ``plan`` of the body that makes an equal job: all fields, and the shape."""
    return None if spec.plan is None else _body_of(spec.plan, spec.shape)


def _body_of(plan: TrainingPlan, shape: ModelShape | None) -> dict[str, Any]:
    given: dict[str, Any] = dict.fromkeys(PlanBody.model_fields)
    given |= {name: getattr(plan, name) for name in _PLAN_FIELDS}
    return given | {"model": None if shape is None else _model_body(shape)}


def _model_body(shape: ModelShape) -> str | dict[str, Any]:
    """The catalogue's name where the shape is that of the catalogue."""
    if shape.name in SHAPES and SHAPES[shape.name].shape == shape:
        return shape.name
    form = "transformer" if isinstance(shape, TransformerShape) else "counted"
    return {"form": form, **_SHAPE.dump_python(shape, mode="json")}


def job_plan_document(spec: JobSpec, cluster: Cluster, warnings: Sequence[str] = ()) -> JobPlanDocument | None:
    """What a job's plan asks of the cluster; None without a plan. ``warnings`` come first."""
    plan, shape = spec.plan, spec.shape
    if plan is None:
        return None
    noted = list(warnings)
    if shape is None:
        noted.append("The model of the plan is not known: neither time nor memory is predicted.")
        return JobPlanDocument(
            plan=plan_document(plan), model=None, gpu_type=None, iteration=None, memory=None, warnings=noted
        )
    noted += [each.problem for each in accepted_types(spec.gpu_types, cluster) if each.problem]
    basis = derive(plan, shape, spec.gpu_types, cluster).basis
    return JobPlanDocument(
        plan=plan_document(plan),
        model=shape.name,
        gpu_type=basis.name if basis is not None else None,
        iteration=None if basis is None else _iteration(spec, shape, plan, basis, cluster),
        memory=_memory(_bill(shape, plan), basis),
        warnings=noted,
    )


def _iteration(
    spec: JobSpec, shape: ModelShape, plan: TrainingPlan, basis: AcceptedType, cluster: Cluster
) -> PlanTimeDocument | None:
    found = _time(shape, plan, basis, cluster)
    times = None
    with suppress(NeverFits):
        times = times_of(with_types_of(spec, cluster), cluster)
    if times is None:
        return None
    return PlanTimeDocument(
        time_s=times.min_s,
        bottleneck=found.bottleneck,
        tokens_per_s=plan.tokens / times.min_s,
        parts_s=found.parts,
    )


def _memory(bill: MemoryBill, basis: AcceptedType | None) -> PlanMemoryDocument:
    worst = bill.worst
    return PlanMemoryDocument(
        peak_bytes=round(worst.total),
        limit_bytes=basis.memory_bytes if basis is not None else None,
        stage=worst.stage,
        parts_bytes={name: round(size) for name, size in worst.parts().items()},
    )
