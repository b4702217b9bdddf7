"""``python -m service.tasks.replay_models SHEET SETUP OUT``: replay a sheet in a process of its own, as a training does.

It is the service's own child (:mod:`service.tasks.bounded`) and both ends run the same program; SETUP and OUT are no formats.
"""

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from policies.model.cluster import Cluster
from policies.registry import make_policy
from predictor.replay_sheet import read_sheet
from service.sim.experiment import SimulationOptions
from service.sim.promotion import rehearse


@dataclass(frozen=True, slots=True)
class Setup:
    """Under what the jobs are replayed: as this service schedules."""

    policy: str
    policy_options: Mapping[str, str]
    cluster: Cluster
    options: SimulationOptions


def main(arguments: Sequence[str]) -> int:
    """Run one replay. Exit codes: 0 done, 1 there is nothing to replay."""
    sheet, setup_file, out = map(Path, arguments)
    setup: Setup = pickle.loads(setup_file.read_bytes())  # noqa: S301 (our own parent)
    try:
        found = rehearse(
            list(read_sheet(sheet)),
            setup.cluster,
            lambda: make_policy(setup.policy, setup.policy_options),
            setup.options,
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    out.write_text(json.dumps(found.to_json(), allow_nan=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
