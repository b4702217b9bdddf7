"""Sooner driving an emulated Slurm, for :mod:`benchmarks.slurm_side_by_side`: the service, its history, the jobs over HTTP."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.slurm_mix import STEP_S, Mixed
from service.client import TERMINAL_STATES, Client
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import write_workload
from tests.engines.slurm_cluster import SlurmCluster, wait_for

_READY = re.compile(r"listening on (http://[^ ]+)")
_SETTINGS = {
    "EXECUTOR": "slurm",
    "PORT": "0",
    # Times of a scheduler whose jobs take seconds instead of hours; poll and cycle as in the documentation of the results.
    "ENGINE_POLL_S": "0.1",
    "POLL_PERIOD_S": "0.05",
    "RESTART_S": "3",
    "ATTEMPT_DURATION_S_MIN": "5",
    "RESCHEDULE_PERIOD_S": "1",
    "RETRY_BACKOFF_S": "1",
    "FORECAST_PERIOD_S": "60",
    "REQUESTS_PER_S_MAX": "10000",
    "REQUESTS_BURST_MAX": "10000",
}
SLURM = {
    "SchedulerParameters": "bf_interval=1,sched_interval=30,sched_min_interval=0,default_queue_depth=1000,batch_sched_delay=0"
}
_LOOK_S = 0.5


def run_sooner(
    folder: Path,
    past: Sequence[Mixed],
    jobs: Sequence[Mixed],
    program: Sequence[str],
    limit_s: float,
    slurm: Mapping[str, str],
    node_python: str,
) -> dict[str, Any]:
    """Submit the jobs at their times, and wait for their ends. ``program`` takes a folder, a name and seconds.

    ``slurm``: settings of Slurm. ``node_python``: as the setting of this name.
    """
    cluster = SlurmCluster(slurm)
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        with _serving(folder, past, node_python) as client:
            begun_s, ids, submitted_s = time.time(), [], []
            for number, job in enumerate(jobs):
                time.sleep(max(0.0, begun_s + job.at_s - time.time()))
                submitted_s.append(time.time())
                ids.append(client.jobs.submit_many(_body(folder, number, job, program))[0]["id"])
            _wait(client, len(jobs), limit_s)
            return _measured(client, folder, ids, submitted_s)
    finally:
        cluster.close()


@contextmanager
def _serving(folder: Path, past: Sequence[Mixed], node_python: str) -> Iterator[Client]:
    """A service that has learnt from the past."""
    (folder / "shared").mkdir(mode=0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    own = {**_SETTINGS, "DATA_DIR": str(folder / "data"), "SHARED_DIR": str(folder / "shared")}
    environ |= {f"SOONER_{name}": value for name, value in own.items()}
    environ["SOONER_NODE_PYTHON"] = node_python
    sooner = [sys.executable, "-m", "service.cli.main"]
    write_workload(_history(past), folder / "past.csv")
    subprocess.run([*sooner, "history", "import", str(folder / "past.csv")], env=environ, check=True, stdout=sys.stderr)
    log = folder / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*sooner, "serve"], env=environ, stdout=output, stderr=output)
    try:
        ready = wait_for(lambda: _READY.search(log.read_text()) or process.poll() is not None, "it listens", 180.0)
        if not isinstance(ready, re.Match):
            raise SystemExit(f"the service did not start:\n{log.read_text()}")
        client = Client(ready[1], (folder / "data" / "token").read_text().strip())
        run = client.models.train()
        wait_for(lambda: client.models.training_run(run)["outcome"], "it has learnt", 300.0)
        yield client
    finally:
        process.terminate()
        process.wait(60.0)
        print(log.read_text()[-2000:], file=sys.stderr)


def _history(past: Sequence[Mixed]) -> Workload:
    rows = [
        WorkloadJob(
            job_id=str(number),
            submit_time_s=float(number),
            gpus=job.gpus,
            duration_s=job.run_s,
            user=job.user,
            name=job.name,
            iterations=max(1, round(job.run_s / STEP_S)),
            final_state="succeeded",
        )
        for number, job in enumerate(past)
    ]
    return Workload("past", tuple(rows))


def _body(folder: Path, number: int, job: Mixed, program: Sequence[str]) -> Mapping[str, Any]:
    return {
        "name": job.name,
        "user": job.user,
        "gpus": job.gpus,
        "command": [*program, str(folder), str(number), str(job.run_s)],
        "preemption": {"signal": "SIGUSR1", "grace_s": 5},
    }


def _wait(client: Client, jobs: int, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        unfinished = client.jobs.list(states=["queued", "starting", "running", "preempting", "cancelling"], limit=1)
        if not unfinished:
            return
        time.sleep(_LOOK_S)
    raise SystemExit(f"{jobs} jobs did not end within {limit_s:g} s: {client.jobs.list(limit=5)}")


def _measured(client: Client, folder: Path, ids: Sequence[int], submitted_s: Sequence[float]) -> dict[str, Any]:
    jcts_s, start_s, preemptions, states = [], [], 0, {}
    for number, (job_id, at_s) in enumerate(zip(ids, submitted_s, strict=True)):
        state = client.jobs.show(job_id)["state"]
        assert state in TERMINAL_STATES
        states[state] = states.get(state, 0) + 1
        attempts = sorted(client.jobs.attempts(job_id), key=lambda attempt: attempt["number"])
        preemptions += len(attempts) - 1
        record = folder / str(number)
        lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
        if state != "succeeded":
            print(f"job {job_id} {state}: {client.jobs.show(job_id)} {attempts}", file=sys.stderr)
        starts = [float(at) for word, at in lines if word == "start"]
        # A program that was stopped before its first line leaves no line; then they cannot be matched to the attempts.
        if len(starts) == len(attempts):
            start_s += [begun - _seconds(attempt["opened_at"]) for begun, attempt in zip(starts, attempts, strict=True)]
        ends = [float(at) for word, at in lines if word == "end"]
        if state == "succeeded" and ends:
            jcts_s.append(ends[-1] - at_s)
    return {"jcts_s": jcts_s, "start_s": start_s, "preemptions": preemptions, "states": states}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
