"""Prints what each group of features is worth: the pinball loss (log) of what is served without it.

python -m benchmarks.features [--trace workload.csv] [--first N] [--jobs 1500] [--seeds 3] [--chunks 6] [--groups arguments,open]

The protocol is that of ``sooner model evaluate``, with fewer retrainings. Without ``--trace`` the workload is generated, once per
seed, and its jobs have command lines, which no public trace has: the users of ``sooner workload generate`` start each program
with other epochs or steps from run to run. A fifth of the programs name their length as nobody would guess, a quarter hardly
depend on it; half also have two variants, one 2.5 times as long. A change above 0% means that the group is needed. With equal
features two seeds of the forests differ by up to 0.3%.
"""

import argparse
import math
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from policies.model.estimate import Unit
from predictor import prequential
from predictor.arguments import described
from predictor.dataset import Example, Knowledge, replay
from predictor.evaluation import pinball
from predictor.features import LATELY, NAMES
from predictor.rows import EndedRow
from predictor.training import ESTIMATORS, TEST_RATIO
from service.sim.evaluate import rows_of
from service.sim.workloads.generate import generate
from service.sim.workloads.table import read_workload

ARGUMENTS: Final = "arguments"
RATIOS: Final = (0.2, 0.5, 1.0, 1.0, 1.0, 2.0, 5.0)
"""What users ask for, over the usual length of the program."""
KINDS: Final = {"--epochs": 0.35, "--max_steps": 0.2, "--kimg": 0.2, "--num-epochs": 0.15, "--rounds": 0.1}
"""Share of the programs by the option that says how long they train. Those with ``--num-epochs`` stop early, which the number
only limits; those with ``--rounds`` ignore it."""


def group_of(name: str) -> str:
    """The group of a feature: a level of history, ``lately`` submitted jobs with the same request and of all, ``open`` jobs of
    the user and the program, ``first`` runs, ``declared``, else ``request``.
    """
    if name in LATELY:
        return "lately"
    level, _, part = name.partition(".")
    if part:
        return level
    return next((group for group in ("open", "first", "declared") if group in name), "request")


GROUPS: Final = (ARGUMENTS, *dict.fromkeys(map(group_of, NAMES)))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a workload table; none: generated workloads with command lines")
    parser.add_argument("--first", type=int, help="rows of the table")
    parser.add_argument("--jobs", type=int, default=1_500, help="jobs of a generated workload")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=6, help="retrainings")
    parser.add_argument("--groups", default=ARGUMENTS, help="the groups to leave out, or all")
    arguments = parser.parse_args()
    groups = GROUPS if arguments.groups == "all" else tuple(arguments.groups.split(","))
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"unknown group {min(unknown)!r}; the groups are {', '.join(GROUPS)}")
    seeds = range(arguments.seeds)
    if arguments.trace is None:
        workloads = [list(with_commands(rows_of(generate(seed, arguments.jobs).jobs), seed)) for seed in seeds]
    else:
        workloads = [list(rows_of(read_workload(arguments.trace, first=arguments.first).jobs))] * arguments.seeds
    whole = [loss(rows, "", arguments.chunks, seed) for seed, rows in zip(seeds, workloads, strict=True)]
    print(f"{'without':18}{'loss':>8}{'change':>9}  by seed")
    print(f"{'nothing':18}{fmean(whole):8.4f}{'':9}  {' '.join(f'{each:8.4f}' for each in whole)}", flush=True)
    for group in groups:
        without = [loss(rows, group, arguments.chunks, seed) for seed, rows in zip(seeds, workloads, strict=True)]
        changes = [now / before - 1.0 for now, before in zip(without, whole, strict=True)]
        print(
            f"{group:18}{fmean(without):8.4f}{fmean(changes):+9.2%}  {' '.join(f'{each:+8.2%}' for each in changes)}",
            flush=True,
        )


def with_commands(rows: Iterable[EndedRow], seed: int) -> Iterator[EndedRow]:
    """The jobs as if each had been started with a command line on which its length depends. They declare nothing."""
    for row in rows:
        submission = row.submission
        program = random.Random(f"{seed} {submission.user} {submission.name}")
        (option,) = program.choices([*KINDS], [*KINDS.values()])
        usual, variants, named = program.choice((10, 100, 1_000)), program.random() < 0.5, program.random() < 0.5
        draw = random.Random(f"{seed} {submission.job}")
        ratio = draw.choice(RATIOS)
        command = ["python", f"{submission.name}.py", option, f"{ratio * usual:.0f}"]
        command += ["--seed", str(draw.randrange(1, 1_000)), f"--lr={draw.choice((1e-4, 3e-4, 1e-3))}"]
        factor = {"--rounds": 1.0, "--num-epochs": math.sqrt(min(1.0, ratio))}.get(option, ratio)
        if variants:
            large = draw.random() < 0.5
            factor *= 2.5 if large else 1.0
            command += ["--arch", "large" if large else "small"]
        if named:
            command.append(f"--run-name=run{submission.job}")
        service_s = row.service_s * factor
        yield replace(
            row,
            submission=replace(submission, arguments=described(command), declared_iterations=None, walltime_s=None),
            ended_at_s=submission.submitted_at_s + service_s,
            iterations=None if row.iterations is None else max(1.0, round(row.iterations * factor)),
            service_s=service_s,
        )


def loss(rows: Sequence[EndedRow], left_out: str, chunks: int, seed: int) -> float:
    """The mean pinball loss of what is served without a group of features ("": with all)."""
    if left_out == ARGUMENTS:
        rows = [replace(row, submission=replace(row.submission, arguments="")) for row in rows]
    found = [examples.get(Unit.SERVICE_S) for _, examples in replay(rows, Knowledge())]
    # A constant column stands for a group that is left out, so that as many are drawn for each tree. Residuals need the base.
    hidden = [position for position, name in enumerate(NAMES) if name != "base" and group_of(name) == left_out]
    shown = [_without(example, hidden) for example in found if example is not None]
    test_start = len(shown) - int(len(shown) * TEST_RATIO)
    run = prequential.run(shown, ESTIMATORS, test_start=test_start, chunks=chunks, seed=seed)
    return float(np.mean(pinball(run.labels, prequential.serve(run).tested(run))))


def _without(example: Example, hidden: Sequence[int]) -> Example:
    features = array("d", example.features)
    for position in hidden:
        features[position] = 0.0
    return replace(example, features=features)


if __name__ == "__main__":
    main()
