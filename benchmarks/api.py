"""Prints how many jobs a second a service accepts over HTTP, single and in batches, and how long an answer takes.

python -m benchmarks.api [--database-url URL] [--clients 16] [--seconds 10] [--batch 500] [--layers 50]
                         [--queued 100000] [--ended 1000000]

A real service with the imitated executor in a process of its own, on a cluster that is soon full; clients in another, each
with a connection that stays open (:mod:`benchmarks.http_load`). Every accepted job is durable before its answer. Clients and
service share the machine's cores; the CPU time that each of them used for a job or an answer is printed. Beside the single
submissions another client asks for a job, with a pause of 20 ms after each answer. With ``--queued`` so many jobs wait already,
how long scheduling passes take meanwhile is read from the service's own metrics, and at the end the service is killed while
another one stands by, and then a third one is started. With ``--ended`` so many jobs of the past are in the database (a given
one must be empty).
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.calibration import calibrate, line
from benchmarks.filling import fill_new
from benchmarks.http_load import Outcome, Request, start
from policies.lifecycle import JobState
from service.executors.fake import DURATION_LABEL

_READY = re.compile(r"listening on (http://[^ ]+)")
_START_S = 60.0
_PATIENCE_S = 300.0
_FILL = 1000
_PAUSE_S = 0.02


class Service(NamedTuple):
    """A running service."""

    host: str
    port: int
    token: str
    process: psutil.Process
    database_url: str


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", default="", help="default: a SQLite file in a folder of its own")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--batch", type=int, default=500, help="jobs of one request, for the batches")
    parser.add_argument("--layers", type=int, default=50, help="layers of each single job's graph")
    parser.add_argument("--queued", type=int, default=0, help="jobs that wait before anything is measured")
    parser.add_argument("--ended", type=int, default=0, help="ended jobs in the database before the service starts")
    arguments = parser.parse_args()
    unit_s = calibrate()
    print(line(unit_s))
    single = json.dumps(job(arguments.layers)).encode()
    small = {"name": "small", "user": "u", "command": ["true"], "gpus": 1}
    many = json.dumps({"jobs": [small] * arguments.batch}).encode()
    with serving(arguments.database_url, arguments.ended) as service:
        fill_queue(service, max(1, arguments.queued))
        passes = _passes(service)
        print(
            f"{'request':22}{'per s':>9}{'p50 ms':>9}{'p99 ms':>9}{'service CPU ms':>16}{'units':>8}{'client CPU ms':>15}"
        )
        for name, method, path, body, jobs, clients in (
            (f"POST, {arguments.layers} layers", "POST", "/v1/jobs", single, 1, arguments.clients),
            ("the same, with a key", "POST", "/v1/jobs", single, 1, arguments.clients),
            (f"POST, {arguments.batch} jobs", "POST", "/v1/jobs", many, arguments.batch, 2),
            ("GET page", "GET", "/v1/jobs?limit=50", b"", 1, 1),
            ("GET page, 4 clients", "GET", "/v1/jobs?limit=50", b"", 1, 4),
            ("GET explanation", "GET", "/v1/jobs/1/explanation", b"", 1, 4),
        ):
            before = cpu_s(service.process)
            beside = _one_job(service, arguments.seconds) if body is single else None
            outcome = load(service, method, path, body, clients, arguments.seconds, keyed="key" in name)
            _print(name, outcome, jobs, unit_s, cpu_s(service.process) - before)
            if beside is not None:
                _print("  GET job beside it", beside(), 1, unit_s)
        _print_passes(passes, _passes(service))
        if arguments.queued:
            _print_take_over(service)
            _print_start(service.database_url)


def _print(name: str, outcome: Outcome, jobs: int, unit_s: float, cpu_s: float | None = None) -> None:
    """A line of the table. ``cpu_s``: of the service."""
    good = sum(count for status, count in outcome.statuses.items() if status < 300)
    rate = good * jobs / outcome.wall_s
    p50_ms, p99_ms = (1e3 * float(value) for value in np.percentile(outcome.latencies_s, (50, 99)))
    done = max(1, good * jobs)
    costs = f"{'':24}" if cpu_s is None else f"{1e3 * cpu_s / done:16.3f}{cpu_s / done / unit_s:8.4f}"
    odd = {status: count for status, count in outcome.statuses.items() if status >= 300}
    print(
        f"{name:22}{rate:9.0f}{p50_ms:9.1f}{p99_ms:9.1f}{costs}{1e3 * outcome.cpu_s / done:15.3f}  {odd or ''}",
        flush=True,
    )


def _one_job(service: Service, seconds: float) -> Callable[[], Outcome]:
    """A client that asks for one job again and again, with pauses."""
    return start(Request(*service[:3], "GET", "/v1/jobs/1", pause_s=_PAUSE_S), 1, seconds)


def cpu_s(process: psutil.Process) -> float:
    """The CPU time that a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def connected(service: Service) -> closing[http.client.HTTPConnection]:
    """A connection to it, closed at the end of the block."""
    return closing(http.client.HTTPConnection(service.host, service.port, timeout=600.0))


