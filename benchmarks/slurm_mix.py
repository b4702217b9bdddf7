"""The recurring jobs of :mod:`benchmarks.slurm_side_by_side`, and the program that each of them runs.

As a program, ``python3 slurm_mix.py FOLDER NAME SECONDS`` stands for a training of so many seconds: it sleeps, appends to
FOLDER/NAME when it starts and ends, reports progress, and on SIGUSR1 stores how far it is and ends with code 75. It needs the
standard library alone.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

STEP_S = 0.1
"""An iteration of a program."""
_REPORT_S = 1.0
_YIELD = 75


class Mixed(NamedTuple):
    """One job: ``run_s`` is the truth, ``padded`` by how much its user overstates it in a time limit."""

    at_s: float
    user: str
    name: str
    gpus: int
    run_s: float
    padded: float


class _Program(NamedTuple):
    user: str
    name: str
    gpus: int
    run_s: float
    padded: float


def mix(seed: int, jobs: int, span_s: float, gpus: int, load: float) -> tuple[list[Mixed], list[Mixed]]:
    """The past (three times as many jobs) and the jobs to run: Poisson arrivals over ``span_s`` of runs of the same programs.

    24 programs of 8 users; a program's run times vary by a fifth. Their work is ``load`` times what the GPUs can do meanwhile.
    """
    rng = random.Random(seed)
    programs = [
        _Program(
            user=f"user{number % 8}",
            name=f"train{number}",
            gpus=rng.choice((1, 1, 1, 1, 2, 2, 4, 4, 8)),
            run_s=rng.lognormvariate(0.0, 1.2),
            padded=rng.choice((1.5, 3.0, 5.0, 10.0, 20.0)),
        )
        for number in range(24)
    ]
    drawn = [_drawn(rng, rng.choice(programs)) for _ in range(4 * jobs)]
    past, present = drawn[jobs:], drawn[:jobs]
    scale = load * gpus * span_s / sum(job.gpus * job.run_s for job in present)
    arrivals = sorted(rng.uniform(0.0, span_s) for _ in range(jobs))
    scaled = [job._replace(run_s=round(max(0.5, scale * job.run_s), 2)) for job in (*present, *past)]
    return scaled[jobs:], [job._replace(at_s=at_s) for job, at_s in zip(scaled, arrivals, strict=False)]


def _drawn(rng: random.Random, program: _Program) -> Mixed:
    factor = rng.lognormvariate(0.0, 0.2)
    return Mixed(0.0, program.user, program.name, program.gpus, program.run_s * factor, program.padded)


class _Stop(Exception):
    """The signal: a sleep ends with it."""


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise _Stop


def main(folder: Path, name: str, run_s: float) -> int:
    """Run the program to its end, or to the signal."""
    rank = int(os.environ.get("NODE_RANK", "0"))
    record = folder / name if rank == 0 else None
    saved = Path(os.environ["SOONER_CHECKPOINT_DIR"]) / "done" if "SOONER_CHECKPOINT_DIR" in os.environ else None
    done_s = float(saved.read_text()) if saved is not None and saved.exists() else 0.0
    begun_s = time.monotonic()
    try:
        signal.signal(signal.SIGUSR1, _stop)
        _append(record, f"start {time.time()}")
        while (left_s := run_s - done_s - (time.monotonic() - begun_s)) > 0.0:
            time.sleep(min(_REPORT_S, left_s))
            if rank == 0:
                _report(done_s + time.monotonic() - begun_s, None)
    except _Stop:
        done_s += time.monotonic() - begun_s
        if saved is not None and rank == 0:
            saved.with_suffix(".new").write_text(str(done_s))
            saved.with_suffix(".new").rename(saved)
            _report(done_s, done_s)
        _append(record, f"yield {time.time()}")
        return _YIELD
    _append(record, f"end {time.time()}")
    return 0


def _append(record: Path | None, line: str) -> None:
    if record is not None:
        with record.open("a") as stream:
            stream.write(line + "\n")


def _report(done_s: float, saved_s: float | None) -> None:
    path = os.environ.get("SOONER_PROGRESS_FILE")
    if path is None:
        return
    line = {"iteration": max(1, int(done_s / STEP_S))}
    if saved_s is not None:
        line["checkpoint_iteration"] = line["iteration"]
    with Path(path).open("a") as stream:
        stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
