"""A shadow policy in the storm: whatever happens to the first policy's world, the shadow lives with it and changes nothing."""

import random
from typing import Any

import pytest

from policies.base import Policy
from policies.registry import BUILT_IN
from service.shadow.shadow import Shadow, Status
from tests.local_shadow import local_shadow
from tests.simulation.swarm import Swarm, swarm
from tests.simulation.weather import Weather, weather

SEEDS = range(14)


def _beside(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every policy of a storm gets a shadow with options of its own, drawn from the seed; each restart makes a new pair."""
    other = weather(random.Random(seed + 1_000_000))
    alone = Weather.make

    def make(self: Weather) -> Policy[Any]:
        return local_shadow(alone(self), alone(other))

    monkeypatch.setattr(Weather, "make", make)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shadow_survives_the_storm_and_the_first_policy_does_not_notice(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    name = sorted(BUILT_IN)[seed % len(BUILT_IN)]
    plain: Swarm = swarm(seed, name)
    _beside(monkeypatch, seed)
    shadowed = swarm(seed, name)
    assert shadowed.log.events == plain.log.events
    shadow = shadowed.engine.policy
    assert isinstance(shadow, Shadow)
    assert (shadow.status, shadow.reason, shadow.rejected) == (Status.WATCHING, "", 0), f"seed {seed}"
    account = shadow.agreement(shadowed.engine.world)
    assert account.totals.passes > 50
    assert (account.unwanted, account.wished_starts, account.wished_stops) == ({}, {}, {})
    assert (account._agreed, account.unwanted, account.wished_starts) == ({}, {}, {})
    assert (account._gpus_agreed, account._gpus_unwanted, account._gpus_wished) == (0, 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_policy_agrees_with_itself_in_the_storm(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    alone = Weather.make
    monkeypatch.setattr(Weather, "make", lambda self: local_shadow(alone(self), alone(self)))
    story = swarm(seed, sorted(BUILT_IN)[seed % len(BUILT_IN)])
    shadow = story.engine.policy
    assert isinstance(shadow, Shadow)
    told = shadow.agreement(story.engine.world).totals
    assert told.starts.both > 0
    if not story.weather.kinds.isdisjoint({"store", "restart", "death"}):
        # After a start the first policy remembers what the store kept some cycles ago, the shadow here its last pass.
        return
    assert (told.starts.first_only, told.starts.shadow_only) == (0, 0)
    assert (told.preemptions.first_only, told.preemptions.shadow_only) == (0, 0)
    assert told.same_placement == told.starts.both
