"""What several benchmarks run on: clusters of eight-GPU servers, and traces whose jobs are given networks to train."""

from dataclasses import replace

from policies.catalogue import MODELS
from policies.model.cluster import Cluster, Server
from service.sim.draws import uniform
from service.sim.workloads.model import Workload, WorkloadJob

GPUS_A_SERVER = 8
INTRA_BYTES_S = 120e9
"""960 Gb/s between the GPUs of a server."""

_GPUS_MIN = {"gpt2_xl": 4, "moe_mixtral_8x7b": 32}
"""The least gang that holds a model's training state or comes near, where that is more than one GPU."""


def cluster_of(servers: int, nic_gbps: float) -> Cluster:
    """Equal servers of eight GPUs whose NICs carry so many Gb/s in each direction."""
    nic_bytes_s = nic_gbps / 8 * 1e9
    rows = (Server(f"s{index:04d}", GPUS_A_SERVER, "V100", "", nic_bytes_s, INTRA_BYTES_S) for index in range(servers))
    return Cluster(f"{servers} servers, {nic_gbps:g} Gb/s", tuple(rows))


def with_models(workload: Workload, seed: int) -> Workload:
    """Every job trains a network of the catalogue that its gang can hold, drawn from the seed and the job's id.

    Run times stay what they are, at the best placement: only a worse one makes them longer.
    """
    return replace(workload, jobs=tuple(replace(job, model=_model(job, seed)) for job in workload.jobs))


def _model(job: WorkloadJob, seed: int) -> str:
    fitting = [model for model in MODELS if _GPUS_MIN.get(model, 1) <= job.gpus]
    return fitting[int(uniform(seed, job.job_id, "model") * len(fitting))]


def load_of(workload: Workload, gpus: int) -> float:
    """GPU-seconds of work over the GPU-seconds that pass between the first submission and the last."""
    span_s = workload.jobs[-1].submit_time_s - workload.jobs[0].submit_time_s
    return sum(job.gpus * job.duration_s for job in workload.jobs) / (gpus * span_s)


def servers_for(workload: Workload, load: float) -> int:
    """The fewest servers on which the workload offers at most that load, and each of its gangs fits."""
    largest = max(job.gpus for job in workload.jobs)
    return max(-(-largest // GPUS_A_SERVER), round(load_of(workload, GPUS_A_SERVER) / load))
