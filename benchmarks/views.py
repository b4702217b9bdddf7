"""Prints how long the views that dashboards read take to answer, and how much of a core they cost.

python -m benchmarks.views [--queued 100000] [--servers 1000] [--seconds 5] [--dashboards 50] [--attempts 20000]

A real service with the imitated executor in a process of its own; its cluster is full at once, and so many jobs wait. Each page
is read by one client, over and over: of the queue its first, middle and last page, and the first one of a user who sees one of
seven projects. The timeline has so many attempts of the last day, one on each GPU after the other; beside it an increment without
changes. Then so many dashboards read the overview every two seconds. Clients and service share the machine's cores.
"""

import argparse
import http.client
import json
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import func, insert, select

from benchmarks.api import Outcome, Service, fill_queue, load, serving
from benchmarks.calibration import calibrate, line
from policies.lifecycle import AttemptState, JobState
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.db.rows import attempt_values, new_job_values
from service.db.session import open_database
from service.db.tables import ATTEMPTS, JOBS
from service.engine.record import AttemptRecord, JobRecord

PERIOD_S = 2.0
PAGE = 100


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, default=100_000, help="jobs that wait")
    parser.add_argument("--servers", type=int, default=1000, help="servers of eight GPUs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--dashboards", type=int, default=50)
    parser.add_argument("--attempts", type=int, default=20_000, help="ended attempts of the last day")
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
        add_attempts(service, arguments.attempts, 8 * arguments.servers)
        _measure("timeline of a day", service, "/v1/timeline", arguments.seconds)
        _measure("timeline of an hour", service, f"/v1/timeline?since={_hour_ago()}", arguments.seconds)
        mark = json.loads(_answer(service, "/v1/timeline?limit=1"))["mark"]
        _measure("timeline, increment", service, f"/v1/timeline?changed_since={mark}", arguments.seconds)
        _measure("GPUs", service, "/v1/gpus", arguments.seconds)
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


def add_attempts(service: Service, attempts: int, gpus: int) -> None:
    """Jobs of one GPU that ended in the last day, in the service's database."""
    spec, now_s = JobSpec("train", "ada", 1, "p0"), time.time()
    lasts_s = 80_000.0 / max(1.0, attempts / gpus)
    with closing(open_database(service.database_url)) as database, database.writing() as session:
        connection = session.connection()
        first = (connection.execute(select(func.max(JOBS.c.id))).scalar() or 0) + 1
        jobs, rows = [], []
        for number in range(attempts):
            job, turn, gpu = JobId(first + number), *divmod(number, gpus)
            opened_s = now_s - 85_000.0 + turn * lasts_s
            record = JobRecord(job, spec, opened_s, state=JobState.SUCCEEDED, finished_at_s=opened_s + 0.9 * lasts_s)
            share = place([ServerShare(ServerIndex(gpu // 8), 1)])
            attempt = AttemptRecord(
                attempt_id(job, 1), job, 1, AttemptState.COMPLETED, share, ((gpu % 8,),), opened_s,
                ended_at_s=record.finished_at_s,
            )  # fmt: skip
            jobs.append(new_job_values(spec, opened_s, record) | {"id": job})
            rows.append(attempt_values(attempt))
        connection.execute(insert(JOBS), jobs)
        connection.execute(insert(ATTEMPTS), rows)


def _hour_ago() -> str:
    return datetime.fromtimestamp(time.time() - 3600.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _answer(service: Service, path: str) -> bytes:
    connection = http.client.HTTPConnection(service.host, service.port, timeout=60.0)
    connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
    return connection.getresponse().read()


def _read(connection: http.client.HTTPConnection, service: Service, path: str) -> dict[str, str | None]:
    connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
    response = connection.getresponse()
    found: dict[str, str | None] = json.loads(response.read())
    if response.status != http.HTTPStatus.OK:
        raise SystemExit(f"GET {path}: {response.status} {found}")
    return found


if __name__ == "__main__":
    main()
