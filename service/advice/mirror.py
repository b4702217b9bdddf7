"""A mirror of a Slurm cluster: its nodes and queue as the engine's world, for forecasts and what-if. It carries nothing out.

:func:`mirror` takes nodes and jobs in a neutral form, so that a queue of the past, rebuilt from accounting, is mirrored by the
same code as the present one (:mod:`service.advice.live`). What cannot be represented is left out and counted by reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, PredictionRequest
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import ArrayPlace, JobSpec
from policies.model.placement import ServerShare, place
from policies.model.reasons import Reason
from service.advice.order import Shape, SlurmOrder
from service.advice.specs import spec_of
from service.engine.record import AttemptRecord, JobRecord, ServerRecord
from service.engine.world import Costs
from service.history.snapshot import WorldSnapshot

UNTYPED = "gpu"
"""The type of GPUs whose type Slurm does not name."""

NO_GPUS = "asks for no GPU"
NO_NODES = "may use no node that has such GPUs"
TOO_LARGE = "asks for more GPUs than the nodes that it may use have"
ODD_HOLDING = "holds GPUs that its nodes do not have"
UNKNOWN_DEPENDENCY = "waits for a job that is not in the queue or that is left out"


@dataclass(frozen=True, slots=True)
class MirrorNode:
    """One node. ``usable``: it takes new jobs. ``gpu_type`` "" where Slurm names none."""

    name: str
    gpus: int
    gpu_type: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drained: bool = False
    down: bool = False


@dataclass(frozen=True, slots=True)
class MirrorJob:
    """One job that waits or holds GPUs. Times are Unix seconds.

    ``key`` is the id as squeue shows it (``123``, ``123_4``), ``serial`` sorts by submission. ``gpus_a_node`` on each of
    ``nodes`` nodes; None: any split of ``gpus``. ``held_gpus``: GPUs by node, for a job that runs since ``started_at_s``.
    ``group``: jobs of one partition and QOS, among which the order may be changed. ``allowed``: nodes that it may use, None: all.
    ``eligible_at_s``: it may not start before. ``array``: the key of its array, of which ``array_running_max`` elements may run
    at a time.
    """

    key: str
    serial: tuple[int, int]
    name: str
    user: str
    gpus: int
    submitted_at_s: float
    account: str = ""
    nodes: int = 1
    gpus_a_node: int | None = None
    gpu_type: str | None = None
    limit_s: float | None = None
    priority: int = 0
    eligible_at_s: float = 0.0
    allowed: frozenset[str] | None = None
    started_at_s: float | None = None
    held_gpus: Mapping[str, int] = field(default_factory=dict)
    held: bool = False
    ending: bool = False
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    array: str | None = None
    array_running_max: int | None = None
    nice: int = 0
    group: str = ""

    @property
    def spec(self) -> JobSpec:
        """The spec by which the predictor knows the job."""
        return spec_of(
            name=self.name,
            user=self.user,
            account=self.account,
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            limit_s=self.limit_s,
        )


class Seen(NamedTuple):
    """A cluster at one instant, in neutral form. ``left_out`` counts jobs that are missing, by reason."""

    now_s: float
    nodes: Sequence[MirrorNode]
    jobs: Sequence[MirrorJob]
    left_out: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The engine's world, without estimates. ``jobs`` by the engine's number, which grows with submission.

    ``ahead`` is Slurm's order of the waiting jobs. ``left_out`` counts the jobs that are not in the world, by reason.
    """

    snapshot: WorldSnapshot
    jobs: Mapping[JobId, MirrorJob]
    shapes: Mapping[JobId, Shape]
    ahead: Mapping[JobId, int]
    left_out: Mapping[str, int]

    def order(self, ahead: Mapping[JobId, int] | None = None) -> SlurmOrder:
        """Slurm as a policy, by its own order or another one."""
        return SlurmOrder(self.shapes, self.ahead if ahead is None else ahead)

    def requests(self) -> list[PredictionRequest]:
        """All jobs for the predictor."""
        return [PredictionRequest(number, job.spec, job.submitted_at_s) for number, job in self.jobs.items()]

    def world(self, estimates: Mapping[JobId, Estimate]) -> WorldSnapshot:
        """The snapshot with these estimates."""
        records = []
        for record in self.snapshot.jobs:
            copy = record.copy()
            copy.estimate = estimates.get(record.id)
            records.append(copy)
        return replace(self.snapshot, jobs=tuple(records))


