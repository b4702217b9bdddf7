"""Every built-in policy against the contract."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policies.options import OptionError
from policies.registry import BUILT_IN, make_policy
from tests.conformance.policy_suite import Make, RankedPolicyContract, history
from tests.scenarios.chance import crowd
from tests.scenarios.dsl import policy

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
class TestBuiltIn(RankedPolicyContract):
    @pytest.fixture
    def make(self, name: str) -> Make:
        return functools.partial(policy, name)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"order": "virtual", "queue": "strict", "preemption": "never"},
        {"release": "early", "preemption": "never"},
        {"preemption": "always"},
        {"guard_share": "1", "guard_wait_s": "60"},
        {"attempt_duration_s_min": "30", "over_run": "attained"},
        {"placement": "random"},
        {"placement": "random", "preemption": "never"},
    ],
    ids=lambda options: ",".join(options.values()),
)
class TestVariantsOfAsrpt(RankedPolicyContract):
    @pytest.fixture
    def make(self, options: dict[str, str]) -> Make:
        return lambda **more: make_policy("asrpt", {**options, **more})


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"wcs_duration", "wcs_workload", "swf"}))
class TestFairShare(RankedPolicyContract):
    """With a half-life so short that levels move many times within a story."""

    @pytest.fixture
    def make(self, name: str) -> Make:
        shares = {"fair_share": "true", "fair_share_half_life_s": "200", "project_weights": "p0:4+p1:0.5"}
        return lambda **more: make_policy(name, {**shares, **more})


@pytest.mark.parametrize("name", ["fifo", "fifo_backfill", "sjf"])
def test_a_policy_without_preemption_refuses_to_be_told_otherwise(name: str) -> None:
    assert make_policy(name, {"preemption": "never"}).name == name
    with pytest.raises(OptionError, match=f"policy {name} does not preempt"):
        make_policy(name, {"preemption": "guided"})


def test_the_seed_of_the_hash_function_changes_nothing() -> None:
    """In processes of their own, since the seed is drawn at the start of each."""
    told = {_told_with(hash_seed) for hash_seed in ("0", "1", "4242")}
    assert len(told) == 1
    assert len(told.pop().splitlines()) == len(BUILT_IN)


def _told_with(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    program = "from tests.conformance.test_policies import tell; tell()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def tell() -> None:
    """Print what each policy does with one workload."""
    for name in sorted(BUILT_IN):
        print(name, history(crowd(7, make_policy(name)).to_the_end()))
