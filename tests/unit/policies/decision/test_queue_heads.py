"""Shortcuts change nothing: a policy that looks at each job and tries each class in each cycle decides the same."""

from collections.abc import Sequence
from typing import Any

import pytest

from policies import ranked
from policies.builtin.asrpt import Asrpt
from policies.builtin.las import Las
from policies.builtin.sjf import Sjf
from policies.decision import queue_heads
from policies.model.cluster import Cluster, Server
from policies.model.decision import Change, Decision
from policies.model.view import ClusterView
from policies.options import Options, Preemption, Queue
from policies.state.scheduler_state import SchedulerState
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.generate import generate


def _slow(policy: type[ranked.RankedPolicy]) -> type[ranked.RankedPolicy]:
    """The same policy without shortcuts: it trusts no line, and no scan outlasts its cycle."""

    class Slow(policy):  # type: ignore[misc, valid-type]
        ranks_keep_to_lines = False

        def decide(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> Decision:
            state.scan.valid = False
            decision: Decision = policy.decide(self, view, changes, state)
            return decision

    return Slow


@pytest.mark.parametrize("communication", [False, True])
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (Asrpt, Asrpt.defaults),
        (Asrpt, Options(preemption=Preemption.NEVER)),
        (Asrpt, Options(preemption=Preemption.GUIDED, restarts_free=2.0, restarted_attempt_s_min=600.0)),
        (Las, Options(preemption=Preemption.GUIDED)),
        (Sjf, Options()),
        (Sjf, Options(reserve=True, guard_wait_s=3600.0)),
        (Sjf, Options(queue=Queue.STRICT)),
    ],
    ids=["guided", "never", "protected", "las", "sjf", "reserve", "strict"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_shortcuts_do_not_change_the_result(
    policy: type[ranked.RankedPolicy],
    options: Options,
    communication: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("c", tuple(Server(f"s{index}", 8, nic_bytes_s=3.125e9) for index in range(4)))
    workload = generate(seed, 120, gpus=32, load=1.3, communication=communication)
    settings = SimulationOptions(seed=seed, skip_invalid=True)
    predictor = f"noisy:{seed - 1}"
    quick = run(workload, cluster, policy(options), predictor, settings)
    monkeypatch.setattr(queue_heads.QueueHeads, "_is_infeasible", _never_infeasible)
    slow = run(workload, cluster, _slow(policy)(options), predictor, settings)
    assert quick.outcomes == slow.outcomes
    assert quick.result.events == slow.result.events


def _never_infeasible(self: queue_heads.QueueHeads, head: Any) -> bool:
    return False
