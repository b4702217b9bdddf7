"""Policies by name. Plug-ins register a :class:`PolicyFactory` in the entry-point group ``sooner.policies``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from policies.base import Policy
from policies.builtin import asrpt, easy, fair, fifo, gittins, las, sjf, srsf, srtf, swf
from policies.options import FAIR_SHARE, OptionError, Options, Preemption, parse_options
from policies.ranked import RankedPolicy

ENTRY_POINT_GROUP = "sooner.policies"


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """Makes a policy from options. ``preemptive``: whether it takes other values of ``preemption`` than never.

    ``alias``: another name for it, which the policy then goes by.
    """

    make: type[RankedPolicy]
    defaults: Options
    options: frozenset[str]
    preemptive: bool
    summary: str
    alias: str = ""

    def __post_init__(self) -> None:
        """Every policy takes the options of fair share."""
        object.__setattr__(self, "options", self.options | FAIR_SHARE)

    def __call__(self, options: Mapping[str, str]) -> Policy[Any]:
        """A policy with these options in place of the defaults. Raises OptionError."""
        name = self.alias or self.make.name
        wanted = options.get("preemption")
        if not self.preemptive and wanted not in (None, Preemption.NEVER.value):
            raise OptionError(f"option preemption: policy {name} does not preempt; only 'never' is possible")
        policy = self.make(parse_options(self.defaults, options, self.options))
        policy.name = name
        return policy


_SJF = PolicyFactory(sjf.Sjf, sjf.DEFAULTS, sjf.OPTIONS, False, "shortest predicted job first")
_SWF = PolicyFactory(swf.Swf, swf.DEFAULTS, swf.OPTIONS, False, "smallest predicted workload first")

BUILT_IN: Mapping[str, PolicyFactory] = {
    "asrpt": PolicyFactory(asrpt.Asrpt, asrpt.DEFAULTS, asrpt.OPTIONS, True, "SRPT relaxation guides placement"),
    "easy": PolicyFactory(
        easy.Easy, easy.DEFAULTS, easy.OPTIONS, False, "first in, first out; jobs that do not delay the head may pass"
    ),
    "fair": PolicyFactory(fair.Fair, fair.DEFAULTS, fair.OPTIONS, False, "the user who has used least comes first"),
    "fifo": PolicyFactory(fifo.Fifo, fifo.STRICT_DEFAULTS, fifo.OPTIONS, False, "strict first in, first out"),
    "fifo_backfill": PolicyFactory(
        fifo.FifoBackfill,
        fifo.BACKFILL_DEFAULTS,
        fifo.BACKFILL_OPTIONS,
        False,
        "first in, first out; jobs that fit may pass",
    ),
    "gittins": PolicyFactory(
        gittins.Gittins, gittins.DEFAULTS, gittins.OPTIONS, True, "soonest to end, by what ended jobs have taken"
    ),
    "las": PolicyFactory(las.Las, las.DEFAULTS, las.OPTIONS, True, "least attained service, discretised"),
    "sjf": _SJF,
    "srsf": PolicyFactory(srsf.Srsf, srsf.DEFAULTS, srsf.OPTIONS, True, "shortest remaining service first"),
    "srtf": PolicyFactory(srtf.Srtf, srtf.DEFAULTS, srtf.OPTIONS, True, "shortest remaining time first"),
    "swf": _SWF,
    "wcs_duration": replace(_SJF, alias="wcs_duration", summary="another name of sjf"),
    "wcs_workload": replace(_SWF, alias="wcs_workload", summary="another name of swf"),
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
