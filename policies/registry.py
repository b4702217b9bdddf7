"""Policies by name. Plug-ins register a :class:`PolicyFactory`, or a like function, in the entry-point group.

A new built-in policy is one module of :mod:`policies.builtin`, and its class in the list below.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from policies.base import Policy
from policies.builtin.asrpt import Asrpt
from policies.builtin.easy import Easy
from policies.builtin.fair import Fair
from policies.builtin.fifo import Fifo, FifoBackfill
from policies.builtin.gittins import Gittins
from policies.builtin.las import Las
from policies.builtin.promise import PromisedEnds
from policies.builtin.sjf import Sjf, WcsDuration
from policies.builtin.srsf import Srsf
from policies.builtin.srtf import Srtf
from policies.builtin.swf import Swf, WcsWorkload
from policies.options import FAIR_SHARE, PREEMPTION_OPTIONS, OptionError, Preemption, parse_options
from policies.ranked import RankedPolicy

ENTRY_POINT_GROUP = "sooner.policies"


class PolicyFactory:
    """Makes a policy from options. ``preemptive``: whether it takes other values of ``preemption`` than never."""

    def __init__(self, make: type[RankedPolicy]) -> None:
        self.make = make
        self.name = make.name
        self.summary = make.summary
        self.defaults = make.defaults
        self.options = make.option_names | FAIR_SHARE
        self.preemptive = make.option_names >= PREEMPTION_OPTIONS

    def __call__(self, options: Mapping[str, str]) -> Policy[Any]:
        """A policy with these options in place of the defaults. Raises OptionError."""
        wanted = options.get("preemption")
        if not self.preemptive and wanted not in (None, Preemption.NEVER.value):
            raise OptionError(f"option preemption: policy {self.name} does not preempt; only 'never' is possible")
        return self.make(parse_options(self.defaults, options, self.options))


_FACTORIES = [
    PolicyFactory(kind)
    for kind in (
        *(Asrpt, Easy, Fair, Fifo, FifoBackfill, Gittins, Las, PromisedEnds, Sjf, Srsf, Srtf, Swf),
        *(WcsDuration, WcsWorkload),
    )
]

BUILT_IN: Mapping[str, PolicyFactory] = {factory.name: factory for factory in _FACTORIES}


def policy_names() -> tuple[str, ...]:
    """All known names, built-in and plugged in, sorted."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def make_policy(name: str, options: Mapping[str, str] | None = None) -> Policy[Any]:
    """The policy of that name. OptionError for an unknown name or option."""
    factory = BUILT_IN.get(name)
    if factory is not None:
        return factory(options or {})
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        plugged: Policy[Any] = point.load()(options or {})
        return plugged
    raise OptionError(f"unknown policy {name!r}; known: {', '.join(policy_names())}")
