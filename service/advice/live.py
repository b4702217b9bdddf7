"""A running Slurm, read through its commands, in the neutral form of the mirror."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from service.advice.mirror import NO_GPUS, MirrorJob, MirrorNode, Seen
from service.advice.past import PastJob
from service.slurm.jobs import SlurmJob
from service.slurm.nodes import SlurmNode
from service.slurm.text import parse_indices

ELEMENTS_MAX: Final = 200
"""Waiting tasks of one array that are mirrored."""

HOLDING: Final = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States in which a job holds its GPUs."""

_ENDING: Final = frozenset({"COMPLETING", "STAGE_OUT"})
_STARTABLE: Final = frozenset(
    {
        "",
        "Priority",
        "Resources",
        "BeginTime",
        "Dependency",
        "JobArrayTaskLimit",
        "JobHeldUser",
        "JobHeldAdmin",
        "Cleaning",
        "FrontEndDown",
        "NodeDown",
        "Prolog",
    }
)
"""Reasons with which a job will start without anything but time and the end of other jobs."""
_HELD: Final = frozenset({"JobHeldUser", "JobHeldAdmin"})
_DEPENDENCY: Final = re.compile(r"(afterok|afterany|aftercorr):(\d+)(?:_(\d+|\*))?(?:\((\w+)\))?")

HETEROGENEOUS = "is a waiting heterogeneous job"
FURTHER_TASKS = f"is a waiting array task after the first {ELEMENTS_MAX} of its array"
OTHER_DEPENDENCY = "has a dependency of another kind than afterok, afterany or aftercorr"
SEVERAL_TYPES = "needs GPUs of several types on one node"


def seen(now_s: float, nodes: Sequence[SlurmNode], jobs: Sequence[SlurmJob]) -> Seen:
    """The cluster now. Jobs that cannot be mirrored are counted by reason."""
    left_out: Counter[str] = Counter()
    mirrored = [_node(node) for node in nodes]
    found: list[MirrorJob] = []
    ids = {job.id: key_of(job) for job in jobs}
    arrays = _array_tasks(jobs)
    for job in jobs:
        if job.ended:
            continue
        if job.gpus <= 0:
            left_out[NO_GPUS] += job.tasks_waiting
        elif job.state in HOLDING:
            found.append(_running(job, now_s))
        elif job.state == "PENDING":
            found += _waiting(job, mirrored, ids, arrays, left_out)
        else:
            left_out[f"is in the state {job.state}"] += 1
    return Seen(now_s, mirrored, found, dict(left_out))


def key_of(job: SlurmJob) -> str:
    """The id as squeue shows it: ``12``, ``12_3`` for a task of an array, ``12+1`` for a component."""
    if job.array_job_id is not None and job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    if job.het_job_id is not None:
        return f"{job.het_job_id}+{job.het_offset or 0}"
    return str(job.id)


def ended_jobs(jobs: Sequence[SlurmJob]) -> Iterator[PastJob]:
    """Of the jobs that Slurm still remembers, those that used GPUs and have ended."""
    for job in jobs:
        if job.ended and job.gpus > 0 and job.submit_s is not None and job.end_s is not None:
            ran = job.start_s is not None and job.nodes and job.end_s > job.start_s
            held = _held(job) if ran else {}
            yield PastJob(_asked(job), job.start_s if ran else None, job.end_s, held, job.state)


def _node(node: SlurmNode) -> MirrorNode:
    # A node with GPUs of several types counts with the type that it has most of.
    gpu_type = max(node.gpu_types, key=lambda name: (node.gpu_types[name], name), default="")
    return MirrorNode(
        name=node.name,
        gpus=node.gpu_types.get(gpu_type, 0),
        gpu_type=gpu_type,
        partitions=tuple(sorted(node.partitions)),
        features=node.features,
        drained=node.drained,
        down=node.down,
    )


def _asked(job: SlurmJob) -> MirrorJob:
    """The job as it was submitted."""
    nodes = max(1, job.node_count)
    uniform = job.gpus % nodes == 0
    return MirrorJob(
        key=key_of(job),
        serial=(job.array_job_id or job.id, job.array_task_id or 0),
        name=job.name,
        user=job.user,
        gpus=job.gpus,
        submitted_at_s=job.submit_s or 0.0,
        account=job.account,
        nodes=nodes,
        gpus_a_node=job.gpus // nodes if uniform else None,
        gpu_type=job.gpu_type or None,
        limit_s=job.time_limit_s,
        priority=job.priority or 0,
        nice=job.nice,
        group=f"{job.partition} {job.qos}",
    )


