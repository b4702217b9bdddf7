"""Policies by name. Plug-ins register a :class:`PolicyFactory` in the entry-point group ``sooner.policies``."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from policies import asrpt, fifo, las, sjf, srsf
from policies.base import Policy
from policies.options import OptionError, Options, Preemption, parse_options
from policies.ranked import RankedPolicy

ENTRY_POINT_GROUP = "sooner.policies"


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """How to make a policy from options. ``preemptive``: whether it takes other values of ``preemption`` than never."""

    make: type[RankedPolicy]
    defaults: Options
    options: frozenset[str]
    preemptive: bool
    summary: str

    def __call__(self, options: Mapping[str, str]) -> Policy[Any]:
        """A policy with these options in place of the defaults. Raises OptionError."""
        wanted = options.get("preemption")
        if not self.preemptive and wanted not in (None, Preemption.NEVER.value):
            raise OptionError(f"option preemption: policy {self.make.name} does not preempt; only 'never' is possible")
        return self.make(parse_options(self.defaults, options, self.options))


BUILT_IN: Mapping[str, PolicyFactory] = {
    "asrpt": PolicyFactory(asrpt.Asrpt, asrpt.DEFAULTS, asrpt.OPTIONS, True, "SRPT relaxation guides placement"),
    "fifo": PolicyFactory(fifo.Fifo, fifo.STRICT_DEFAULTS, fifo.OPTIONS, False, "strict first in, first out"),
    "fifo_backfill": PolicyFactory(
        fifo.FifoBackfill,
        fifo.BACKFILL_DEFAULTS,
        fifo.BACKFILL_OPTIONS,
        False,
        "first in, first out; whoever fits may pass",
    ),
    "las": PolicyFactory(las.Las, las.DEFAULTS, las.OPTIONS, True, "least attained service, discretised"),
    "sjf": PolicyFactory(sjf.Sjf, sjf.DEFAULTS, sjf.OPTIONS, False, "shortest predicted job first"),
    "srsf": PolicyFactory(srsf.Srsf, srsf.DEFAULTS, srsf.OPTIONS, True, "shortest remaining service first"),
}


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
