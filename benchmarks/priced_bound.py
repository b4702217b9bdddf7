"""How much tighter the priced lower bound is than the three terms, and what it costs: one line, as JSON.

python -m benchmarks.priced_bound --workload philly.csv --cluster cluster.yaml --first 20000
"""

import argparse
import json
import time
from pathlib import Path

from benchmarks.pricing import priced_bound
from policies.bounds import BoundJob
from service.config.cluster_file import load_cluster
from service.sim.jobs import bounds_of, prepare
from service.sim.workloads.table import read_workload


def measure(workload: Path, cluster: Path, first: int | None, cells: int, steps: int) -> dict[str, float]:
    """Both bounds in seconds of mean JCT, their ratio, and the CPU seconds of the priced one."""
    machines = load_cluster(cluster)
    jobs = prepare(read_workload(workload, first=first), machines, skip_invalid=True).jobs
    known_s = bounds_of(jobs, machines).lower_bound_mean_jct_s
    rows = [BoundJob(job.row.submit_time_s, job.row.gpus, job.floor_duration_s) for job in jobs]
    started_s = time.process_time()
    priced_s = priced_bound(rows, machines.gpus, cells=cells, steps=steps).lower_bound_mean_jct_s
    return {
        "jobs": len(jobs),
        "gpus": machines.gpus,
        "lower_bound_mean_jct_s": known_s,
        "priced_lower_bound_mean_jct_s": priced_s,
        "ratio": priced_s / known_s if known_s else 1.0,
        "cpu_s": time.process_time() - started_s,
    }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description="The priced lower bound beside the three terms.")
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--first", type=int)
    parser.add_argument("--cells", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    print(json.dumps(measure(given.workload, given.cluster, given.first, given.cells, given.steps)))


if __name__ == "__main__":
    main()
