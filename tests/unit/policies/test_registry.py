"""Policies by name, built in and plugged in."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest

from policies import registry
from policies.builtin.sjf import Sjf
from policies.options import OptionError, Preemption


def test_the_names_are_sorted_and_each_makes_its_policy() -> None:
    assert set(registry.policy_names()) >= {"asrpt", "fifo", "fifo_backfill", "las", "sjf", "srsf"}
    assert list(registry.policy_names()) == sorted(registry.policy_names())
    for name in registry.policy_names():
        assert registry.make_policy(name).name == name


def test_defaults_are_the_documented_ones() -> None:
    assert registry.BUILT_IN["asrpt"].defaults.preemption is Preemption.GUIDED
    assert registry.BUILT_IN["srsf"].defaults.preemption is Preemption.ALWAYS
    assert registry.BUILT_IN["sjf"].defaults.preemption is Preemption.NEVER


def test_an_unknown_name_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"unknown policy 'best'; known: .*asrpt"):
        registry.make_policy("best")


def make_plugged(options: Mapping[str, str]) -> Sjf:
    """What a plug-in's entry point refers to."""

    class Mine(Sjf):
        name = f"mine-{options['shade']}"

    return Mine(registry.BUILT_IN["sjf"].defaults)


def test_a_plug_in_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:make_plugged", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group, name=None: [point] if name in (None, "mine") else [])
    assert "mine" in registry.policy_names()
    assert registry.make_policy("mine", {"shade": "blue"}).name == "mine-blue"
    with pytest.raises(OptionError, match=r"known: .*mine"):
        registry.make_policy("other")