def mirror(seen: Seen, jobs_max: int) -> Mirrored:
    """The world of this cluster. Of the waiting jobs, those beyond ``jobs_max`` in Slurm's order are left out.

    O(jobs log jobs + nodes).
    """
    left_out = Counter(seen.left_out)
    fleet = _Fleet(seen.nodes)
    kept = _in_order([job for job in seen.jobs if _representable(job, fleet, left_out)], jobs_max, left_out)
    kept = _with_known_dependencies(kept, left_out)
    numbers = {job.key: JobId(number) for number, job in enumerate(sorted(kept, key=lambda job: job.serial), start=1)}
    arrays: dict[str, list[MirrorJob]] = {}
    for job in kept:
        if job.array is not None and job.array_running_max is not None:
            arrays.setdefault(job.array, []).append(job)
    records: dict[JobId, JobRecord] = {}
    shapes, jobs = {}, {}
    for job in sorted(kept, key=lambda job: job.serial):
        number = numbers[job.key]
        records[number] = _record(number, job, fleet, numbers, arrays, seen.now_s)
        shapes[number] = Shape(job.gpus, job.nodes, job.gpus_a_node, fleet.allowed(job))
        jobs[number] = job
    waiting = sorted((job for job in kept if job.started_at_s is None), key=_slurm_key)
    snapshot = WorldSnapshot(
        seen.now_s,
        Cluster("slurm", tuple(fleet.servers)),
        Costs(restart_s=0.0),
        tuple(ServerRecord(node.drained, node.down) for node in fleet.nodes),
        tuple(records.values()),
    )
    ahead = {numbers[job.key]: place_in_queue for place_in_queue, job in enumerate(waiting)}
    return Mirrored(snapshot, jobs, shapes, ahead, {reason: count for reason, count in left_out.items() if count})


def _slurm_key(job: MirrorJob) -> tuple[int, tuple[int, int]]:
    """Slurm's order: larger priorities first, then smaller job ids."""
    return -job.priority, job.serial


class _Fleet:
    """The nodes that have GPUs, as servers.

    Nodes of one GPU type that different partitions hold become different types of the engine, so that a job of one
    partition stays there under any policy.
    """

    def __init__(self, nodes: Sequence[MirrorNode]) -> None:
        self.nodes = [node for node in nodes if node.gpus > 0]
        self.index = {node.name: position for position, node in enumerate(self.nodes)}
        classes = {(node.gpu_type or UNTYPED, frozenset(node.partitions)) for node in self.nodes}
        often = Counter(gpu_type for gpu_type, _ in classes)
        self._types = [self._class_name(node, often) for node in self.nodes]
        self.servers = [
            Server(node.name, node.gpus, gpu_type) for node, gpu_type in zip(self.nodes, self._types, strict=True)
        ]
        self._free = [list(range(node.gpus)) for node in self.nodes]
        self.held: dict[str, tuple[tuple[ServerShare, tuple[int, ...]], ...]] = {}
        self._allowed: dict[tuple[frozenset[str] | None, str | None], frozenset[int]] = {}

    @staticmethod
    def _class_name(node: MirrorNode, often: Mapping[str, int]) -> str:
        gpu_type = node.gpu_type or UNTYPED
        return (
            gpu_type if often[gpu_type] == 1 else f"{gpu_type} ({'+'.join(sorted(node.partitions)) or 'no partition'})"
        )

    def allowed(self, job: MirrorJob) -> frozenset[int]:
        """Positions of the nodes that the job may use."""
        sought = (job.allowed, job.gpu_type)
        if sought not in self._allowed:
            self._allowed[sought] = frozenset(
                position
                for position, node in enumerate(self.nodes)
                if (job.allowed is None or node.name in job.allowed) and _same_type(job.gpu_type, node.gpu_type)
            )
        return self._allowed[sought]

    def types(self, job: MirrorJob) -> tuple[str, ...]:
        """The engine's types that the job may use; empty for all of them."""
        found = tuple(dict.fromkeys(self._types[position] for position in sorted(self.allowed(job))))
        return () if len(found) == len(set(self._types)) else found

    def can_hold(self, job: MirrorJob) -> bool:
        """Whether the job fits on its nodes if they are empty."""
        sizes = [self.nodes[position].gpus for position in self.allowed(job)]
        if job.gpus_a_node is not None:
            return sum(size >= job.gpus_a_node for size in sizes) >= job.nodes
        return sum(sizes) >= job.gpus and len(sizes) >= job.nodes

    def take(self, job: MirrorJob) -> bool:
        """Give a running job its GPUs; False if its nodes have fewer free. Which ones does not matter to a forecast."""
        places = {self.index[name]: gpus for name, gpus in job.held_gpus.items() if name in self.index}
        if len(places) < len(job.held_gpus) or any(len(self._free[server]) < gpus for server, gpus in places.items()):
            return False
        shares = []
        for server, gpus in sorted(places.items()):
            taken, self._free[server] = self._free[server][:gpus], self._free[server][gpus:]
            shares.append((ServerShare(ServerIndex(server), gpus), tuple(taken)))
        self.held[job.key] = tuple(shares)
        return True


