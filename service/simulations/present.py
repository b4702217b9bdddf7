"""The queue as it is under several policies: the runs, and the report ``sooner.sim.outlook/1``."""

from collections.abc import Sequence
from typing import Any

from policies.registry import make_policy
from service.forecast.whatif import Candidate, Outlooks
from service.history.cycles import CycleSnapshot
from service.simulations.request import CURRENT
from service.simulations.runs import Plan

SCHEMA = "sooner.sim.outlook/1"

JOBS_MAX = 100_000
"""Unfinished jobs of a snapshot; a run of more would take hours."""


def candidates_of(recorded: CycleSnapshot, plans: Sequence[Plan]) -> list[Candidate]:
    """The policy of the snapshot with its state, then those of the plans. Raises OptionError."""
    in_force = Candidate(CURRENT, make_policy(recorded.policy, recorded.options), recorded.dump)
    return [in_force, *(Candidate(plan.label, make_policy(plan.policy, plan.options)) for plan in plans)]


def outlook_report(cycle: int, policy: str, found: Outlooks) -> dict[str, Any]:
    """The document of these outlooks. ``policy`` is the name of the policy in force."""
    return {
        "schema": SCHEMA,
        "cycle": cycle,
        "now_s": found.now_s,
        "current": policy,
        "samples": found.samples,
        "unfinished": found.unfinished,
        "jobs": len(found.jobs),
        "policies": [
            {
                "policy": each.label,
                "mean_jct_s": each.mean_jct_s,
                "mean_jct_p10_s": each.mean_jct_spread_s.p10_s,
                "mean_jct_p90_s": each.mean_jct_spread_s.p90_s,
                "better_in": each.better_in,
                "finishes": [
                    {"job_id": job, "p10_s": end.p10_s, "p50_s": end.p50_s, "p90_s": end.p90_s}
                    for job, end in each.finishes.items()
                ],
            }
            for each in found.outlooks
        ],
    }
