"""Prints how long other callers wait for a page of jobs and for the probes while one key floods the service with plans.

python -m benchmarks.fairness [--plans 40] [--jobs 500] [--seconds 20] [--queued 200] [--impatient] [--submit]

A real service with the imitated executor. A submitter sends so many plans at once, each of so many jobs, and starts again with
each answer; a refused one is repeated after ``Retry-After``, or at once with ``--impatient``. A viewer lists jobs, and a prober
without a key asks for health and readiness, each ten times a second on a connection that stays open. The flood, the viewer and
the service share the machine's cores.
"""

import argparse
import http.client
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

from benchmarks.api import Service, job, serving
from benchmarks.calibration import calibrate, line
from service.db.access import KeyGrant, add_key, add_user
from service.db.session import open_database
from service.domain.access import Role
from service.domain.api_key import new_key

_PAUSE_S = 0.1
_LAYERS = 8
_TIMEOUT_S = 300.0


class Answers(NamedTuple):
    """Latencies of the answers of one path, and their statuses."""

    latencies_s: Sequence[float]
    statuses: Mapping[int, int]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=40, help="plans that one key asks for at once")
    parser.add_argument("--jobs", type=int, default=500, help="jobs of a plan")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--queued", type=int, default=200, help="jobs that wait before anything is measured")
    parser.add_argument("--submit", action="store_true", help="submit the jobs instead of planning them")
    parser.add_argument("--impatient", action="store_true", help="refused plans are repeated at once")
    arguments = parser.parse_args()
    print(line(calibrate()))
    with serving("") as service:
        flooder, viewer = _key(service, "flooder", Role.SUBMITTER), _key(service, "viewer", Role.VIEWER)
        _fill(service, flooder, arguments.queued)
        print(f"{'request':12}{'flood':>7}{'asked':>7}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
        _print("no", _watched(service, viewer, arguments.seconds))
        with _flooding(service, flooder, arguments) as statuses:
            _print("yes", _watched(service, viewer, arguments.seconds))
            found = Counter[int]()
            while not statuses.empty():
                found[statuses.get()] += 1
        print(f"the flood's answers meanwhile, by status: {dict(found)}")


def _print(flood: str, answers: Mapping[str, Answers]) -> None:
    for path, found in answers.items():
        p50, p99, most = (1e3 * float(value) for value in np.percentile(found.latencies_s, (50, 99, 100)))
        odd = {status: count for status, count in found.statuses.items() if status != http.HTTPStatus.OK}
        print(f"{path:12}{flood:>7}{len(found.latencies_s):7}{p50:9.1f}{p99:9.1f}{most:9.1f}  {odd or ''}", flush=True)


def _key(service: Service, user: str, role: Role) -> str:
    key = new_key()
    with closing(open_database(service.database_url)) as database, database.writing() as session:
        connection = session.connection()
        add_user(connection, user, time.time())
        add_key(connection, key, KeyGrant(user, role, None, "", None), time.time())
    return key.text


def _jobs(count: int) -> bytes:
    """Jobs of known length: layer times and declared iterations."""
    one = job(_LAYERS)
    jobs = [
        {key: one[key] for key in ("command", "graph", "parallelism")}
        | {"name": f"program-{number % 50}", "declared_iterations": 100_000 + number}
        for number in range(count)
    ]
    return json.dumps({"jobs": jobs}).encode()


def _fill(service: Service, key: str, queued: int) -> None:
    """So many jobs of another size than the planned ones, taken in by a scheduling cycle."""
    status, _, answer = _ask(_connect(service), "POST", "/v1/jobs?wait_prediction=true", key, _jobs(queued))
    if status != http.HTTPStatus.CREATED:
        raise SystemExit(f"filling the queue: {status} {answer[:300]!r}")


def _watched(service: Service, key: str, seconds: float) -> dict[str, Answers]:
    """The answers of a page of jobs and of the probes, asked for side by side for so long."""
    found: dict[str, Answers] = {}

    def run(path: str, token: str) -> None:
        connection, latencies, statuses = _connect(service), [], Counter[int]()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            sent_s = time.monotonic()
            status, _, _ = _ask(connection, "GET", path, token)
            latencies.append(time.monotonic() - sent_s)
            statuses[status] += 1
            time.sleep(_PAUSE_S)
        found[path] = Answers(latencies, statuses)

    threads = [
        threading.Thread(target=run, args=pair) for pair in (("/v1/jobs", key), ("/healthz", ""), ("/readyz", ""))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(found.items()))


@contextmanager
def _flooding(service: Service, key: str, arguments: argparse.Namespace) -> Iterator[Any]:
    """Such a flood from a process of its own, until the end of the block; yields the queue of its statuses."""
    statuses = multiprocessing.SimpleQueue()
    began = multiprocessing.Event()
    what = (
        statuses,
        began,
        service[:2],
        key,
        arguments.plans,
        _jobs(arguments.jobs),
        arguments.impatient,
        "/v1/jobs" if arguments.submit else "/v1/plans",
    )
    process = multiprocessing.Process(target=_plans, args=what, daemon=True)
    process.start()
    began.wait()
    try:
        yield statuses
    finally:
        process.kill()


def _plans(
    statuses: Any, began: Any, where: tuple[str, int], key: str, clients: int, body: bytes, impatient: bool, path: str
) -> None:
    def run() -> None:
        connection = http.client.HTTPConnection(*where, timeout=_TIMEOUT_S)
        while True:
            began.set()
            status, retry_s, _ = _ask(connection, "POST", path, key, body)
            statuses.put(status)
            if not impatient:
                time.sleep(retry_s)

    for _ in range(clients):
        threading.Thread(target=run).start()


def _connect(service: Service) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(service.host, service.port, timeout=_TIMEOUT_S)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, token: str, body: bytes | None = None
) -> tuple[int, float, bytes]:
    """Status, ``Retry-After`` in seconds, and body. A connection that the service has closed is opened again."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
    except (ConnectionError, http.client.HTTPException):
        connection.close()
        connection.request(method, path, body, headers)
        response = connection.getresponse()
    return response.status, float(response.getheader("Retry-After", 0)), response.read()


if __name__ == "__main__":
    main()
