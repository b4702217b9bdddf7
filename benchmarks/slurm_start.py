"""Prints the stages of starts and ends of attempts under an emulated Slurm, in milliseconds since the command to start.

python -m benchmarks.slurm_start [--starts 20] [--nodes 1] [--poll-s 0.1] [--slurm SCHEDULER_PARAMETERS]

Needs root and Slurm. One attempt at a time, started at random times, on an otherwise idle cluster of four nodes: the executor of
``sooner serve --executor slurm`` without the service. The program runs for a second. Stages up to ``submitted`` are Sooner's,
the time to ``claimed`` is Slurm's with the start of Python, and from there to ``program`` the node program's.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.calibration import calibrate, line
from benchmarks.slurm_service import SLURM
from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.engine.commands import Launch
from service.engine.events import ReportKind
from service.engine.ports import ExecutorUnavailable
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.executor import ClusterExecutor
from service.executors.cluster.shared import LAUNCH
from service.executors.cluster.slurm import SlurmDriver
from service.runtime.steady_clock import SteadyClock
from tests.engines.run import ROOT, apart
from tests.engines.slurm_cluster import GPUS, SlurmCluster, wait_for

_PROGRAM = "import sys, time; print(time.time(), file=open(sys.argv[1], 'w')); time.sleep(1)"
_RUN_S = 1.0
_LOOK_S = 0.005
_STAGES = ("submitted", "claimed", "identified", "ready", "program", "started", "seen", "ended", "end seen")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=1, help="of each attempt, with one GPU each")
    parser.add_argument("--poll-s", type=float, default=0.1)
    parser.add_argument("--slurm", default=SLURM["SchedulerParameters"], help="SchedulerParameters of slurm.conf")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.within:
        own = [sys.executable, "-m", "benchmarks.slurm_start", "--within", *sys.argv[1:]]
        sys.exit(subprocess.run(apart(own), cwd=ROOT, check=False).returncode)
    print(f"{line(calibrate())}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    cluster = SlurmCluster({"SchedulerParameters": arguments.slurm})
    try:
        with tempfile.TemporaryDirectory(prefix="slurm-start-", dir="/tmp") as name:
            found = _measured(cluster, Path(name), arguments)
    finally:
        cluster.close()
    for stage in _STAGES:
        p50, p95 = np.percentile([1000.0 * each[stage] for each in found], (50, 95))
        print(f"{stage:12} median {p50:6.0f} ms   95th percentile {p95:6.0f} ms")


def _measured(cluster: SlurmCluster, folder: Path, arguments: argparse.Namespace) -> list[Mapping[str, float]]:
    servers = tuple(Server(name, GPUS, gpu_type="a100") for name in cluster.names)
    driver = SlurmDriver(cluster.slurm, shared_id := "0" * 16)
    (folder / "cluster-id").write_text(shared_id)
    driver.check()
    executor = ClusterExecutor(
        driver,
        folder,
        Cluster("emulated", servers),
        clock=SteadyClock(),
        node_python=sys.executable,
        poll_s=arguments.poll_s,
    )
    try:
        executor.find_servers()
        wait_for(lambda: _answers(executor), "the executor answers")
        return [_start(executor, folder, JobId(number + 1), arguments.nodes) for number in range(arguments.starts)]
    finally:
        executor.close()


def _answers(executor: ClusterExecutor) -> bool:
    try:
        executor.observed()
    except ExecutorUnavailable:
        return False
    return True


def _start(executor: ClusterExecutor, folder: Path, job: JobId, nodes: int) -> Mapping[str, float]:
    """Seconds from the command to each stage of one attempt; ``ended`` and ``end seen`` are counted from the program's end."""
    attempt = attempt_id(job, 1)
    written = folder / f"program-{job}"
    spec = JobSpec(name="start", user="ada", gpus=nodes, command=(sys.executable, "-c", _PROGRAM, str(written)))
    placement = place([ServerShare(ServerIndex((job + node) % 4), 1) for node in range(nodes)])
    time.sleep(random.random())
    begun_s = time.time()
    executor.send([Launch(attempt, job, 1, spec, placement, ((0,),) * nodes, 0, 1)])
    seen: dict[ReportKind, float] = {}
    while ReportKind.EXITED not in seen:
        reports = [report for report in executor.poll() if report.attempt == attempt]
        for report in reports:
            assert report.kind in (ReportKind.STARTED, ReportKind.PROGRESS, ReportKind.EXITED), report
            seen.setdefault(report.kind, time.time())
        executor.acknowledge(reports)
        time.sleep(_LOOK_S)
    program_s = float(written.read_text())
    at_s = _written(folder / "attempts" / attempt) | {"program": program_s, "seen": seen[ReportKind.STARTED]}
    over_s = program_s + _RUN_S
    ends = {"ended": at_s.pop("ended") - over_s, "end seen": seen[ReportKind.EXITED] - over_s}
    return {stage: value - begun_s for stage, value in at_s.items()} | ends


def _written(attempt: Path) -> dict[str, float]:
    """When the files of an attempt were written for the last time; of several nodes, the last."""
    inbox = attempt / shared.INBOX
    parts = [inbox / entry for entry in os.listdir(inbox) if entry.startswith("node-")]  # noqa: PTH208 names only
    files = {"identified": names.SUPERVISOR, "ready": names.RANKS, "started": names.STARTED, "ended": names.EXIT}
    own = {stage: max((part / name).stat().st_mtime for part in parts) for stage, name in files.items()}
    return own | {
        "submitted": (attempt / LAUNCH).stat().st_mtime,
        "claimed": (inbox / shared.CLAIM).stat().st_mtime,
    }


if __name__ == "__main__":
    main()
