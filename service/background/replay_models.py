"""``python -m service.background.replay_models SHEET SETUP OUT``: replay a sheet in a process of its own, for a training.

The process is a child of the service (:mod:`service.runtime.limited_process`). Parent and child run the same version of the
program, so SETUP and OUT are not stable formats.
"""

import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.rank import OverRun
from policies.registry import BUILT_IN, make_policy
from predictor.replay_sheet import read_sheet
from service.sim.experiment import SimulationOptions
from service.sim.promotion import rehearse


@dataclass(frozen=True, slots=True)
class Setup:
    """The conditions of the replay: policy, options and cluster of this service."""

    policy: str
    policy_options: Mapping[str, str]
    cluster: Cluster
    options: SimulationOptions


def _other_rules(setup: Setup) -> dict[str, Callable[[], Policy[Any]]]:
    """The policy with each other ``over_run`` rule than the configured one; empty if the policy has no such option."""
    factory = BUILT_IN.get(setup.policy)
    if factory is None or "over_run" not in factory.options:
        return {}
    now = setup.policy_options.get("over_run", OverRun.DOUBLE)
    options = {rule.value: {**setup.policy_options, "over_run": rule.value} for rule in OverRun if rule != now}
    return {rule: partial(make_policy, setup.policy, chosen) for rule, chosen in options.items()}


def main(arguments: Sequence[str]) -> int:
    """Run one replay. Exit codes: 0 success, 1 nothing to replay."""
    sheet, setup_file, out = map(Path, arguments)
    setup: Setup = pickle.loads(setup_file.read_bytes())  # noqa: S301 (our own parent)
    try:
        found = rehearse(
            list(read_sheet(sheet)),
            setup.cluster,
            lambda: make_policy(setup.policy, setup.policy_options),
            setup.options,
            _other_rules(setup),
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    out.write_text(json.dumps(found.to_json(), allow_nan=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