def fill_queue(service: Service, queued: int, lasts_s: float | None = None) -> None:
    """So many jobs of some thousand programs, and the passes that take them in.

    They run for ``lasts_s`` on average, exponentially distributed, so that they end at a steady rate from the first one on.
    Without it all run for half a minute, and those that start together end together.
    """
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    already, spread = taken_in(service), random.Random(queued)
    with connected(service) as connection:
        for start in range(0, queued, _FILL):
            numbers = range(start, min(queued, start + _FILL))
            jobs = [
                {"name": f"program-{number % 3000}", "user": f"u{number % 50}", "project": f"p{number % 7}"}
                | {"command": ["x"], "gpus": 1 + number % 8}
                | ({} if lasts_s is None else {"labels": {DURATION_LABEL: f"{spread.expovariate(1.0 / lasts_s):.3f}"}})
                for number in numbers
            ]
            connection.request("POST", "/v1/jobs", json.dumps({"jobs": jobs}).encode(), headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 201:
                raise SystemExit(f"filling the queue: {response.status} {answer[:300]!r}")
    for _ in tries(f"{queued} jobs are taken in", 0.5):
        if taken_in(service) >= already + queued:
            break


def taken_in(service: Service) -> float:
    """How many jobs cycles have admitted, ended ones included."""
    counted = ("sooner_jobs{", "sooner_job_ends_total{")  # some end meanwhile
    return sum(value for name, value in metrics(service) if name.startswith(counted))


def _print_take_over(service: Service) -> None:
    """From the death of the one that leads to the end of the first pass of another one."""
    with serving(service.database_url) as standby:
        before = cpu_s(standby.process)
        service.process.kill()
        died_s = time.monotonic()
        _wait_until_it_leads(standby)
        took_s, used_s = time.monotonic() - died_s, cpu_s(standby.process) - before
        print(
            f"{took_s:.1f} s after its death another service has passed over the queue; {used_s:.1f} s of a core for that"
        )


def _print_start(database_url: str) -> None:
    """From the start of a process to the end of its first pass, with the queue of a service that has ended orderly."""
    began_s = time.monotonic()
    with serving(database_url) as service:
        _wait_until_it_leads(service)
        took_s, used_s = time.monotonic() - began_s, cpu_s(service.process)
        print(f"{took_s:.1f} s after its start a service has passed over the queue; {used_s:.1f} s of a core for that")


def _wait_until_it_leads(service: Service) -> None:
    for _ in tries("a service leads", 0.05):
        status, ready = _get(service, "/readyz")
        if (status, json.loads(ready)["role"]) == (200, "leader"):
            return


def _get(service: Service, path: str) -> tuple[int, str]:
    with connected(service) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def metrics(service: Service) -> list[tuple[str, float]]:
    """The service's metrics, each with its labels, and their values."""
    for _ in tries("metrics", 0.5):
        status, text = _get(service, "/metrics")
        if status != http.HTTPStatus.SERVICE_UNAVAILABLE:  # a pass on a machine that is busy with other things
            break
    lines = text.splitlines()
    return [(name, float(value)) for name, _, value in (each.rpartition(" ") for each in lines if each[:1] != "#")]


def tries(what: str, pause_s: float) -> Iterator[None]:
    """One after each pause, until it has been too long."""
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        yield
        time.sleep(pause_s)
    raise SystemExit(f"{what}: not within {_PATIENCE_S:.0f} s")


def _passes(service: Service) -> dict[float, float]:
    """Scheduling passes so far, by the upper bounds of their durations in seconds (cumulative)."""
    pattern = re.compile(r'sooner_cycle_duration_seconds_bucket\{le="([^"]+)",phase="total"\}')
    return {float(found[1]): value for name, value in metrics(service) if (found := pattern.fullmatch(name))}


def _print_passes(before: dict[float, float], after: dict[float, float]) -> None:
    counted = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counted.values(), default=0.0)
    for level in (0.5, 0.99):
        bound = next((bound for bound, count in counted.items() if total and count >= level * total), float("nan"))
        print(
            f"{total:.0f} scheduling passes meanwhile, committed or idle: {level:.0%} took at most {1e3 * bound:g} ms"
        )


