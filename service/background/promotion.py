"""Decide whether a newly trained model becomes the champion: first the gates, then the completion time in a replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from predictor.replay_sheet import BASELINES, CHAMPION, NEW

JCT_RATIO_MAX: Final = 1.01
"""Largest accepted ratio of completion times. Two simulations with equally good predictions differ by as much."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``detail``: text for the run's record."""

    promoted: bool
    detail: str


def decide(rehearsal: Mapping[str, Any]) -> Decision:
    """Promote the new model unless the current champion, or serving no model, has a mean completion time (s) in the replay
    that is better by more than :data:`JCT_RATIO_MAX`.
    """
    jct_s: Mapping[str, float] = rehearsal["mean_jct_s"]
    rivals = {name: jct_s[arm] for arm, name in _RIVALS.items() if arm in jct_s}
    promoted = all(jct_s[NEW] <= JCT_RATIO_MAX * rival_s for rival_s in rivals.values())
    against = " and ".join(f"{rival_s:,.0f} s of {name}" for name, rival_s in rivals.items())
    detail = f"JCT {jct_s[NEW]:,.0f} s against {against}, replaying {rehearsal['jobs']:,} jobs"
    return Decision(promoted, detail + _advice(jct_s, rehearsal.get("over_run_mean_jct_s", {})))


def _advice(jct_s: Mapping[str, float], ruled_s: Mapping[str, float]) -> str:
    """Name the better ``over_run`` rule for jobs that exceed their estimates; empty unless it is better by more than chance."""
    rule = min(ruled_s, key=lambda each: ruled_s[each], default=None)
    if rule is None or JCT_RATIO_MAX * ruled_s[rule] > min(jct_s.values()):
        return ""
    return f"; over_run={rule} would have given {ruled_s[rule]:,.0f} s"


_RIVALS: Final = {CHAMPION: "the champion", BASELINES: "the baselines alone"}
