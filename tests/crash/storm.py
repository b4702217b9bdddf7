"""SIGKILL at random instants of a real service that is busy: ``python -m tests.crash.storm --kills 50``.

The instants fall while it serves and while it starts; jobs are submitted, displaced and cancelled all the time. In the end
every promise is checked (:meth:`tests.crash.mortal.MortalService.assert_sound`).
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.mortal import FAMILIES, MortalService

_SERVING_S = 0.9
_STARTING_S = 1.6
_STARTING_SHARE = 0.35


@dataclass(frozen=True)
class Told:
    """What a storm was like."""

    kills: int
    while_starting: int
    jobs: int
    attempts: int
    preemptions: int


def storm(folder: Path, *, kills: int, seed: int) -> Told:
    """Kill so often, then check everything. Raises AssertionError that names the seed."""
    dice = random.Random(seed)
    mortal = MortalService.on(folder)
    try:
        starting = sum(_one_kill(mortal, dice, number) for number in range(kills))
        mortal.assert_sound()
        jobs = [mortal.live.job(accepted.job) for accepted in mortal.accepted.values()]
    except AssertionError as error:
        raise AssertionError(f"repeat with: python -m tests.crash.storm --kills {kills} --seed {seed}") from error
    finally:
        mortal.live.close()
    attempts, preemptions = (sum(job[count] for job in jobs) for count in ("attempts", "preemptions"))
    return Told(kills, starting, len(jobs), attempts, preemptions)


def _one_kill(mortal: MortalService, dice: random.Random, number: int) -> bool:
    """Some requests, some time, a kill; whether it came while the service started."""
    starting = dice.random() < _STARTING_SHARE
    if starting:
        if mortal.dead:
            mortal.live.launch()
        time.sleep(dice.uniform(0.0, _STARTING_S))
    else:
        mortal.revive()
        for index in range(dice.choice((0, 1, 1, 2))):
            job = mortal.submit(f"{number}.{index}", dice.choice(list(FAMILIES)))
            if dice.random() < 0.2:
                mortal.cancel(job)
        time.sleep(dice.uniform(0.0, _SERVING_S))
    if not mortal.dead:
        mortal.live.kill()
    return starting


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one storm and say what it was like."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        told = storm(Path(folder) / "storm", kills=asked.kills, seed=asked.seed)
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