def job(layers: int) -> dict[str, Any]:
    """A job with a chain of layers, cut into two stages."""
    names = [f"layer{index}" for index in range(layers)]
    return {
        "name": "benchmark",
        "user": "u",
        "command": ["true"],
        "graph": {
            "layers": [
                {"name": name, "forward_s": 0.004, "backward_s": 0.008}
                | {"parameter_bytes": 10_000_000, "activation_bytes": 1_000_000}
                for name in names
            ],
            "edges": [list(pair) for pair in pairwise(names)],
        },
        "parallelism": {"stages": 2, "replicas": [2, 2]},
    }


@contextmanager
def serving(database_url: str, ended: int = 0, servers: int = 8) -> Iterator[Service]:
    """A service in a folder of its own until the end of the block. So many jobs have ended before it starts."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        cluster = Path(folder) / "cluster.yaml"
        cluster.write_text(f"schema: sooner.cluster/1\nname: benchmark\nservers:\n  - {{count: {servers}, gpus: 8}}\n")
        given = {
            "DATA_DIR": str(data),
            "CLUSTER": str(cluster),
            "EXECUTOR": "fake",
            "PORT": "0",
            "JOBS_QUEUED_MAX": "10000000",
        }
        url = database_url or f"sqlite:///{data / 'sooner.db'}"
        if database_url:
            given["DATABASE_URL"] = database_url
        if ended:
            data.mkdir(mode=0o700)
            fill_new(url, ended, JobState.SUCCEEDED)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
        environ |= {f"SOONER_{name}": value for name, value in given.items()}
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "service.cli.main", "serve"], env=environ, stderr=output, stdout=output
            )
        try:
            host, port = _address(log, process)
            token = (data / "token").read_text().strip()
            yield Service(host, port, token, psutil.Process(process.pid), url)
        finally:
            process.terminate()
            process.wait(30.0)


def _address(log: Path, process: "subprocess.Popen[bytes]") -> tuple[str, int]:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and process.poll() is None:
        found = _READY.search(log.read_text())
        if found is not None:
            host, _, port = found[1].removeprefix("http://").rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return host, int(port)
        time.sleep(0.05)
    raise SystemExit(f"the service did not start:\n{log.read_text()}")


def load(
    service: Service, method: str, path: str, body: bytes, clients: int, seconds: float, *, keyed: bool = False
) -> Outcome:
    """The same request from so many clients at once, for so long."""
    return start(Request(*service[:3], method, path, body, keyed), clients, seconds)()


if __name__ == "__main__":
    main()
