"""The table ``sooner.workload/1`` itself: to sort it, shift it to the first submission, or convert between CSV and Parquet."""

from pathlib import Path

from service.sim.workloads.model import Workload, in_submission_order
from service.sim.workloads.table import read_workload


def import_sooner(path: Path) -> Workload:
    """Read a ``sooner.workload/1`` table with rows in any order; invalid rows are skipped."""
    workload = read_workload(path, skip_invalid=True, any_order=True)
    return in_submission_order(workload.name, workload.jobs, workload.skipped)
