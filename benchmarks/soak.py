"""Prints whether a service under load grows: memory, open files, threads, processes, over minutes of jobs that come and go.

python -m benchmarks.soak [--database-url URL] [--minutes 10] [--jobs-per-s 20]

A real service with the imitated executor. Jobs of a second or two come in small batches from a client that also reads pages,
explanations and metrics, as people and dashboards do. The first third is warm-up; growth is the mean of the last third over
that of the middle one.
"""

import argparse
import http.client
import json
import time
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import psutil

from benchmarks.api import Service, serving

_BATCH_S = 0.5
_READ_EVERY = 4
_LOOK_S = 5.0


class Reading(NamedTuple):
    """What the service holds at one instant. A training is a process of its own, that comes and goes: it is told apart."""

    rss_mib: float
    children_rss_mib: float
    files: int
    threads: int
    processes: int


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", default="", help="default: a SQLite file in a folder of its own")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs-per-s", type=float, default=20.0)
    arguments = parser.parse_args()
    with serving(arguments.database_url) as service:
        readings, submitted, odd = _load(service, 60.0 * arguments.minutes, arguments.jobs_per_s)
    print(f"{submitted:,} jobs in {arguments.minutes:g} minutes; answers that were not 2xx: {odd or 'none'}")
    third = len(readings) // 3
    middle, last = readings[third : 2 * third], readings[2 * third :]
    print(f"{'':16}{'middle third':>14}{'last third':>12}{'growth':>9}")
    for name in Reading._fields:
        before, after = (fmean(getattr(each, name) for each in part) for part in (middle, last))
        print(f"{name:16}{before:14.1f}{after:12.1f}{after / before - 1.0:9.1%}")


def _load(service: Service, seconds: float, jobs_per_s: float) -> tuple[Sequence[Reading], int, dict[int, int]]:
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60.0)
    start_s = time.monotonic()
    readings: list[Reading] = []
    odd: dict[int, int] = {}
    submitted, turn = 0, 0

    def ask(method: str, path: str, body: object = None) -> None:
        headers = {"Authorization": f"Bearer {service.token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        response.read()
        if response.status >= 300:
            odd[response.status] = odd.get(response.status, 0) + 1

    while (passed_s := time.monotonic() - start_s) < seconds:
        due = int(passed_s * jobs_per_s) - submitted
        if due > 0:
            ask("POST", "/v1/jobs", {"jobs": [_job(submitted + index) for index in range(due)]})
            submitted += due
        turn += 1
        if turn % _READ_EVERY == 0:
            ask("GET", "/v1/jobs?limit=50")
            ask("GET", f"/v1/jobs/{submitted}")
            ask("GET", "/metrics")
        if passed_s >= len(readings) * _LOOK_S:
            readings.append(_look(service.process))
        time.sleep(_BATCH_S)
    return readings, submitted, odd


def _job(number: int) -> dict[str, object]:
    """A job of a recurring program; every 50th fails."""
    labels = {"fake_duration_s": str(1 + number % 3 * 0.5), "fake_exit_code": "1" if number % 50 == 0 else "0"}
    program = f"program-{number % 40}"
    return {"name": program, "user": f"u{number % 7}", "command": ["x"], "gpus": 1 + number % 2, "labels": labels}


def _look(process: psutil.Process) -> Reading:
    children = process.children(recursive=True)
    own, theirs = process.memory_info().rss, sum(map(_rss, children))
    return Reading(own / 2**20, theirs / 2**20, process.num_fds(), process.num_threads(), 1 + len(children))


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


if __name__ == "__main__":
    main()
