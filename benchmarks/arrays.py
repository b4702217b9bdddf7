"""Prints what large job arrays cost a service: disk, memory, the time until all elements are admitted, and what others wait.

python -m benchmarks.arrays [--body-mb 6] [--count 1000] [--arrays 100]

Two runs, each with a new service (imitated executor, SQLite, a cluster that is soon full): one array with a large body, and many
arrays with a small one. Meanwhile another client reads a page of jobs and submits single jobs, each of which waits until a cycle
has admitted it.
"""

import argparse
import http.client
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.api import Service, serving, taken_in
from benchmarks.calibration import calibrate, line

_PROBE_PAUSE_S = 0.2
_ENV_VALUE_BYTES = 6000
_MIB = 2**20


class Waits(NamedTuple):
    """Seconds that the requests of another client took: pages, and single jobs until they were admitted."""

    pages_s: list[float]
    admissions_s: list[float]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body-mb", type=float, default=6.0, help="size of the large body, megabytes")
    parser.add_argument("--count", type=int, default=1000, help="elements of each array")
    parser.add_argument("--arrays", type=int, default=100, help="arrays of the second run; 0: no second run")
    arguments = parser.parse_args()
    print(line(calibrate()))
    values = max(1, int(arguments.body_mb * 1e6 / _ENV_VALUE_BYTES))
    large = {f"VALUE_{number}": "x" * _ENV_VALUE_BYTES for number in range(values)}
    _measure(f"1 x {arguments.count}, {arguments.body_mb:g} MB", [_array(0, arguments.count, large)])
    if arguments.arrays:
        small = [_array(number, arguments.count, {"LR": "0.1"}) for number in range(arguments.arrays)]
        _measure(f"{arguments.arrays} x {arguments.count}", small)


def _array(number: int, count: int, env: dict[str, str]) -> bytes:
    job = {"name": f"sweep-{number}", "user": f"u{number % 10}", "project": "p", "command": ["true"], "gpus": 8}
    return json.dumps(job | {"env": env, "array": {"count": count}}).encode()


def _measure(title: str, bodies: Sequence[bytes]) -> None:
    with serving("") as service:
        folder = Path(service.database_url.removeprefix("sqlite:///")).parent
        for number in range(5):  # what every service loads with its first jobs
            _request(service, "POST", "/v1/jobs?wait_prediction=true", _single(-number))
        before, rss = _disk(folder), service.process.memory_info().rss
        first = taken_in(service)
        stop = threading.Event()
        waits = Waits([], [])
        probes = [threading.Thread(target=probe, args=(service, stop, waits)) for probe in (_read, _submit)]
        for probe in probes:
            probe.start()
        began_s = time.monotonic()
        elements = 0
        for body in bodies:
            elements += len(_request(service, "POST", "/v1/jobs", body)["jobs"])
        accepted_s = time.monotonic() - began_s
        while taken_in(service) < first + elements:
            time.sleep(0.5)
        admitted_s = time.monotonic() - began_s
        stop.set()
        for probe in probes:
            probe.join()
        grown = _disk(folder) - before
        print(f"{title}: {elements} elements accepted in {accepted_s:.1f} s, admitted in {admitted_s:.1f} s")
        print(f"  disk {grown / _MIB:.0f} MiB ({grown / elements:.0f} bytes an element)", end="; ")
        print(f"memory at most {_peak(service) / _MIB:.0f} MiB, {rss / _MIB:.0f} before, ", end="")
        print(f"{service.process.memory_info().rss / _MIB:.0f} after")
        for name, taken in (("pages", waits.pages_s), ("single jobs until admitted", waits.admissions_s)):
            p50, p99, most = np.percentile(taken, (50, 99, 100))
            print(
                f"  {name}: p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, longest {1e3 * most:.0f} ms ({len(taken)})"
            )


def _read(service: Service, stop: threading.Event, waits: Waits) -> None:
    while not stop.wait(_PROBE_PAUSE_S):
        began_s = time.monotonic()
        _request(service, "GET", "/v1/jobs?limit=50")
        waits.pages_s.append(time.monotonic() - began_s)


def _submit(service: Service, stop: threading.Event, waits: Waits) -> None:
    while not stop.wait(_PROBE_PAUSE_S):
        began_s = time.monotonic()
        _request(service, "POST", "/v1/jobs?wait_prediction=true", _single(len(waits.admissions_s)))
        waits.admissions_s.append(time.monotonic() - began_s)


def _single(number: int) -> bytes:
    return json.dumps({"name": f"single{number}", "user": "other", "command": ["true"], "gpus": 1}).encode()


def _request(service: Service, method: str, path: str, body: bytes | None = None) -> Any:
    connection = http.client.HTTPConnection(service.host, service.port, timeout=600.0)
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        raise SystemExit(f"{method} {path}: {response.status} {answer[:300]!r}")
    return json.loads(answer)


def _disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("sooner.db*"))


def _peak(service: Service) -> int:
    """The most resident memory that the process has had, bytes."""
    [text] = [
        line for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines() if line[:6] == "VmHWM:"
    ]
    return int(text.split()[1]) * 1024


if __name__ == "__main__":
    main()
