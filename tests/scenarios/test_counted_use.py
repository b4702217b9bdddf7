"""What policies say they have counted: by user (``fair``), by project (``fair_share``), both, or nothing."""

import math
from typing import Any

import pytest

from policies.base import shares_of
from policies.model.shares import Shares
from policies.registry import BUILT_IN
from service.engine.watch import WatchingPolicy
from tests.scenarios.dsl import Story, policy

HALF_LIFE_S = 100.0


def story(name: str, **options: object) -> Story:
    """Two jobs of 100 s that hold 3 GPUs and 1 GPU, of two users and projects; then 100 s of nothing."""
    told = Story("1x4", policy(name, **options))
    told.job("wide", gpus=3, runs_s=100, user="ada", project="nlp")
    told.job("narrow", gpus=1, runs_s=100, user="bob", project="vision").until(0)
    return told


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"fair"}))
def test_a_policy_without_shares_counts_nothing(name: str) -> None:
    assert story(name).engine.shares() == Shares()


def test_fair_counts_the_gpu_seconds_of_users_for_ever() -> None:
    told = story("fair")

    def used() -> dict[str, float]:
        shares = told.engine.shares()
        assert (shares.projects, shares.half_life_s) == (None, None)
        assert {each.weight for each in shares.users or ()} == {1.0}
        return {each.name: each.used_gpu_s for each in shares.users or ()}

    assert told.until(50).engine.world.now_s == 50.0
    assert used() == pytest.approx({"ada": 150.0, "bob": 50.0})
    told.until(100)
    told.until(400)
    assert used() == pytest.approx({"ada": 300.0, "bob": 100.0})
    levels = {each.name: each.level for each in told.engine.shares().users or ()}
    # Level k begins at 60 x (1.25^k - 1) GPU-seconds.
    assert levels == {name: math.floor(math.log(1.0 + gpu_s / 60.0, 1.25)) for name, gpu_s in used().items()}


def test_projects_are_counted_with_their_weights_and_half_of_it_decays() -> None:
    told = story("sjf", fair_share=True, fair_share_half_life_s=HALF_LIFE_S, project_weights="nlp:3")
    told.until(100)

    def used() -> dict[str, float]:
        shares = told.engine.shares()
        assert (shares.users, shares.half_life_s) == (None, HALF_LIFE_S)
        assert {each.name: each.weight for each in shares.projects or ()} == {"nlp": 3.0, "vision": 1.0}
        return {each.name: each.used_gpu_s for each in shares.projects or ()}

    # GPUs held for one half-life: the integral of 2^-(age / half-life).
    held = HALF_LIFE_S / math.log(2.0) / 2.0
    assert used() == pytest.approx({"nlp": 3.0 * held, "vision": held})
    told.until(100 + HALF_LIFE_S)
    assert used() == pytest.approx({"nlp": 1.5 * held, "vision": held / 2.0})
    # By weight both have used the same.
    levels = {each.level for each in told.engine.shares().projects or ()}
    assert len(levels) == 1


def test_fair_with_shares_of_projects_counts_both() -> None:
    shares = story("fair", fair_share=True).until(50).engine.shares()
    assert [each.name for each in shares.users or ()] == ["ada", "bob"]
    assert [each.name for each in shares.projects or ()] == ["nlp", "vision"]


def test_a_watched_policy_counts_as_its_own_and_one_without_the_method_nothing() -> None:
    told = Story("1x4", WatchingPolicy(policy("fair"))).job("one", gpus=2, runs_s=9, user="ada").until(5)
    [account] = told.engine.shares().users or ()
    assert (account.name, account.used_gpu_s) == ("ada", 10.0)
    nothing: Any = object()
    assert shares_of(nothing, told.engine.world, None) == Shares()
