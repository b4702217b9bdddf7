"""Random crowds of which many jobs cannot checkpoint and many are slower on several servers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.model.decision import Change, Decision, Preempt
from policies.model.placement import Slowdown
from policies.model.view import ClusterView
from policies.registry import make_policy
from policies.rules.unsaved_work import cannot_save
from service.sim.executor import ExecutorCosts
from tests.scenarios.chance import Watched, needs, stating
from tests.scenarios.dsl import Story


class Sparing(Watched):
    """Checks that no job is stopped that cannot checkpoint, beside what it derives from."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        decision = super().decide(view, changes, state)
        stopped = [view.jobs[action.job] for action in decision.actions if isinstance(action, Preempt)]
        assert not [job.id for job in stopped if cannot_save(job)]
        return decision


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("asrpt", {"guard_wait_s": "100"}),
        ("asrpt", {"fill": "server_filling"}),
        ("asrpt", {"preemption": "always", "guard_wait_s": "50"}),
        ("srsf", {}),
        ("las", {"guard_wait_s": "100"}),
    ],
)
def test_none_is_stopped_and_a_rebuilt_state_decides_the_same(name: str, options: dict[str, str], seed: int) -> None:
    dice = random.Random(seed)
    racks = [replace(server, rack=f"r{index // 4}") for index, server in enumerate(stating("8x2"))]
    policy = Sparing(make_policy(name, options), rebuilt=True)
    story = Story("", policy, names=racks, costs=ExecutorCosts(checkpoint_s=8.0, restart_s=0.0))
    for number, at_s in enumerate(sorted(dice.randrange(30) * 10.0 for _ in range(30))):
        gpus, runs_s = dice.choice((1, 1, 2, 4, 8, 16)), float(dice.choice((5, 20, 60, 150, 400)) + dice.randrange(8))
        more: dict[str, Any] = needs(dice, gpus)
        if dice.random() < 0.4:
            more |= {"checkpoint_period_s": None, "preemption": None}
        if gpus > 1:
            rack = dice.choice((1.0, 1.25, 2.0))
            more["slowdown"] = Slowdown(rack, rack * dice.choice((1.0, 1.5)), measured=dice.random() < 0.6)
        predicted = dice.choice(("truth", None, runs_s * 4, runs_s / 4))
        priority = dice.choice((0, 0, 0, 1))
        story.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=at_s, predicted=predicted, priority=priority, **more)
    story.to_the_end()
