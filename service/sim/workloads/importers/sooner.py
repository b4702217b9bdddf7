"""Our own table once more: to sort, to shift to the first submission, or to turn CSV into Parquet and back."""

from pathlib import Path

from service.sim.workloads.model import Workload, in_submission_order
from service.sim.workloads.table import read_workload


def import_sooner(path: Path) -> Workload:
    """Read a ``sooner.workload/1`` table whose rows may stand in any order; rows that break it are skipped."""
    workload = read_workload(path, skip_invalid=True, any_order=True)
    return in_submission_order(workload.name, workload.jobs, workload.skipped)
