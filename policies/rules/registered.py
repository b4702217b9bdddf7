"""The rules in force. To add one, write a module with a rule and name it here."""

import math
from collections.abc import Callable, Hashable

from policies.lifecycle import JobState
from policies.model.job import JobSpec
from policies.model.view import JobView, PreemptionCosts
from policies.options import Options
from policies.rules.equal_shares import EqualSharesRule
from policies.rules.minimum_run_time import MinimumRunTime
from policies.rules.progress_first import ProgressFirst
from policies.rules.protocols import PlacementRule, PreemptionRule
from policies.rules.restart_limit import RestartLimit
from policies.rules.topology import TopologyRule
from policies.rules.unsaved_work import UnsavedWork

PLACEMENT_RULES: tuple[PlacementRule, ...] = (TopologyRule(), EqualSharesRule())

PREEMPTION_RULES: tuple[Callable[[Options], PreemptionRule | None], ...] = (
    MinimumRunTime,
    RestartLimit.under,
    ProgressFirst.under,
    UnsavedWork.under,
)
"""Each makes a rule under a policy's options; None where the options switch it off."""


def placement_rules(spec: JobSpec) -> list[PlacementRule]:
    """The placement rules that concern the job. O(rules)."""
    return [rule for rule in PLACEMENT_RULES if rule.demand(spec) is not None]


def demands(spec: JobSpec) -> tuple[tuple[str, Hashable], ...]:
    """What the job demands of each placement rule that concerns it. O(rules)."""
    found: tuple[tuple[str, Hashable], ...] = ()
    for rule in PLACEMENT_RULES:
        if (demand := rule.demand(spec)) is not None:
            found += ((rule.name, demand),)
    return found


def preemption_rules(options: Options) -> tuple[PreemptionRule, ...]:
    """The preemption rules in force under these options."""
    made = [make(options) for make in PREEMPTION_RULES]
    return tuple([rule for rule in made if rule is not None])


def protected_until_s(rules: tuple[PreemptionRule, ...], costs: PreemptionCosts, job: JobView) -> float:
    """When the job's present attempt may be stopped at the earliest; infinite for a job without one, or whose one is starting.

    An engine may take seconds to start an attempt. Stopped before that, it would have made no progress, again and again while
    better jobs arrive. A start ends soon by itself: as a change of the job, or by the limits of the executor on the time of a
    start and on the submits that fail. O(rules).
    """
    began_at_s = job.attempt_began_at_s
    if began_at_s is None or job.state is JobState.STARTING:
        return math.inf
    protected_s = 0.0
    for rule in rules:
        if (seconds := rule.protected_s(costs, job)) > protected_s:
            protected_s = seconds
    return began_at_s + protected_s
