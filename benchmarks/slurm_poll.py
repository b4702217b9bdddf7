"""Prints what the polls of an emulated Slurm with a thousand jobs cost, one of which changes from poll to poll.

python -m benchmarks.slurm_poll [--jobs 1000] [--span-s 20]

Needs root and Slurm. Half of the jobs have ended, the others run or wait. Processor time is that of the driver with the commands
that it runs, and that of slurmctld beyond what the jobs cost without polls.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.calibration import calibrate, line
from service.executors.cluster.driver import EngineJobState
from service.executors.cluster.slurm import SlurmDriver
from tests.engines.run import ROOT, apart
from tests.engines.slurm_cluster import SlurmCluster, wait_for

_READINGS = 5
_POLL_S = 1.0
"""The default of engine_poll_s."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--span-s", type=float, default=20.0, help="of the polls; half of it is measured without polls")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.within:
        own = [sys.executable, "-m", "benchmarks.slurm_poll", "--within", *sys.argv[1:]]
        sys.exit(subprocess.run(apart(own), cwd=ROOT, check=False).returncode)
    print(f"{line(calibrate())}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    cluster = SlurmCluster()
    try:
        _measure(cluster, arguments.jobs, arguments.span_s)
    finally:
        cluster.close()


def submit_many(cluster: SlurmCluster, jobs: int) -> SlurmDriver:
    """Submit as many jobs, every second of which ends at once; returns a driver that has seen those end."""
    for number in range(jobs):
        cluster.commands.run(
            "sbatch", "--parsable", f"--nodelist=node{number % 4 + 1}", "--mem=100", f"--comment=sooner:cost:{number}.1",
            "--gres=gpu:a100:1", "--output=/dev/null", "--no-requeue",
            input=b"#!/bin/sh\nexec sleep 600\n" if number % 2 else b"#!/bin/sh\n",
        )  # fmt: skip
    driver = SlurmDriver(cluster.slurm, "cost")
    wait_for(lambda: sum(job.end is None for job in driver.jobs()) == jobs // 2, "the short ones have ended")
    return driver


def _measure(cluster: SlurmCluster, jobs: int, span_s: float) -> None:
    driver = submit_many(cluster, jobs)
    begun_s, idle = time.monotonic(), _controller_s(cluster)
    time.sleep(span_s / 2.0)
    idle = (_controller_s(cluster) - idle) / (time.monotonic() - begun_s)
    changes, own_s, seen = 0, 0.0, driver.jobs()
    polls_s: list[float] = []
    waiting = [job.id for job in seen if job.state is EngineJobState.PENDING]
    begun_s, controller_s = time.monotonic(), _controller_s(cluster)
    while time.monotonic() - begun_s < span_s:
        cluster.commands.run("scancel", waiting.pop())
        started_s, before_s = time.monotonic(), _own_s()
        now = driver.jobs()
        polls_s.append(time.monotonic() - started_s)
        own_s += _own_s() - before_s
        changes += now is not seen
        seen = now
        time.sleep(max(0.0, started_s + _POLL_S - time.monotonic()))
    whole_s = time.monotonic() - begun_s
    own = own_s / whole_s
    controller = (_controller_s(cluster) - controller_s) / whole_s - idle
    readings_s = []
    for _ in range(_READINGS):
        begun_s = time.monotonic()
        cluster.slurm.jobs()
        readings_s.append(time.monotonic() - begun_s)
    print(
        f"{jobs} jobs, {changes} changes seen: a poll takes {statistics.median(polls_s):.3f} s, a reading of all jobs "
        f"{statistics.median(readings_s):.3f} s (medians of {len(polls_s)} and {_READINGS}); "
        f"polls take {100 * own:.1f}% of a core here and {100 * controller:.1f}% in slurmctld (without polls {100 * idle:.1f}%)"
    )


def _controller_s(cluster: SlurmCluster) -> float:
    """Processor time of slurmctld."""
    pid = int((cluster.folder / "run" / "slurmctld.pid").read_text())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def _own_s() -> float:
    """Processor time of this process and of the commands that it has run."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
