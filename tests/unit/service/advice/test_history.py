"""Accounted jobs as a workload: types, waits and what is left out."""

from dataclasses import replace

import pytest

from policies.model.cluster import Cluster, Server
from service.advice.history import GpuTypes, past_of
from service.domain.source_rows import SkipRow
from service.slurm.accounting import AccountedJob

CLUSTER = Cluster("two types", (Server("node1", 8, "A100"), Server("node2", 4, "H100-80GB")))
JOB = AccountedJob(
    "7", "COMPLETED", 1000.0, start_s=1100.0, end_s=1700.0, run_s=600.0, name="train", user="ann", account="nlp", gpus=2
)


@pytest.mark.parametrize(
    ("job", "gpu_type"),
    [
        (replace(JOB, gpu_type="a100"), "A100"),
        (replace(JOB, gpu_type="h100"), "H100-80GB"),
        (replace(JOB, nodes=("node2",)), "H100-80GB"),
        (replace(JOB, nodes=("node1", "node2")), ""),
        (JOB, ""),
    ],
)
def test_types_by_the_names_of_the_cluster(job: AccountedJob, gpu_type: str) -> None:
    assert GpuTypes(CLUSTER, {"h100": "H100-80GB"}).of(job) == gpu_type


def test_a_type_that_the_cluster_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"GPU type h100=H200: the cluster's types are A100, H100-80GB"):
        GpuTypes(CLUSTER, {"h100": "H200"})


def test_rows_wait_from_when_they_could_start() -> None:
    later = replace(JOB, id="8", submit_s=500.0, eligible_s=1050.0, time_limit_s=3600.0, state="TIMEOUT")
    past = past_of([later, JOB], CLUSTER, GpuTypes(CLUSTER, {}))
    assert [job.id for job in past.jobs] == ["7", "8"]
    assert past.start_s == 1000.0
    first, second = past.workload.jobs
    assert (first.submit_time_s, first.end_time_s, first.duration_s, first.final_state) == (
        0.0,
        700.0,
        600.0,
        "succeeded",
    )
    assert (second.submit_time_s, second.end_time_s, second.walltime_s, second.final_state) == (
        50.0,
        700.0,
        3600.0,
        "killed",
    )
    assert (first.user, first.project, first.name) == ("ann", "nlp", "train")


def test_the_jobs_that_are_left_out_are_counted_by_reason() -> None:
    jobs = [
        JOB,
        replace(JOB, state="RUNNING", end_s=None),
        replace(JOB, state="REQUEUED"),
        replace(JOB, gpus=0),
        replace(JOB, run_s=0.0, start_s=None, state="CANCELLED"),
        replace(JOB, gpu_type="v100"),
        replace(JOB, gpus=9),
        replace(JOB, gpus=5, nodes=("node2",)),
    ]
    past = past_of(jobs, CLUSTER, GpuTypes(CLUSTER, {}))
    assert len(past.workload.jobs) == 1
    assert past.left_out == {
        "it has not ended, or was requeued and has not run again": 2,
        "it has no GPU": 1,
        "it never ran": 1,
        "GPU type 'v100' is not in the cluster file": 1,
        "it has more GPUs than the cluster has": 2,
    }


def test_a_type_may_be_spelt_in_another_way_than_in_the_cluster_file() -> None:
    cluster = Cluster("c", (Server("node1", 4, "A100-80"), Server("node2", 4, "A100-40")))
    types = GpuTypes(cluster, {})
    assert types.of(replace(JOB, gpu_type="nvidia_a100-sxm4-80gb")) == "A100-80"
    with pytest.raises(SkipRow, match="'a100' is A100-80 or A100-40"):
        types.of(replace(JOB, gpu_type="a100"))
