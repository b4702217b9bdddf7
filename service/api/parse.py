"""From a checked body to a :class:`JobSpec`: the rules between several values, and those of the catalogue and the cluster.

All faults of a submission are collected with their JSON pointers before it is refused. The jobs in ``after`` are checked later,
in the transaction that inserts the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.model.cluster import Cluster
from policies.model.job import ArrayPlace, JobSpec
from service.api.graphs import Faults, shape_of
from service.api.job_bodies import job_spec
from service.api.plans import MemoryCheck
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.api.stepwise import too_many_jobs
from service.config.settings import Settings
from service.domain.fit import Fit
from service.domain.volumes import closed_volume
from service.wire.bodies import JobBody, JobsBody

RESERVED_ENV_PREFIX = "SOONER_"

LAUNCHER_ENV = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GROUP_RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)
"""Set for every process by the launcher, which would overwrite a job's own value."""

Placed = tuple[tuple[str | int, ...], JobBody]
"""A job's body and its place in the request."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The jobs of a submission, and what is to be said of each beside its spec."""

    specs: list[JobSpec]
    warnings: list[Sequence[str]]


def parse_submission(body: JobBody | JobsBody, settings: Settings, cluster: Cluster) -> Parsed:
    """The jobs of a submission. Raises :class:`Problem` (422) with every fault of every job."""
    placed = placed_jobs(body)
    _check_number(placed, settings.jobs_per_request_max)
    return _parse_all(placed, settings, cluster)


def is_single(body: JobBody | JobsBody) -> bool:
    """Whether the submission is one job, so that the answer is one job and not a list."""
    return isinstance(body, JobBody) and body.array is None


def placed_jobs(body: JobBody | JobsBody) -> list[Placed]:
    """The jobs of a submission, each with its place in the request."""
    if isinstance(body, JobBody):
        return [((), body)]
    return [(("jobs", index), job) for index, job in enumerate(body.jobs)]


def _elements(body: JobBody) -> int:
    return 1 if body.array is None else len(body.array.elements)


def _check_number(placed: Sequence[Placed], most: int) -> None:
    """422 for more jobs than a request may have, elements of arrays included."""
    if sum(_elements(body) for _, body in placed) <= most:
        return
    # Point to the one array that is too large by itself, else to all jobs.
    large = next(((*base, "array") for base, body in placed if _elements(body) > most), ("jobs",))
    raise too_many_jobs(most, json_pointer(large))


def _parse_all(placed: Sequence[Placed], settings: Settings, cluster: Cluster) -> Parsed:
    fit, memory = Fit(cluster), MemoryCheck(cluster)
    specs: list[JobSpec] = []
    warnings: list[Sequence[str]] = []
    broken: list[Fault] = []
    too_large: list[Fault] = []
    for base, body in placed:
        faults = Faults(base)
        spec = _parse_job(body, settings, cluster, faults)
        broken.extend(faults.found)
        if spec is None:
            continue
        elements = _array_of(spec, body)
        specs += elements
        warnings += [faults.warnings] * len(elements)
        refusal = fit.refusal(spec)
        if refusal is not None:
            detail, key = refusal
            too_large.append(Fault(detail, pointer=json_pointer((*base, key))))
        elif (bill := memory.refusal(spec)) is not None:
            too_large.append(Fault(bill, pointer=json_pointer((*base, "plan"))))
    if broken:
        raise Problem(ProblemType.INVALID_BODY, faults=[*broken, *too_large])
    if too_large:
        raise Problem(ProblemType.NEVER_FITS, faults=too_large)
    return Parsed(specs, warnings)


def _parse_job(body: JobBody, settings: Settings, cluster: Cluster, faults: Faults) -> JobSpec | None:
    _check_command(body, faults)
    _check_image(body, settings, faults)
    body = _with_types(body, faults)
    shape = shape_of(body, settings, cluster, faults)
    if shape is not None:
        _check_range(body, shape.gpus, faults)
        _check_servers(body, shape.gpus, faults)
    most = settings.min_run_s_max
    if body.min_run_s > most:
        faults.add(f"must be at most {most:.15g}, the setting min_run_s_max (got {body.min_run_s:.15g})", "min_run_s")
    if faults.found or shape is None:
        return None
    return job_spec(body, shape)


def _array_of(spec: JobSpec, body: JobBody) -> list[JobSpec]:
    """The job, or the elements of its array, which share all but their index."""
    if body.array is None:
        return [spec]
    elements = body.array.elements
    most = body.array.max_running
    return [replace(spec, array=ArrayPlace(index, len(elements), max_running=most)) for index in elements]


def _with_types(body: JobBody, faults: Faults) -> JobBody:
    """The body with its preferred GPU type as ``gpu_type``: the times of its layers are for that one."""
    if not body.gpu_types:
        return body
    if body.gpu_type is not None:
        faults.add("must be left out where gpu_type is given", "gpu_types")
    if len(set(body.gpu_types)) < len(body.gpu_types):
        faults.add("must name each type once", "gpu_types")
    return body.model_copy(update={"gpu_type": body.gpu_types[0]})


def _check_command(body: JobBody, faults: Faults) -> None:
    if not body.command[0]:
        faults.add("must be the name of a program (got an empty text)", "command", 0)
    for name in body.env:
        if name.startswith(RESERVED_ENV_PREFIX) or name in LAUNCHER_ENV:
            faults.add("is set by Sooner and cannot be given", "env", name)
    for position, name in enumerate(body.secret_env):
        if name not in body.env:
            faults.add("must be the name of a variable in env", "secret_env", position)


def _check_image(body: JobBody, settings: Settings, faults: Faults) -> None:
    if body.volumes and body.image is None:
        faults.add("needs an image", "volumes")
    if body.image is not None and settings.executor not in ("local", "fake"):
        faults.add(
            f"cannot be run with executor={settings.executor}; have the command itself start the container", "image"
        )
    targets = [volume.target for volume in body.volumes]
    for position, target in enumerate(targets):
        if target in targets[:position]:
            faults.add(f"is the target of volumes/{targets.index(target)} too", "volumes", position, "target")
    if (closed := closed_volume([volume.source for volume in body.volumes], settings.data_dir)) is not None:
        faults.add("must not contain the data folder of the service, or be in it", "volumes", closed, "source")


def _check_range(body: JobBody, gpus: int, faults: Faults) -> None:
    if body.gpus_min is not None and body.gpus_min > gpus:
        faults.add(f"must be at most {gpus}, the GPUs of the job (got {body.gpus_min})", "gpus_min")
    if body.gpus_max is not None and body.gpus_max < gpus:
        faults.add(f"must be at least {gpus}, the GPUs of the job (got {body.gpus_max})", "gpus_max")


def _check_servers(body: JobBody, gpus: int, faults: Faults) -> None:
    if body.servers is not None and gpus % body.servers:
        faults.add(f"must divide {gpus}, the GPUs of the job (got {body.servers})", "servers")
