"""Accounted jobs as a workload for simulations: GPU types by the cluster's names, and what is left out and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.model.cluster import Cluster
from policies.training.gpu_names import types_meant
from service.domain.source_rows import SkipRow
from service.sim.workloads.model import Workload, WorkloadJob, in_submission_order
from service.slurm.accounting import AccountedJob


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that have run, in order of submission, with what Slurm did. ``left_out`` counts the others by reason.

    ``start_s`` is second 0 of the rows of ``workload``, whose positions are those of ``jobs``. A row's submission is when the job
    could start: after its begin time and the jobs that it depends on.
    """

    jobs: Sequence[AccountedJob]
    workload: Workload
    start_s: float
    left_out: Counter[str] = field(default_factory=Counter)


class GpuTypes:
    """The cluster's names of GPU types, by those of the accounting: as given, equal but for capitals, or of the same GPU."""

    def __init__(self, cluster: Cluster, given: Mapping[str, str]) -> None:
        """``given``: the accounting's name -> the cluster's name. Raises ValueError for a name that the cluster does not have."""
        for name, known in given.items():
            if known not in cluster.gpus_by_type:
                raise ValueError(f"GPU type {name}={known}: the cluster's types are {', '.join(cluster.gpus_by_type)}")
        self._known = {name.casefold(): name for name in cluster.gpus_by_type} | {
            name.casefold(): known for name, known in given.items()
        }
        self._cluster = cluster
        self._by_server = {server.name: server.gpu_type for server in cluster.servers}

    def of(self, job: AccountedJob) -> str:
        """The type on which the job ran; "" where nothing says it. Raises :class:`SkipRow` for an unknown name."""
        if job.gpu_type:
            known = self._known.get(job.gpu_type.casefold())
            if known is not None:
                return known
            if len(meant := types_meant(job.gpu_type, self._cluster)) != 1:
                several = f"is {' or '.join(meant)}" if meant else "is not in the cluster file"
                raise SkipRow(f"GPU type {job.gpu_type!r} {several}")
            return meant[0]
        found = {self._by_server[name] for name in job.nodes if name in self._by_server}
        return found.pop() if len(found) == 1 else ""


def past_of(jobs: Sequence[AccountedJob], cluster: Cluster, types: GpuTypes) -> Past:
    """The jobs that ran on GPUs to an end and fit the cluster as it is now."""
    left_out: Counter[str] = Counter()
    rows: dict[str, tuple[WorkloadJob, AccountedJob]] = {}
    for number, job in enumerate(jobs):
        try:
            row = _row(str(number), job, cluster, types)
        except SkipRow as reason:
            left_out[str(reason)] += 1
        else:
            rows[row.job_id] = row, job
    start_s = min((row.submit_time_s for row, _ in rows.values()), default=0.0)
    workload = in_submission_order("accounting", (row for row, _ in rows.values()), ())
    return Past([rows[row.job_id][1] for row in workload.jobs], workload, start_s, left_out)


def _row(number: str, job: AccountedJob, cluster: Cluster, types: GpuTypes) -> WorkloadJob:
    if job.final_state is None or job.end_s is None:
        raise SkipRow("it has not ended, or was requeued and has not run again")
    if not job.gpus:
        raise SkipRow("it has no GPU")
    if not job.run_s > 0.0:
        raise SkipRow("it never ran")
    gpu_type = types.of(job)
    most = cluster.gpus_by_type[gpu_type] if gpu_type else max(cluster.gpus_by_type.values())
    if job.gpus > most:
        raise SkipRow("it has more GPUs than the cluster has")
    return WorkloadJob(
        job_id=number,
        submit_time_s=job.waits_from_s,
        gpus=job.gpus,
        duration_s=job.run_s,
        user=job.user,
        project=job.account,
        name=job.name,
        end_time_s=max(job.end_s, job.waits_from_s),
        walltime_s=job.time_limit_s,
        gpu_type=gpu_type,
        final_state=job.final_state,
    )
