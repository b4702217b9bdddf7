"""Recorded cycles as JSON documents (``sooner.cycle/2``), and back.

Commands, environments and working directories are left out: no policy reads them, and a bug report must not contain a job's
secrets. The spec of an array is written once, under ``arrays``; its elements, which differ by their index alone, refer to it.

Documents of version 1 are read too: in them the schedule ``1f1b`` is what is now ``pipedream``, and ``sync`` is now ``1f1b``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.model.cluster import Cluster
from policies.model.estimate import Estimate
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.server_reservation import ServerReservation
from service.config.cluster_file import GPUS_PER_SERVER_MAX
from service.db.codec import (
    CodecError,
    decode,
    decode_actions,
    decode_changes,
    encode,
    encode_actions,
    encode_changes,
)
from service.engine.limits import LimitOwner, OwnerLimit
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import Costs
from service.history.cycles import CycleSnapshot
from service.history.snapshot import WorldSnapshot

SCHEMA = "sooner.cycle/2"
FIRST_SCHEMA = "sooner.cycle/1"

_SCHEDULES_OF_FIRST = {"1f1b": "pipedream", "sync": "1f1b"}


class CycleFileError(ValueError):
    """The document is not a recorded cycle. The message is one line."""


def cycle_document(snapshot: CycleSnapshot) -> dict[str, Any]:
    """The document of a recorded cycle."""
    world = snapshot.world
    arrays: dict[str, dict[str, Any]] = {}
    return {
        "schema": SCHEMA,
        "cycle": snapshot.cycle,
        "now_s": world.now_s,
        "policy": snapshot.policy,
        "options": dict(snapshot.options),
        "cluster": encode(world.cluster),
        "costs": encode(world.costs),
        "servers": [encode(record) for record in world.servers],
        "jobs": [_job_document(job, arrays) for job in world.jobs],
        "arrays": arrays,
        "limits": [{"owner": encode(owner), "limit": encode(limit)} for owner, limit in world.limits.items()],
        "windows": [encode(window) for window in world.windows],
        "dump": snapshot.dump,
        "changes": encode_changes(snapshot.changes),
        "actions": encode_actions(snapshot.actions),
        "wake_at_s": snapshot.wake_at_s,
    }


def read_cycle(document: object) -> CycleSnapshot:
    """The cycle of a document. Raises :class:`CycleFileError`."""
    if not isinstance(document, dict) or document.get("schema") not in (SCHEMA, FIRST_SCHEMA):
        raise CycleFileError(f"not a recorded cycle: the key 'schema' must be {SCHEMA!r}")
    try:
        return _read(document if document["schema"] == SCHEMA else _of_first(document))
    except KeyError as error:
        raise CycleFileError(f"the key {error.args[0]!r} is missing") from error
    except CodecError as error:
        raise CycleFileError(str(error)) from error
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise CycleFileError(f"a value has the wrong type: {error}") from error


def _of_first(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document of version 1 as one of version 2."""
    return {
        **document,
        "arrays": {number: _renamed(spec) for number, spec in document.get("arrays", {}).items()},
        "jobs": [{**job, "spec": _renamed(job["spec"])} for job in document["jobs"]],
    }


def _renamed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    parallelism = spec.get("parallelism")
    if parallelism is None:
        return spec
    schedule = parallelism["schedule"]
    return {**spec, "parallelism": {**parallelism, "schedule": _SCHEDULES_OF_FIRST.get(schedule, schedule)}}