def _running(job: SlurmJob, now_s: float) -> MirrorJob:
    return replace(
        _asked(job),
        started_at_s=min(now_s, job.start_s or now_s),
        held_gpus=_held(job),
        ending=job.state in _ENDING,
    )


def _held(job: SlurmJob) -> Mapping[str, int]:
    """Its GPUs by node; where Slurm lists no indices, as many on each."""
    if job.gpu_ids:
        return {node: len(ids) for node, ids in job.gpu_ids.items()}
    share, more = divmod(job.gpus, max(1, len(job.nodes)))
    return {node: share + (number < more) for number, node in enumerate(job.nodes) if share + (number < more) > 0}


def _waiting(
    job: SlurmJob,
    nodes: Sequence[MirrorNode],
    ids: Mapping[int, str],
    arrays: Mapping[int, Sequence[str]],
    left_out: "Counter[str]",
) -> Iterator[MirrorJob]:
    reason = job.reason.partition(",")[0]
    if job.het_job_id is not None:
        left_out[HETEROGENEOUS] += 1
        return
    if reason not in _STARTABLE and not reason.startswith("ReqNodeNotAvail"):
        left_out[f"waits with Slurm's reason {reason}"] += job.tasks_waiting
        return
    needs = _needs(job, ids, arrays)
    if needs is None:
        left_out[OTHER_DEPENDENCY] += job.tasks_waiting
        return
    asked = replace(
        _asked(job),
        allowed=_allowed(job, nodes),
        eligible_at_s=job.eligible_s or 0.0,
        held=reason in _HELD or job.priority == 0,
        after=needs[0],
        after_any=needs[1],
    )
    if not job.array_tasks or job.array_job_id is None:
        yield asked
        return
    tasks, limit = _tasks(job.array_tasks)
    if len(tasks) > ELEMENTS_MAX:
        left_out[FURTHER_TASKS] += len(tasks) - ELEMENTS_MAX
    for task in tasks[:ELEMENTS_MAX]:
        yield replace(
            asked,
            key=f"{job.array_job_id}_{task}",
            serial=(job.array_job_id, task),
            array=str(job.array_job_id),
            array_running_max=limit,
        )


def _tasks(text: str) -> tuple[tuple[int, ...], int | None]:
    """The task numbers and the limit of ``0-8:2,11%3``."""
    ranges, _, limit = text.partition("%")
    found: list[int] = []
    for part in ranges.split(","):
        span, _, step = part.partition(":")
        found.extend(parse_indices(span)[:: int(step) if step.isdecimal() and int(step) > 0 else 1])
    return tuple(found), int(limit) if limit.isdecimal() and int(limit) > 0 else None


def _array_tasks(jobs: Sequence[SlurmJob]) -> dict[int, list[str]]:
    """The keys of the unfinished tasks of each array."""
    found: dict[int, list[str]] = {}
    for job in jobs:
        if job.array_job_id is None or job.ended:
            continue
        keys = found.setdefault(job.array_job_id, [])
        keys += (
            [f"{job.array_job_id}_{task}" for task in _tasks(job.array_tasks)[0]] if job.array_tasks else [key_of(job)]
        )
    return found


def _needs(
    job: SlurmJob, ids: Mapping[int, str], arrays: Mapping[int, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Jobs that must succeed, and jobs that must end; None for what cannot be expressed. Fulfilled ones count no more."""
    after: list[str] = []
    after_any: list[str] = []
    if not job.dependency:
        return (), ()
    if "?" in job.dependency:
        return None
    for part in job.dependency.split(","):
        match = _DEPENDENCY.fullmatch(part)
        if match is None:
            return None
        kind, number, task, state = match.groups()
        if state == "fulfilled":
            continue
        if task is not None and task != "*":
            keys: Sequence[str] = (f"{number}_{task}",)
        else:
            keys = arrays.get(int(number)) or (ids.get(int(number), number),)
        (after_any if kind == "afterany" else after).extend(keys)
    return tuple(after), tuple(after_any)


def _allowed(job: SlurmJob, nodes: Sequence[MirrorNode]) -> frozenset[str]:
    """The nodes of its partitions, among those that it requires, without those that it excludes, with its features."""
    partitions = set(job.partition.split(","))
    wanted = set(job.required_nodes)
    unwanted = set(job.excluded_nodes)
    features = set(job.features.split("&")) if re.fullmatch(r"[\w.&-]+", job.features) else set()
    found = (node for node in nodes if partitions.intersection(node.partitions) and node.name not in unwanted)
    # With more required nodes than the job has, all of them are used; with fewer, others as well.
    only = wanted if len(wanted) >= max(1, job.node_count) else set()
    return frozenset(
        node.name for node in found if (not only or node.name in only) and features.issubset(node.features)
    )
