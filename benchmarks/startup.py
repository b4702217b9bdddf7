"""Prints the user CPU time of commands that must start quickly: `sooner --version`, and `sooner q` against a long queue.

python -m benchmarks.startup [--jobs 10000] [--runs 5]

A real service in a folder of its own holds the jobs, all of them on hold so that none starts. Each command runs several times;
the least and the median time are printed, beside those of an interpreter that does nothing.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from service.client import Client
from service.demo.server import Place, running_service, temporary_place

VERSION_S_MAX = 0.15
QUEUE_S_MAX = 0.35
"""User CPU seconds that the commands should take at most on an idle machine."""

_BATCH = 1000
SOONER = (sys.executable, "-c", "from service.cli.main import main; main()")


def user_s(words: tuple[str, ...], environ: dict[str, str]) -> float:
    """User CPU seconds of a command. Raises CalledProcessError if it fails."""
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise subprocess.CalledProcessError(code, words)
    return usage.ru_utime


def fill(client: Client, jobs: int) -> None:
    """Held jobs in the queue."""
    body = {"name": "digits", "command": ["true"], "gpus": 1, "hold": True}
    for first in range(0, jobs, _BATCH):
        client.jobs.submit_many({"jobs": [body] * min(_BATCH, jobs - first)})


def measure(place: Place, url: str, runs: int) -> None:
    """Print each command's times."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    environ |= {"SOONER_DATA_DIR": str(place.data_dir), "SOONER_URL": url}
    for words, limit_s in (
        ((sys.executable, "-c", "pass"), None),
        ((*SOONER, "--version"), VERSION_S_MAX),
        ((*SOONER, "q"), QUEUE_S_MAX),
    ):
        times = sorted(user_s(words, environ) for _ in range(runs))
        name = "python -c pass" if limit_s is None else f"sooner {words[-1]}"
        limit = "" if limit_s is None else f"   limit {limit_s:.2f} s"
        print(f"{name:<18} least {times[0]:.3f} s   median {median(times):.3f} s{limit}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    os.chdir(Path(__file__).parents[1])
    with temporary_place() as place, running_service(place) as client:
        fill(client, given.jobs)
        print(f"{client.queue.show()['jobs']:,} unfinished jobs")
        measure(place, client.url, given.runs)


if __name__ == "__main__":
    main()