def _read(document: Mapping[str, Any]) -> CycleSnapshot:
    arrays = {number: decode(JobSpec, each) for number, each in document.get("arrays", {}).items()}
    world = WorldSnapshot(
        now_s=float(document["now_s"]),
        cluster=decode(Cluster, document["cluster"]),
        costs=decode(Costs, document["costs"]),
        servers=tuple(decode(ServerRecord, each) for each in document["servers"]),
        jobs=tuple(_job(each, arrays) for each in document["jobs"]),
        limits={
            decode(LimitOwner, each["owner"]): decode(OwnerLimit, each["limit"]) for each in document.get("limits", ())
        },
        windows=tuple(decode(ServerReservation, each) for each in document.get("windows", ())),
    )
    _check(world)
    return CycleSnapshot(
        cycle=int(document["cycle"]),
        policy=str(document["policy"]),
        options={str(name): str(value) for name, value in document["options"].items()},
        world=world,
        dump=dict(document["dump"]),
        changes=decode_changes(document["changes"]),
        actions=decode_actions(document["actions"]),
        wake_at_s=document["wake_at_s"],
    )


def _check(world: WorldSnapshot) -> None:
    """A decision about other servers, GPUs that they do not have, or totals that are not above 0 would fail or never end."""
    for server in world.cluster.servers:
        if not 0 <= server.gpus <= GPUS_PER_SERVER_MAX:
            raise CodecError(f"server {server.name} must have 0 to {GPUS_PER_SERVER_MAX} GPUs")
        if min(server.nic_bytes_s, server.intra_bytes_s, server.gpu_speed) <= 0.0:
            raise CodecError(f"the speeds of server {server.name} must be above 0")
    for job in world.jobs:
        if job.estimate is not None:
            _check_estimate(job.id, job.estimate)
        if job.reservation is not None:
            _check_placement(world.cluster, job, job.reservation, ())
        if job.attempt is not None:
            _check_placement(world.cluster, job, job.attempt.placement, job.attempt.gpu_ids)


def _check_estimate(job: JobId, estimate: Estimate) -> None:
    if min(estimate.points, default=0.0) <= 0.0 or list(estimate.points) != sorted(estimate.points):
        raise CodecError(f"the points of job {job}'s estimate must be above 0 and ascending")
    if estimate.seconds_per_unit is not None and estimate.seconds_per_unit <= 0.0:
        raise CodecError(
            f"seconds_per_unit of job {job}'s estimate must be above 0 (got {estimate.seconds_per_unit:g})"
        )


def _check_placement(cluster: Cluster, job: JobRecord, placement: Placement, gpu_ids: Sequence[Sequence[int]]) -> None:
    for position, share in enumerate(placement.shares):
        if not 0 <= share.server < len(cluster.servers):
            raise CodecError(f"job {job.id} is placed on a server that is not in the cluster")
        server = cluster.servers[share.server]
        ids = gpu_ids[position] if position < len(gpu_ids) else ()
        counts = (share.gpus, *share.replicas)
        if not all(0 <= each <= server.gpus for each in counts) or not all(0 <= each < server.gpus for each in ids):
            raise CodecError(f"job {job.id} has GPUs that server {server.name} does not have")


def _job_document(job: JobRecord, arrays: dict[str, dict[str, Any]]) -> dict[str, Any]:
    copy, array = job.copy(), job.spec.array
    if array is None:
        copy.spec = _public(job.spec)
        return encode(copy)
    if str(array.id) not in arrays:
        arrays[str(array.id)] = encode(_public(job.spec))
    copy.spec = _ELSEWHERE
    index = array.index if job.array_index is None else job.array_index
    return encode(copy) | {"spec": {"element_of": array.id, "index": index}}


def _job(document: Mapping[str, Any], arrays: Mapping[str, JobSpec]) -> JobRecord:
    if "element_of" not in document["spec"]:
        return decode(JobRecord, document)
    spec, index = arrays[str(document["spec"]["element_of"])], int(document["spec"]["index"])
    if spec.array is None:
        raise CodecError(f"the spec of array {document['spec']['element_of']} is that of a single job")
    job = decode(JobRecord, {**document, "spec": _ELSEWHERE_DOCUMENT})
    job.spec = replace(spec, array=replace(spec.array, index=index))
    return job


def _public(spec: JobSpec) -> JobSpec:
    return replace(spec, command=(), env={}, working_dir=None)


_ELSEWHERE = JobSpec("", "", 1)
_ELSEWHERE_DOCUMENT = {"name": "", "user": "", "gpus": 1}
