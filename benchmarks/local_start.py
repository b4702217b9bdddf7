"""Prints what starts of many short jobs at once cost on the local executor: CPU time, and the time until all have ended.

python -m benchmarks.local_start [--starts 300] [--rounds 3]

All attempts are sent in one call, as a cycle sends them, and run ``/bin/true``. The executor is that of ``sooner serve``, without
the service, in a temporary folder. CPU time is that of all processes of an attempt together, its program included.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.calibration import calibrate, line
from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.engine.commands import Launch
from service.engine.events import ReportKind
from service.executors.local import LocalExecutor
from service.runtime.steady_clock import SteadyClock

_LOOK_S = 0.1


class Costs(NamedTuple):
    """Of one round: CPU time per start, and seconds from the call until it returned, all began, and all ended."""

    cpu_ms: float
    sent_s: float
    began_s: float
    ended_s: float


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{line(calibrate())}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="sooner-start-") as name:
        found = [_round(Path(name) / str(number), arguments.starts) for number in range(arguments.rounds)]
    print(f"{arguments.starts} starts, medians of {arguments.rounds} rounds")
    for field, unit in (("cpu_ms", "ms a start"), ("sent_s", "s"), ("began_s", "s"), ("ended_s", "s")):
        print(f"{field.rpartition('_')[0]:6} {median(getattr(each, field) for each in found):8.2f} {unit}")


def _round(folder: Path, starts: int) -> Costs:
    folder.mkdir()
    cluster = Cluster("local", (Server("here", starts),))
    executor = LocalExecutor(folder, cluster, clock=SteadyClock())
    spec = JobSpec(name="start", user="ada", gpus=1, command=("/bin/true",))
    place_one = place([ServerShare(ServerIndex(0), 1)])
    launches = [
        Launch(attempt_id(JobId(number), 1), JobId(number), 1, spec, place_one, ((number - 1,),), 0, 1)
        for number in range(1, starts + 1)
    ]
    before_s, begun_s = _children_s(), time.monotonic()
    executor.send(launches)
    sent_s = time.monotonic() - begun_s
    began: set[str] = set()
    ended: set[str] = set()
    began_s = 0.0
    while len(ended) < starts:
        time.sleep(_LOOK_S)
        for report in executor.poll():
            if report.kind is ReportKind.EXITED:
                ended.add(str(report.attempt))
            else:
                assert report.kind is ReportKind.STARTED, report
            began.add(str(report.attempt))
        if not began_s and len(began) == starts:
            began_s = time.monotonic() - begun_s
    ended_s = time.monotonic() - begun_s
    while _has_children():
        time.sleep(_LOOK_S)
        executor.poll()
    executor.close()
    return Costs(1000.0 * (_children_s() - before_s) / starts, sent_s, began_s, ended_s)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
