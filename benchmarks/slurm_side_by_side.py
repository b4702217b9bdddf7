"""Prints the mean JCT of the same recurring jobs under plain Slurm and under Sooner driving Slurm, on an emulated cluster.

python -m benchmarks.slurm_side_by_side [--seeds 3] [--jobs 200] [--span-s 240] [--load 1.2] [--parts honest,padded,sooner]

Needs root, Slurm and libfaketime (Debian's package faketime). Each run has an emulated cluster of its own: four nodes with four
GPUs, in namespaces of their own. The programs sleep and use no GPU (:mod:`benchmarks.slurm_mix`).

- ``honest``: Slurm with priority/multifactor (age) and backfill; each job's time limit is its true run time plus a tenth.
- ``padded``: the same with what users ask for, 1.5 to 20 times the truth.
- ``sooner``: ``sooner serve --executor slurm`` with A-SRPT and predictions from 600 earlier runs of the same programs. No job
  says how long it takes.
- ``sooner_fast_slurm``: the same on the Slurm of the plain runs, with its clock and its settings.

Slurm's limits are whole minutes, so in the plain runs the clock of Slurm's daemons and commands runs ten times as fast as that of
the programs (libfaketime): six seconds of a program are a minute to Slurm, and its main loop runs ten times a second. This
favours plain Slurm over ``sooner``, whose Slurm starts a batch job up to a second after its submission. Backfill runs once in a
second of the programs in all parts.

A job's start and end are what its program writes down, in all parts.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.calibration import calibrate, line
from benchmarks.slurm_mix import Mixed, mix
from benchmarks.slurm_service import SLURM, run_sooner
from tests.engines.run import ROOT, apart
from tests.engines.slurm_cluster import GPUS, NODES, SlurmCluster, wait_for

PROGRAM = Path(__file__).with_name("slurm_mix.py")
SPEED = 10
"""Seconds of Slurm's clock in a second, in the plain runs."""
_FAKETIME = "/usr/$LIB/faketime/libfaketimeMT.so.1"
_DAEMONS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
_REAL_TIME = "sooner"
"""The part in which Slurm's clock is the real one."""
_UNSET = "LD_PRELOAD FAKETIME FAKETIME_SHARED"
_MULTIFACTOR = {
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "1000",
    "PriorityMaxAge": "1-0",
    # A loaded machine ends no job; limits only inform the backfill.
    "OverTimeLimit": "UNLIMITED",
    # Seconds of the fast clock.
    "MessageTimeout": "100",
    "TCPTimeout": "60",
    "SlurmdTimeout": "3000",
    "SlurmctldTimeout": "3000",
    "KillWait": "30",
    "SchedulerParameters": "bf_interval=10,bf_resolution=60,default_queue_depth=1000,batch_sched_delay=0",
}
_PATIENCE = 4.0
"""A run may take so many times the span of its arrivals."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--span-s", type=float, default=240.0)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--parts", default="honest,padded,sooner")
    parser.add_argument("--at-once", type=int, default=1, help="plain runs at a time")
    parser.add_argument("--one", nargs=2, metavar=("PART", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help="write each run's document into this folder")
    arguments = parser.parse_args()
    if arguments.one is not None:
        part, seed = arguments.one
        print(json.dumps(_one(part, int(seed), arguments)))
        return
    print(f"{line(calibrate())}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    parts = arguments.parts.split(",")
    runs = [(part, seed) for part in parts for seed in range(1, arguments.seeds + 1)]
    plain = [run for run in runs if not run[0].startswith("sooner")]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        found = list(pool.map(lambda run: _apart(run, arguments), plain))
    found += [_apart(run, arguments) for run in runs if run[0].startswith("sooner")]
    _print([document for document in found if document is not None], parts)


def _apart(run: tuple[str, int], arguments: argparse.Namespace) -> dict[str, Any] | None:
    """One run in namespaces of its own; None if it failed."""
    part, seed = run
    own = [
        sys.executable,
        "-m",
        "benchmarks.slurm_side_by_side",
        "--one",
        part,
        str(seed),
        "--jobs",
        str(arguments.jobs),
    ]
    own += ["--span-s", str(arguments.span_s), "--load", str(arguments.load)]
    if part != _REAL_TIME:
        # faketime names its shared memory by its process id, which it has in other namespaces as well.
        shared = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
        own = [*shared, "faketime", "-m", "-f", f"+0 x{SPEED}", "env", "-u", "LD_PRELOAD", *own]
    before = os.getloadavg()[0]
    done = subprocess.run(apart(own), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"{part}, seed {seed}: failed with code {done.returncode}", file=sys.stderr)
        return None
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    document["machine_load"] = round((before + os.getloadavg()[0]) / 2.0, 1)
    print(f"{part}, seed {seed}: {_line(document)}", flush=True)
    if arguments.keep is not None:
        (arguments.keep / f"{part}-{seed}.json").write_text(json.dumps(document))
    return document


def _line(document: dict[str, Any]) -> str:
    words = f"mean JCT {document['mean_jct_s']:.1f} s, median {document['median_jct_s']:.1f} s, p95 {document['p95_jct_s']:.1f} s"
    words += f", {document['ended']} of {document['jobs']} ended, machine load {document['machine_load']}"
    if "start_s" in document:
        p50_s, p95_s = np.percentile(document["start_s"], (50, 95))
        words += f"; decision to running p50 {p50_s:.2f} s, p95 {p95_s:.2f} s; {document['preemptions']} preemptions"
    return words


def _print(found: Sequence[dict[str, Any]], parts: Sequence[str]) -> None:
    print(f"\n{'':10}{'mean JCT s':>12}{'median s':>10}{'p95 s':>8}{'runs':>6}")
    means = {}
    for part in parts:
        runs = [document for document in found if document["part"] == part]
        if not runs:
            continue
        mean_s, median_s, p95_s = (
            fmean(run[key] for run in runs) for key in ("mean_jct_s", "median_jct_s", "p95_jct_s")
        )
        means[part] = mean_s
        print(f"{part:10}{mean_s:12.1f}{median_s:10.1f}{p95_s:8.1f}{len(runs):6}")
    for part, mean_s in means.items():
        for other, other_s in means.items():
            if other.startswith("sooner") and not part.startswith("sooner"):
                own = {run["seed"]: run["mean_jct_s"] for run in found if run["part"] == other}
                seeds = [
                    own[run["seed"]] / run["mean_jct_s"] - 1.0
                    for run in found
                    if run["part"] == part and run["seed"] in own
                ]
                each = ", ".join(f"{change:+.0%}" for change in seeds)
                print(f"{other} against {part}: {other_s / mean_s - 1.0:+.1%} (by seed: {each})")


def _one(part: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run within its namespaces."""
    past, jobs = mix(seed, arguments.jobs, arguments.span_s, NODES * GPUS, arguments.load)
    limit_s = _PATIENCE * arguments.span_s
    with tempfile.TemporaryDirectory(prefix="side-by-side-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if part.startswith("sooner"):
            if part != _REAL_TIME:
                _speed_up(folder)
            slurm = SLURM if part == _REAL_TIME else _MULTIFACTOR
            own = run_sooner(folder, past, jobs, [sys.executable, str(PROGRAM)], limit_s, slurm, _python(folder))
        else:
            own = _plain(folder, jobs, padded=part == "padded", limit_s=limit_s)
    jcts_s = own.pop("jcts_s")
    median_s, p95_s = (float(value) for value in np.percentile(jcts_s, (50, 95)))
    return {
        "part": part,
        "seed": seed,
        "jobs": len(jobs),
        "ended": len(jcts_s),
        "mean_jct_s": fmean(jcts_s),
        "median_jct_s": median_s,
        "p95_jct_s": p95_s,
        **own,
    }


def _plain(folder: Path, jobs: Sequence[Mixed], *, padded: bool, limit_s: float) -> dict[str, Any]:
    _speed_up(folder)
    cluster = SlurmCluster(_MULTIFACTOR)
    try:
        begun_s, submitted_s = time.time(), []
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, begun_s + job.at_s - time.time()))
            submitted_s.append(time.time())
            _sbatch(cluster, folder, number, job, padded=padded)
        left = set(range(len(jobs)))

        def over() -> bool:
            left.difference_update([number for number in left if ended_s(folder, number)])
            return not left

        wait_for(over, "all jobs have ended", limit_s)
    finally:
        cluster.close()
    return {"jcts_s": [ended_s(folder, number) - at_s for number, at_s in enumerate(submitted_s)]}


