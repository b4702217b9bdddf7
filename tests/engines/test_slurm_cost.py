"""What one poll of a Slurm with a thousand jobs costs."""

import resource
import statistics
import time
from pathlib import Path

from service.executors.cluster.driver import EngineJobState
from service.executors.cluster.slurm import SlurmDriver
from tests.engines.slurm_cluster import SlurmCluster, wait_for

JOBS = 1000
SPAN_S = 10.0
READINGS = 5
POLL_S = 1.0
"""The default of engine_poll_s."""


def _submit(cluster: SlurmCluster, number: int) -> None:
    script = b"#!/bin/sh\nexec sleep 600\n" if number % 2 else b"#!/bin/sh\n"
    cluster.commands.run(
        "sbatch", "--parsable", f"--nodelist=node{number % 4 + 1}", "--mem=100", f"--comment=sooner:cost:{number}.1",
        "--gres=gpu:a100:1", "--output=/dev/null", "--no-requeue", input=script,
    )  # fmt: skip


def _controller_s(cluster: SlurmCluster) -> float:
    """Processor time of slurmctld."""
    pid = int((cluster.folder / "run" / "slurmctld.pid").read_text())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def _own_s() -> float:
    """Processor time of this process and of the commands that it has run."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def test_a_poll_of_a_thousand_jobs(slurm_cluster: SlurmCluster) -> None:
    for number in range(JOBS):
        _submit(slurm_cluster, number)
    driver = SlurmDriver(slurm_cluster.slurm, "cost")
    # While hundreds of jobs end, every poll reads all of them: this measures what follows.
    wait_for(lambda: sum(job.end is None for job in driver.jobs()) == JOBS // 2, "the short ones have ended")
    assert len(driver.jobs()) == JOBS
    # What slurmctld takes for a thousand jobs without being asked.
    begun_s, idle = time.monotonic(), _controller_s(slurm_cluster)
    time.sleep(SPAN_S)
    idle = (_controller_s(slurm_cluster) - idle) / (time.monotonic() - begun_s)
    changes, own_s, seen = 0, 0.0, driver.jobs()
    polls_s: list[float] = []
    waiting = [job.id for job in seen if job.state is EngineJobState.PENDING]
    begun_s, controller_s = time.monotonic(), _controller_s(slurm_cluster)
    while time.monotonic() - begun_s < 2.0 * SPAN_S:
        slurm_cluster.commands.run("scancel", waiting.pop())  # so that something changes from poll to poll
        started_s, before_s = time.monotonic(), _own_s()
        now = driver.jobs()
        polls_s.append(time.monotonic() - started_s)
        own_s += _own_s() - before_s
        changes += now is not seen
        seen = now
        time.sleep(max(0.0, started_s + POLL_S - time.monotonic()))
    whole_s = time.monotonic() - begun_s
    own = own_s / whole_s
    controller = (_controller_s(slurm_cluster) - controller_s) / whole_s - idle
    took_s = []
    for _ in range(READINGS):
        begun_s = time.monotonic()
        slurm_cluster.slurm.jobs()
        took_s.append(time.monotonic() - begun_s)
    print(
        f"{JOBS} jobs, {changes} changes seen: a poll takes {statistics.median(polls_s):.3f} s, a reading of all jobs "
        f"{statistics.median(took_s):.3f} s (medians of {len(polls_s)} and {READINGS}); "
        f"polls take {100 * own:.1f}% of a core here and {100 * controller:.1f}% in slurmctld (without polls {100 * idle:.1f}%)"
    )
    assert changes > 0
    assert own + controller < 0.10
