"""Prints how long the views that dashboards read take to answer, and how much of a core they cost.

python -m benchmarks.views [--queued 100000] [--servers 1000] [--seconds 5] [--dashboards 50]

A real service with the imitated executor in a process of its own; its cluster is full at once, and so many jobs wait. Each page
is read by one client, over and over: of the queue its first, middle and last page, and the first one of a user who sees one of
seven projects. Then so many dashboards read the overview every two seconds. Clients and service share the machine's cores.
"""

import argparse
import http.client
import json
import threading
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.api import Outcome, Service, fill_queue, load, serving
from benchmarks.calibration import calibrate, line

PERIOD_S = 2.0
PAGE = 100


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, default=100_000, help="jobs that wait")
    parser.add_argument("--servers", type=int, default=1000, help="servers of eight GPUs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--dashboards", type=int, default=50)
    arguments = parser.parse_args()
    print(line(calibrate()))
    with serving("", servers=arguments.servers) as service:
        fill_queue(service, arguments.queued)
        key = _key(service)
        cursors = _cursors(service)
        pages = {"first": "", "middle": cursors[len(cursors) // 2], "last": cursors[-1]}
        print(f"{'view':32}{'per s':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms each':>13}")
        _measure("overview", service, "/v1/overview", arguments.seconds)
        for name, after in pages.items():
            path = f"/v1/queue/jobs?limit={PAGE}" + (f"&after={after}" if after else "")
            _measure(f"queue, {name} page", service, path, arguments.seconds)
        member = service._replace(token=key)
        _measure("queue, a project's first page", member, f"/v1/queue/jobs?limit={PAGE}", arguments.seconds)
        share = _poll(service, arguments.dashboards, max(arguments.seconds, 4 * PERIOD_S))
        print(f"{arguments.dashboards} readers of the overview, each every {PERIOD_S:g} s: {share:.1%} of a core")


def _measure(name: str, service: Service, path: str, seconds: float) -> None:
    before = service.process.cpu_times()
    outcome: Outcome = load(service, "GET", path, b"", 1, seconds)
    after = service.process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    p50_ms, p99_ms = (1e3 * float(value) for value in np.percentile(outcome.latencies_s, (50, 99)))
    rate = outcome.requests / outcome.wall_s
    odd = {status: count for status, count in outcome.statuses.items() if status >= 300}
    print(
        f"{name:32}{rate:9.1f}{p50_ms:9.1f}{p99_ms:9.1f}{1e3 * cpu_s / outcome.requests:13.2f}  {odd or ''}", flush=True
    )


def _poll(service: Service, dashboards: int, seconds: float) -> float:
    """The share of a core that the service used meanwhile, its own cycles included."""
    before = service.process.cpu_times()
    start_s = time.monotonic()

    def run(number: int) -> None:
        connection = http.client.HTTPConnection(service.host, service.port, timeout=60.0)
        time.sleep(PERIOD_S * number / dashboards)
        while time.monotonic() - start_s < seconds:
            _read(connection, service, "/v1/overview")
            time.sleep(PERIOD_S)

    threads: Sequence[threading.Thread] = [threading.Thread(target=run, args=(each,)) for each in range(dashboards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = service.process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - start_s)


def _cursors(service: Service) -> list[str]:
    """The cursors of all pages but the first, by pages of the largest size."""
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60.0)
    cursors: list[str] = []
    while True:
        after = f"&after={cursors[-1]}" if cursors else ""
        page = _read(connection, service, f"/v1/queue/jobs?limit=500{after}")
        if page["next"] is None:
            return cursors
        cursors.append(page["next"])


def _key(service: Service) -> str:
    """A new key of a user who sees one project."""
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60.0)
    body = json.dumps({"user": "viewer", "role": "viewer", "projects": ["p0"]})
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/keys", body, headers)
    answer = json.loads(connection.getresponse().read())
    return str(answer["key"])


def _read(connection: http.client.HTTPConnection, service: Service, path: str) -> dict[str, str | None]:
    connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
    response = connection.getresponse()
    found: dict[str, str | None] = json.loads(response.read())
    if response.status != http.HTTPStatus.OK:
        raise SystemExit(f"GET {path}: {response.status} {found}")
    return found


if __name__ == "__main__":
    main()
