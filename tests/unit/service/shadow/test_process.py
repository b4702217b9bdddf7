"""The process in which a shadow decides: the same account as in this process, and every way to misbehave."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from typing import Any

import psutil
import pytest

from policies.base import Policy
from policies.model.decision import Change, Decision
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.shadow import shadow as shadow_module
from service.shadow.process import ShadowProcess
from service.shadow.shadow import OVERRUNS_MAX, PAUSE_S, Shadow, Status
from tests.conformance.policy_suite import history
from tests.local_shadow import local_shadow
from tests.scenarios.chance import crowd
from tests.scenarios.dsl import Story, cluster, policy
from tests.unit.service.shadow.test_shadow import agreement

MIB = 2**20
AMPLE_S = 120.0


@pytest.fixture
def process() -> Iterator[ShadowProcess]:
    made = ShadowProcess(2048 * MIB)
    yield made
    made.close()


def answered(shadow: Shadow, story: Story) -> None:
    wait(shadow.unanswered(), AMPLE_S)
    shadow.agreement(story.engine.world)


@pytest.mark.parametrize(("first", "other"), [("fifo", "asrpt"), ("srtf", "fifo_backfill"), ("asrpt", "asrpt")])
def test_counts_equal_those_of_a_shadow_in_this_process(process: ShadowProcess, first: str, other: str) -> None:
    here = crowd(3, local_shadow(policy(first), policy(other))).to_the_end()
    shadow = Shadow(policy(first), policy(other), budget_s=AMPLE_S, worker=process)
    there = crowd(3, shadow).to_the_end()
    answered(shadow, there)
    assert (shadow.status, shadow.reason) == (Status.WATCHING, "")
    assert agreement(there).saved() == agreement(here).saved()
    assert agreement(there).totals.passes > 10


class Broken(WatchingPolicy):
    """Does something before every decision. Sent to another process, so it is told what by name."""

    def __init__(self, inner: Policy[Any], what: str) -> None:
        super().__init__(inner)
        self.what = what

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        _ACTS[self.what]()
        return super().decide(view, changes, state)


def _hang() -> None:
    while True:
        pass


_ACTS: dict[str, Callable[[], object]] = {
    "hang": _hang,
    "hang in C": lambda: time.sleep(AMPLE_S),
    "crash": lambda: os._exit(3),
    "exit": lambda: (_ for _ in ()).throw(SystemExit(4)),
    "eat memory": lambda: bytearray(8192 * MIB),
}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("hang", "it took longer than 0.05 s"),
        ("hang in C", "it took longer than 0.05 s"),
        ("crash", "its process ended (exit code 3)"),
        ("exit", "its process ended (exit code 4)"),
    ],
)
def test_a_process_that_hangs_or_ends_pauses_the_shadow_until_it_starts_again(
    process: ShadowProcess, what: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(policy("sjf"), what)
    # Only the decision may exceed its time limit, also on a busy machine.
    monkeypatch.setattr(shadow_module, "REBUILD_BUDGETS", AMPLE_S / 0.05)
    shadow = Shadow(policy("fifo"), broken, budget_s=0.05 if "hang" in what else AMPLE_S, worker=process)
    story = cluster("1x4", shadow).job("a", gpus=4, runs_s=10_000.0).until(1)
    for number in range(1, OVERRUNS_MAX + 1):
        answered(shadow, story)
        assert shadow.overruns == number
        if number < OVERRUNS_MAX:
            assert (shadow.status, shadow.reason) == (Status.PAUSED, reason)
            story.job(f"j{number}", gpus=4, at_s=story.clock.now_s() + PAUSE_S).until(story.clock.now_s() + PAUSE_S)
    assert (shadow.status, shadow.reason) == (Status.DISABLED, f"it gave no decision 5 times within an hour: {reason}")
    story.to_the_end()
    assert agreement(story).totals.passes == 0


def test_a_process_above_its_memory_limit_is_switched_off_and_ended(process: ShadowProcess) -> None:
    shadow = Shadow(policy("asrpt"), Broken(policy("sjf"), "eat memory"), budget_s=AMPLE_S, worker=process)
    story = crowd(2, shadow).to_the_end()
    answered(shadow, story)
    assert (shadow.status, shadow.failures) == (Status.DISABLED, 1)
    assert shadow.reason == "it failed: MemoryError: "
    assert history(story) == history(crowd(2, policy("asrpt")).to_the_end())
    child = process._child._process
    assert child is not None and child.poll() is not None


def test_the_loop_does_not_wait_and_the_backlog_is_limited(
    process: ShadowProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.shadow.shadow.BACKLOG_MAX", 8)
    shadow = Shadow(policy("asrpt"), Broken(policy("sjf"), "hang in C"), budget_s=AMPLE_S, worker=process)
    story = crowd(2, shadow).to_the_end()
    assert "it is 8 cycles behind" in shadow.reason
    assert agreement(story).totals.skipped > 8
    assert history(story) == history(crowd(2, policy("asrpt")).to_the_end())


def test_the_process_ends_with_its_parent(process: ShadowProcess) -> None:
    shadow = Shadow(policy("fifo"), policy("sjf"), budget_s=AMPLE_S, worker=process)
    story = cluster("1x4", shadow).job("a", gpus=4).until(0)
    answered(shadow, story)
    child = process._child._process
    assert child is not None
    running = psutil.Process(child.pid)
    assert running.nice() == min(19, psutil.Process().nice() + 10)
    shadow.close()
    assert not running.is_running() or running.status() == psutil.STATUS_ZOMBIE
