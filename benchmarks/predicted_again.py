"""Prints how long requests wait for the engine while the estimates of many waiting runs of one program are made again.

python -m benchmarks.predicted_again [--queued 60000] [--seconds 20]

A real service with the imitated executor on 64 GPUs. When the first runs have ended, a client asks for the explanation of a job,
with a pause of 50 ms after each answer. The service's own metrics say how long its cycles took meanwhile.
"""

import argparse
import json

import numpy as np

from benchmarks.api import Service, connected, metrics, serving, tries
from benchmarks.calibration import calibrate, line
from benchmarks.http_load import Request, start
from service.executors.fake import DURATION_LABEL

_LASTS_S = 30
_BATCH = 1000
_PAUSE_S = 0.05
_CYCLES = 'sooner_cycle_duration_seconds_{}{{phase="total"}}'


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, default=60_000, help="runs of the program")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the measurement")
    arguments = parser.parse_args()
    print(line(calibrate()))
    with serving("") as service:
        _submit(service, arguments.queued)
        for _ in tries("the first end", 0.5):
            if dict(metrics(service)).get('sooner_job_ends_total{state="succeeded"}', 0.0) > 0.0:
                break
        before = dict(metrics(service))
        asking = start(Request(*service[:3], "GET", "/v1/jobs/1/explanation", pause_s=_PAUSE_S), 1, arguments.seconds)
        latencies_s = asking().latencies_s
        after = dict(metrics(service))
    p50_ms, p99_ms, most_ms = (1e3 * float(value) for value in np.percentile(latencies_s, (50, 99, 100)))
    cycles, took_s = (after[name] - before[name] for name in (_CYCLES.format("count"), _CYCLES.format("sum")))
    print(f"{len(latencies_s)} explanations: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms, at most {most_ms:.0f} ms")
    print(f"{cycles:.0f} cycles of {1e3 * took_s / max(1.0, cycles):.0f} ms on average")


def _submit(service: Service, count: int) -> None:
    """So many runs of one program, in batches."""
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    run = {"name": "small", "user": "u", "command": ["true"], "gpus": 1, "labels": {DURATION_LABEL: str(_LASTS_S)}}
    with connected(service) as connection:
        for first in range(0, count, _BATCH):
            body = json.dumps({"jobs": [run] * min(_BATCH, count - first)}).encode()
            connection.request("POST", "/v1/jobs", body, headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 201:
                raise SystemExit(f"submitting: {response.status} {answer[:300]!r}")


if __name__ == "__main__":
    main()