def _same_type(asked: str | None, has: str) -> bool:
    """Whether a node has what a job asks for. Slurm does not tell capital letters of types apart."""
    return asked is None or asked.casefold() == has.casefold()


def _representable(job: MirrorJob, fleet: _Fleet, left_out: "Counter[str]") -> bool:
    reason = None
    if job.gpus <= 0:
        reason = NO_GPUS
    elif job.started_at_s is not None:
        # Several jobs share a GPU only where the site configured shards: such jobs are not modelled.
        whole = sum(job.held_gpus.values()) == job.gpus and fleet.take(job)
        reason = None if whole else ODD_HOLDING
    elif not fleet.allowed(job):
        reason = NO_NODES
    elif not fleet.can_hold(job):
        reason = TOO_LARGE
    if reason is not None:
        left_out[reason] += 1
    return reason is None


def _in_order(jobs: Sequence[MirrorJob], jobs_max: int, left_out: "Counter[str]") -> list[MirrorJob]:
    """All jobs that hold GPUs, and the first waiting ones."""
    running = [job for job in jobs if job.started_at_s is not None]
    waiting = sorted((job for job in jobs if job.started_at_s is None), key=lambda job: (job.held, _slurm_key(job)))
    room = max(0, jobs_max - len(running))
    if len(waiting) > room:
        left_out[f"comes after the first {room:,} waiting jobs"] += len(waiting) - room
    return running + waiting[:room]


def _with_known_dependencies(jobs: Sequence[MirrorJob], left_out: "Counter[str]") -> list[MirrorJob]:
    """The jobs whose dependencies are all present; removing one may remove those that wait for it."""
    kept = list(jobs)
    while True:
        present = {job.key for job in kept}
        known = [job for job in kept if present.issuperset((*job.after, *job.after_any))]
        if len(known) == len(kept):
            return kept
        left_out[UNKNOWN_DEPENDENCY] += len(kept) - len(known)
        kept = known


def _record(
    number: JobId,
    job: MirrorJob,
    fleet: _Fleet,
    numbers: Mapping[str, JobId],
    arrays: Mapping[str, Sequence[MirrorJob]],
    now_s: float,
) -> JobRecord:
    types = fleet.types(job)
    spec = replace(
        job.spec,
        gpu_type=types[0] if types else None,
        gpu_type_fallbacks=types[1:],
        after=tuple(numbers[key] for key in job.after),
        after_any=tuple(numbers[key] for key in job.after_any),
        array=_array_place(job, numbers, arrays),
    )
    index = spec.array.index if spec.array is not None else None
    if job.started_at_s is None:
        return JobRecord(
            number,
            spec,
            job.submitted_at_s,
            reason=Reason.HELD if job.held else Reason.NEW,
            held=job.held,
            not_before_s=job.eligible_at_s if job.eligible_at_s > now_s else 0.0,
            array_index=index,
        )
    taken = fleet.held[job.key]
    attempt = AttemptRecord(
        attempt_id(number, 1),
        number,
        1,
        AttemptState.RUNNING,
        place([share for share, _ in taken]),
        tuple(ids for _, ids in taken),
        opened_at_s=job.started_at_s,
        started_at_s=job.started_at_s,
    )
    return JobRecord(
        number,
        spec,
        job.submitted_at_s,
        state=JobState.RUNNING,
        reason=Reason.STARTED,
        attempts=1,
        attempt=attempt,
        anchor_s=job.started_at_s,
        progressing=True,
        first_started_at_s=job.started_at_s,
        array_index=index,
    )


def _array_place(
    job: MirrorJob, numbers: Mapping[str, JobId], arrays: Mapping[str, Sequence[MirrorJob]]
) -> ArrayPlace | None:
    """Its place in an array that limits how many of its elements run; the others need none."""
    members = arrays.get(job.array) if job.array is not None else None
    if members is None:
        return None
    first = min(numbers[member.key] for member in members)
    return ArrayPlace(job.serial[1], max(2, len(members)), first, job.array_running_max)
