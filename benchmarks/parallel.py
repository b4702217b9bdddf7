"""Prints how much faster many runs are with more workers, and what a worker costs.

python -m benchmarks.parallel [--workers 1 2 4] [--jobs 3000] [--policies sjf,asrpt,las] [--seeds 1-4] [--queue 1000]

"compare" is the whole command ``sooner sim compare`` on a generated workload, "forecast" a forecast of ``--queue`` waiting
jobs in one process and its workers. CPU seconds are those of all processes together. ``speedup`` is over the first row,
``efficiency`` the speedup over the workers. On a machine that does other work, ``CPU ratio``, the CPU seconds of the first row
over those of this one, says what workers cost in themselves. ``private`` is the largest memory that one worker had for itself,
``shared`` what it shared then. The benchmark fails if the tables of a run depend on the number of workers.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.calibration import calibrate, line
from benchmarks.forecast import queue
from policies.registry import make_policy
from service.forecast.forecast import ForecastOptions, forecast
from service.runtime.limited_process import ONE_THREAD
from service.runtime.workers import best_method, cores

_LOOK_EVERY_S = 0.1
_MIB = 1 << 20
_SOONER = [sys.executable, "-c", "from service.cli.main import main; main()"]
_SERVERS = 16


class Cost(NamedTuple):
    """Seconds of a command, and the memory of its largest worker in bytes."""

    wall_s: float
    cpu_s: float
    private: int = 0
    shared: int = 0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({1, *range(2, cores() + 1)}))
    parser.add_argument("--jobs", type=int, default=3000, help="jobs of the workload")
    parser.add_argument("--policies", default="sjf,asrpt,las")
    parser.add_argument("--seeds", default="1-4", help="as sooner sim compare takes them")
    parser.add_argument("--queue", type=int, default=1000, help="waiting jobs of the forecast")
    parser.add_argument("--forecast", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.forecast is not None:
        _forecast(arguments.queue, arguments.forecast)
        return
    print(f"{line(calibrate())}; {cores()} cores, load {os.getloadavg()[0]:.1f}")
    print("what      workers   wall s    CPU s  speedup  efficiency  CPU ratio  private MiB  shared MiB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_files(folder, arguments.jobs)
        first: dict[str, Cost] = {}
        for workers in arguments.workers:
            cost = _comparison(folder, workers, arguments.policies, arguments.seeds)
            _print("compare", workers, cost, first.setdefault("compare", cost))
        outputs = [_tables(folder / f"out-{workers}") for workers in arguments.workers]
        if any(output != outputs[0] for output in outputs):
            sys.exit("the files depend on the number of workers")
        print(f"the {len(outputs[0])} tables of all runs are equal, byte by byte")
    for workers in arguments.workers:
        here = [sys.executable, "-m", "benchmarks.parallel", "--queue", str(arguments.queue)]
        cost = _cost([*here, "--forecast", str(workers)])
        _print("forecast", workers, cost, first.setdefault("forecast", cost))


def _print(what: str, workers: int, cost: Cost, first: Cost) -> None:
    speedup = first.wall_s / cost.wall_s
    memory = f"{cost.private / _MIB:13.0f}{cost.shared / _MIB:12.0f}" if cost.private else f"{'-':>13}{'-':>12}"
    print(
        f"{what:8}{workers:9}{cost.wall_s:9.1f}{cost.cpu_s:9.1f}{speedup:9.2f}{speedup / workers:12.2f}"
        f"{first.cpu_s / cost.cpu_s:11.2f}{memory}",
        flush=True,
    )


def _make_files(folder: Path, jobs: int) -> None:
    text = f"schema: sooner.cluster/1\nservers: [{{count: {_SERVERS}, gpus: 8}}]\n"
    (folder / "cluster.yaml").write_text(text)
    table = ["--jobs", str(jobs), "--seed", "1", "--gpus", str(8 * _SERVERS), "--load", "1"]
    command = [*_SOONER, "workload", "generate", *table, "--out", str(folder / "workload.csv")]
    subprocess.run(command, check=True, capture_output=True)


def _comparison(folder: Path, workers: int, policies: str, seeds: str) -> Cost:
    files = ["--workload", str(folder / "workload.csv"), "--cluster", str(folder / "cluster.yaml")]
    runs = ["--policies", policies, "--predictor", "noisy:1", "--seeds", seeds]
    out = ["--workers", str(workers), "--out", str(folder / f"out-{workers}"), "--quiet"]
    return _cost([*_SOONER, "sim", "compare", *files, *runs, *out])


def _tables(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*jobs.csv")}


def _cost(command: list[str]) -> Cost:
    """What a command and all its processes take."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    private, shared = 0, 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **ONE_THREAD}) as running:
        done = threading.Event()

        def wait() -> None:
            running.wait()
            done.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not done.wait(_LOOK_EVERY_S):
            for own, all_of_it in _memory(running.pid):
                if own > private:
                    private, shared = own, all_of_it - own
        waiting.join()
    if running.returncode != 0:
        sys.exit(f"exit code {running.returncode}: {' '.join(command)}")
    wall_s = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, private, shared)


def _memory(parent: int) -> list[tuple[int, int]]:
    """The private and the resident bytes of each worker."""
    try:
        workers = psutil.Process(parent).children()
        return [(each.memory_full_info().uss, each.memory_info().rss) for each in workers]
    except psutil.Error:  # one has just ended
        return []


def _forecast(jobs: int, workers: int) -> None:
    if best_method() != "fork":
        sys.exit("this process cannot fork")
    options = ForecastOptions(16, jobs_max=jobs)
    forecast(queue(jobs, 8, 20, 1), make_policy("asrpt"), None, options, workers=workers)


if __name__ == "__main__":
    main()
