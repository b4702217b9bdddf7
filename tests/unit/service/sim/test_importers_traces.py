"""Importers on whole public traces: counts that were published or measured."""

import pytest

from service.sim.workloads.importers import import_trace
from tests.simulation.traces import trace

pytestmark = pytest.mark.traces


def test_nasa_ipsc_has_users_and_programs_that_recur() -> None:
    """NASA Ames iPSC/860 log; acknowledge Bill Nitzberg and the Parallel Workloads Archive."""
    workload = import_trace("swf", trace("nasa-ipsc-1993.swf.gz"))
    assert len(workload.jobs) == 18_066
    assert len({job.user for job in workload.jobs}) == 69
    assert len({(job.user, job.name, job.gpus) for job in workload.jobs}) == 1_251
    assert workload.skipped_by_reason() == {"the run time is under 1 s": 173}
    # Its submit times are start times, and waits are unknown.
    assert all(job.end_time_s == job.submit_time_s + job.duration_s for job in workload.jobs)


@pytest.mark.parametrize(("cluster", "jobs"), [(1, 1595), (2, 5778), (3, 3011), (4, 15802), (5, 3629)])
def test_elasticflow_clusters(cluster: int, jobs: int) -> None:
    """ElasticFlow's production clusters (MIT)."""
    workload = import_trace("elasticflow", trace(f"elasticflow-cluster{cluster:02d}.csv.gz"))
    assert (len(workload.jobs), workload.skipped) == (jobs, ())
    assert workload.jobs[0].submit_time_s == 0.0
    assert all(a.submit_time_s <= b.submit_time_s for a, b in zip(workload.jobs, workload.jobs[1:], strict=False))


def test_philly_table_has_fifteen_virtual_clusters() -> None:
    """Microsoft Philly 2017 (CC BY 4.0)."""
    workload = import_trace("philly", trace("philly.csv.gz"))
    assert len(workload.jobs) == 82_247
    assert len({job.project for job in workload.jobs}) == 15
    assert max(job.gpus for job in workload.jobs) == 128