def _speed_up(folder: Path) -> None:
    """Let Slurm's daemons and commands run on the fast clock, by wrappers that come first in PATH. This process does not."""
    programs = folder / "bin"
    programs.mkdir()
    found = os.get_exec_path()
    for name in _DAEMONS:
        real = next(Path(each) / name for each in found if (Path(each) / name).exists())
        clock = f"FAKETIME='{os.environ['FAKETIME']}' FAKETIME_SHARED='{os.environ['FAKETIME_SHARED']}'"
        wrapper = programs / name
        wrapper.write_text(f"#!/bin/sh\nexport LD_PRELOAD='{_FAKETIME}' {clock}\nexec {real} \"$@\"\n")
        wrapper.chmod(0o755)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"


def _python(folder: Path) -> str:
    """The Python of the node programs: on the real clock, also below a Slurm on the fast one."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nunset {_UNSET}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def _sbatch(cluster: SlurmCluster, folder: Path, number: int, job: Mixed, *, padded: bool) -> None:
    slurm_s = SPEED * job.run_s
    # Ten seconds of Slurm's clock more, for the start of the program.
    minutes = math.ceil((slurm_s * (job.padded if padded else 1.1) + 10.0) / 60.0)
    nodes = math.ceil(job.gpus / GPUS)
    program = f"{sys.executable} {PROGRAM} {folder} {number} {job.run_s}"
    cluster.commands.run(
        "sbatch", "--parsable", f"--nodes={nodes}", f"--gres=gpu:{job.gpus // nodes}", "--mem=1000", f"--time={minutes}",
        f"--job-name={job.name}", "--export=ALL", "--output=/dev/null",
        input=f"#!/bin/sh\nunset {_UNSET}\nexec {program}\n".encode(),
    )  # fmt: skip


def ended_s(folder: Path, number: int) -> float:
    """When the program of a job ended; 0 until then."""
    try:
        lines = (folder / str(number)).read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(each.split()[1]) for each in lines if each.startswith("end ")), 0.0)


if __name__ == "__main__":
    main()
