"""A plan under construction: what a configuration says of it, where each value came from, and the sums that complete it."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as of_class
from itertools import islice
from typing import Any

from policies.model.plan import PipelineSchedule, PlanError, Precision, Recompute, TrainingPlan
from policies.model.shape import ModelShape
from policies.training.agreement import require_agreement
from service.domain.counts import count_of
from service.plans.values import ReadError

WARNINGS_MAX = 100
WARNING_LENGTH_MAX = 500
"""Characters of a warning, which may repeat a word of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is said beside the configuration. It replaces what the configuration says."""

    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    precision: Precision | None = None
    fields: Mapping[str, Any] = of_class(default_factory=dict)
    """Other fields of the plan by name."""


@dataclass(frozen=True, slots=True)
class Model:
    """A shape, and what the shape leaves out (``warnings``).

    ``sequence``: tokens of a sample, where the model fixes them (images) or they are usual. ``dropout``: the model drops
    values in training.
    """

    shape: ModelShape
    sequence: int | None = None
    dropout: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A value of the plan and where it came from: ``data`` ``16`` ``128 GPUs / (tensor 4 x pipeline 2)``."""

    field: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A configuration as a plan. ``shape`` is None where neither the configuration nor the caller has one.

    ``warnings`` name what changes the training but is not in the plan. ``gpus_per_node`` is 0 where it is not said.
    """

    plan: TrainingPlan
    shape: ModelShape | None
    sources: tuple[Source, ...]
    warnings: tuple[str, ...]
    gpus_per_node: int


class Draft:
    """Fields of a :class:`TrainingPlan` as a reader finds them, with the key of each.

    Beside those fields: ``gpus``, ``nodes``, ``gpus_per_node``, ``accumulation`` (micro-batches of a replica in an iteration),
    ``shard_within_node`` (the shard group is the server) and ``shard_groups`` (the number of shard groups).
    """

    def __init__(self, given: Given, model: Model | None = None) -> None:
        self.given = given
        self.shape = model.shape if model is not None else None
        self._warnings = dict.fromkeys(model.warnings if model is not None else ())
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        if model is not None:
            self.set("sequence", model.sequence, f"sample of {model.shape.name}")
            self.set("dropout", model.dropout or None, f"dropout of {model.shape.name}")

    def set(self, field: str, value: Any, origin: str) -> None:
        """A later value replaces an earlier one; None changes nothing."""
        if value is not None:
            self._values[field] = value
            self._origins[field] = origin

    def get(self, field: str, default: Any = None) -> Any:
        return self._values.get(field, default)

    def origin(self, field: str) -> str:
        return self._origins.get(field, "")

    def drop(self, field: str) -> None:
        """Forget a value."""
        self._values.pop(field, None)
        self._origins.pop(field, None)

    def warn(self, text: str) -> None:
        self._warnings[text if len(text) <= WARNING_LENGTH_MAX else f"{text[:WARNING_LENGTH_MAX]}..."] = None

    @property
    def warnings(self) -> list[str]:
        """Each once, in their order, at most :data:`WARNINGS_MAX` and the number of those that are left out."""
        more = len(self._warnings) - WARNINGS_MAX
        return [*islice(self._warnings, WARNINGS_MAX), *([f"{more:,} more warnings are left out"] if more > 0 else [])]

    def finish(self) -> Reading:
        """The plan. Raises :class:`ReadError` where a value is missing or values contradict each other."""
        data = self._data(self.gpus())
        self._batch(data)
        self._shards(data)
        if "sequence" not in self._values:
            raise ReadError("sequence", "is in neither the configuration nor the options; add --sequence TOKENS")
        fields = {name: value for name, value in self._values.items() if name in TrainingPlan.__dataclass_fields__}
        try:
            plan = TrainingPlan(**fields)
            if self.shape is not None:
                require_agreement(self.shape, plan)
        except PlanError as error:
            origin = self.origin(error.field)
            raise ReadError(error.field, f"{str(error).partition(': ')[2]}{_from(origin)}") from None
        return self.reading(plan)

    def reading(self, plan: TrainingPlan) -> Reading:
        """The plan with the origin of each of its values."""
        shown = [
            Source(name, _text(self._values[name] if name == "gpus" else getattr(plan, name)), self._origins[name])
            for name in ("gpus", *TrainingPlan.__dataclass_fields__)
            if name in self._origins
        ]
        return Reading(plan, self.shape, tuple(shown), tuple(self.warnings), self.get("gpus_per_node", 0))

    def _take_given(self) -> None:
        given = self.given
        if given.global_batch is not None or (given.micro_batch is not None and "global_batch" in self._values):
            self.drop("accumulation")
        for field in ("nodes", "gpus_per_node", "micro_batch", "global_batch", "sequence", "precision"):
            self.set(field, getattr(given, field), f"--{field.replace('_', '-')}")
        for field, value in given.fields.items():
            self.set(field, value, field)

    def gpus(self) -> int:
        """GPUs in all, from their number or from those of the nodes, once the given values have replaced those that are set."""
        self._take_given()
        given, nodes, per_node = self.given, self.get("nodes"), self.get("gpus_per_node")
        of_nodes = nodes * per_node if nodes is not None and per_node is not None else None
        shown = f"{nodes} node{'' if nodes == 1 else 's'} x {per_node} GPU{'' if per_node == 1 else 's'}"
        if given.gpus is not None:
            said = self.get("gpus")
            if said is not None and said != given.gpus:
                self.warn(f"--gpus {given.gpus} replaces {self.origin('gpus')} {said}")
            if of_nodes is not None and of_nodes != given.gpus:
                if given.nodes is not None and given.gpus_per_node is not None:
                    raise ReadError("--gpus", f"must be --nodes x --gpus-per-node = {of_nodes} (got {given.gpus})")
                self.warn(f"--gpus {given.gpus} replaces {shown} = {of_nodes} of the configuration")
            self.set("gpus", given.gpus, "--gpus")
        elif of_nodes is not None and (given.nodes or given.gpus_per_node or "gpus" not in self._values):
            self.set("gpus", of_nodes, shown)
        if "gpus" not in self._values:
            raise ReadError(
                "gpus", "is in neither the configuration nor the options; add --gpus, or --nodes and --gpus-per-node"
            )
        gpus: int = self.get("gpus")
        if nodes is not None and per_node is None:
            if gpus % nodes:
                raise ReadError("gpus", f"{gpus} ({self.origin('gpus')}) must be a multiple of {nodes} nodes")
            self.set("gpus_per_node", gpus // nodes, f"{count_of(gpus, 'GPU')} / {count_of(nodes, 'node')}")
        return gpus

    def _data(self, gpus: int) -> int:
        """Replicas: what remains of the GPUs."""
        degrees = {name: self.get(name, 1) for name in ("tensor", "pipeline", "context")}
        product, above = 1, []
        for name, degree in degrees.items():
            product *= degree
            if degree > 1:
                above.append(f"{name} {degree}")
        shown = " x ".join(above)
        said = self.get("data")
        if said is not None and said * product != gpus:
            total = " x ".join([f"data {said}", *above])
            raise ReadError("gpus", f"must be {total} = {said * product} (got {gpus}, {self.origin('gpus')})")
        if gpus % product:
            raise ReadError("gpus", f"must be a multiple of {shown} = {product} (got {gpus}, {self.origin('gpus')})")
        if said is None:
            divisor = f" / ({shown})" if len(above) > 1 else f" / {shown}" if above else ""
            self.set("data", gpus // product, f"{count_of(gpus, 'GPU')}{divisor}")
        return gpus // product

    def _batch(self, data: int) -> None:
        """Two of the micro-batch, the global batch and the accumulation give the third."""
        micro, batch, steps = self.get("micro_batch"), self.get("global_batch"), self.get("accumulation")
        if micro is None and batch is None:
            raise ReadError("micro_batch", "is in neither the configuration nor the options; add --micro-batch SAMPLES")
        if batch is None:
            steps = steps or 1
            shown = f"micro_batch {micro} x accumulation {steps} x data {data}"
            self.set("global_batch", micro * steps * data, shown)
        elif micro is None and steps is not None:
            if batch % (steps * data):
                raise ReadError(
                    self.origin("global_batch"),
                    f"must be a multiple of accumulation {steps} x data {data} = {steps * data} (got {batch})",
                )
            self.set(
                "micro_batch", batch // (steps * data), f"global_batch {batch} / (accumulation {steps} x data {data})"
            )
        elif micro is None:
            self.set("micro_batch", 1, "assumed")
            self.warn("micro_batch is not said: 1 is assumed; --micro-batch sets it")
        elif steps is not None and micro * steps * data != batch:
            raise ReadError(
                self.origin("global_batch"),
                f"must be {self.origin('micro_batch')} {micro} x {self.origin('accumulation')} {steps} x data {data}"
                f" = {micro * steps * data} (got {batch})",
            )

    def _shards(self, data: int) -> None:
        """GPUs of a shard group, where the configuration says it as a server or as a number of groups."""
        sharers = data * self.get("context", 1)
        if self.get("shard_within_node"):
            per_node = self.get("gpus_per_node")
            if per_node is None:
                raise ReadError(
                    "gpus_per_node", f"is needed for {self.origin('shard_within_node')}; add --gpus-per-node"
                )
            model = self.get("tensor", 1) * self.get("pipeline", 1)
            group = max(per_node // model, 1)
            if group < sharers:
                self.set(
                    "shard_group", group, f"{self.origin('shard_within_node')}: {count_of(per_node, 'GPU')} of a server"
                )
        groups = self.get("shard_groups", 1)
        if groups > 1:
            origin = self.origin("shard_groups")
            if sharers % groups:
                raise ReadError(origin, f"must divide data x context = {sharers} (got {groups})")
            self.set("shard_group", sharers // groups, f"{sharers} GPUs / {origin} {groups}")
        if self.get("shard_group") == sharers:
            self._values["shard_group"] = 0


def _from(origin: str) -> str:
    return f", from {origin}" if origin else ""


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PRECISIONS = {each.value: each for each in Precision}
RECOMPUTES = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "none": Recompute.NONE}
INTERLEAVED = PipelineSchedule.INTERLEAVED
