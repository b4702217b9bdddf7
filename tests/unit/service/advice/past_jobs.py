"""A past of recurring programs on a small cluster, as its accounting would have it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.model import Workload, WorkloadJob
from service.slurm.accounting import FIELDS, AccountedJob

CLUSTER = Cluster("small", tuple(Server(f"node{number}", 4, "A100") for number in (1, 2)))
START_S = 1_790_000_000.0


def past_jobs(count: int, *, seed: int = 1, load: float = 0.9) -> list[AccountedJob]:
    """Jobs of eight users, each with programs whose run times recur, as Slurm's rules would have scheduled them."""
    rng = np.random.default_rng(seed)
    programs = [
        (f"user{user}", f"train{user}", int(rng.choice([1, 1, 2, 4])), 2400.0 * float(np.exp(rng.normal(0.5, 1.3))))
        for user in range(8)
    ]
    mean_gpu_s = sum(gpus * run_s for _, _, gpus, run_s in programs) / len(programs)
    rows, at_s = [], 0.0
    for number in range(count):
        at_s += float(rng.exponential(mean_gpu_s / (load * CLUSTER.gpus)))
        user, name, gpus, run_s = programs[int(rng.integers(len(programs)))]
        run_s = float(max(30, round(run_s * float(np.exp(rng.normal(0.0, 0.2))))))
        limit_s = 60.0 * (1 + int(3.0 * run_s / 60.0))
        rows.append(WorkloadJob(str(number), float(round(at_s)), gpus, run_s, user, "lab", name, walltime_s=limit_s))
    return accounted(rows, CLUSTER)


def accounted(rows: Sequence[WorkloadJob], cluster: Cluster) -> list[AccountedJob]:
    """The rows as Slurm's rules would have scheduled them on the cluster."""
    done = run(Workload("past", tuple(rows)), cluster, make_policy("easy", {}), "none", SimulationOptions())
    ended = {outcome.job_id: outcome for outcome in done.outcomes}
    return [_accounted(row, ended[row.job_id].start_time_s) for row in rows]


def _accounted(row: WorkloadJob, start_s: float) -> AccountedJob:
    return AccountedJob(
        id=row.job_id,
        state="COMPLETED",
        submit_s=START_S + row.submit_time_s,
        start_s=START_S + start_s,
        end_s=START_S + start_s + row.duration_s,
        run_s=row.duration_s,
        name=row.name,
        user=row.user,
        account=row.project,
        gpus=row.gpus,
        gpu_type="a100",
        time_limit_s=row.walltime_s,
        node_count=1,
        nodes=("node1",),
    )


def slower(job: AccountedJob, factor: float) -> AccountedJob:
    """The job with another run time from the same start."""
    assert job.start_s is not None
    return replace(job, run_s=job.run_s * factor, end_s=job.start_s + job.run_s * factor)


def sacct_text(jobs: Sequence[AccountedJob]) -> str:
    """What sacct prints of these jobs."""
    lines = ["|".join(FIELDS)]
    for job in jobs:
        cells = {
            "JobID": job.id,
            "User": job.user,
            "Account": job.account,
            "State": job.state,
            "Submit": f"{job.submit_s:.0f}",
            "Start": f"{job.start_s:.0f}",
            "End": f"{job.end_s:.0f}",
            "ElapsedRaw": f"{job.run_s:.0f}",
            "TimelimitRaw": f"{(job.time_limit_s or 0.0) / 60.0:.0f}",
            "AllocTRES": f"gres/gpu:{job.gpu_type}={job.gpus},gres/gpu={job.gpus}",
            "NodeList": "node1",
            "JobName": job.name,
        }
        lines.append("|".join(cells.get(name, "") for name in FIELDS))
    return "\n".join(lines) + "\n"
