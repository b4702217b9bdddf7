"""Decide whether a newly trained model becomes the champion: first the gates, then the completion time in a replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from policies.model.estimate import Unit
from predictor.registry import ModelVersion
from predictor.replay_sheet import BASELINES, CHAMPION

JCT_RATIO_MAX: Final = 1.01
"""Largest accepted ratio of completion times. Two simulations with equally good predictions differ by as much."""
TIE_RATIO: Final = 1.005
"""Among kinds within this ratio of the best completion time the lowest pinball loss wins."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``champions``: the kind of each unit that the model would serve; ``detail``: text for the run's record."""

    promoted: bool
    champions: Mapping[Unit, str]
    detail: str


def decide(version: ModelVersion, rehearsal: Mapping[str, Any]) -> Decision:
    """Choose the kind with the best mean completion time (s) in the replay among those that passed the gate. Promote it unless
    the current champion, or serving no model, is better by more than :data:`JCT_RATIO_MAX`.
    """
    jct_s: Mapping[str, float] = rehearsal["mean_jct_s"]
    kinds = [arm for arm in jct_s if arm not in (BASELINES, CHAMPION)]
    best_s = min(jct_s[kind] for kind in kinds)
    close = [kind for kind in kinds if jct_s[kind] <= TIE_RATIO * best_s]
    kind = min(close, key=lambda each: (_pinball(version, each), each))
    rivals = {name: jct_s[arm] for arm, name in _RIVALS.items() if arm in jct_s}
    promoted = all(jct_s[kind] <= JCT_RATIO_MAX * rival_s for rival_s in rivals.values())
    against = " and ".join(f"{rival_s:,.0f} s of {name}" for name, rival_s in rivals.items())
    detail = f"JCT {jct_s[kind]:,.0f} s with {kind} against {against}, replaying {rehearsal['jobs']:,} jobs"
    detail += _advice(jct_s, rehearsal.get("over_run_mean_jct_s", {}))
    champions = {Unit(unit): kind for unit in version.metrics if _passed(version, unit, kind)}
    return Decision(promoted, champions, detail)


def _advice(jct_s: Mapping[str, float], ruled_s: Mapping[str, float]) -> str:
    """Name the better ``over_run`` rule for jobs that exceed their estimates; empty unless it is better by more than chance."""
    rule = min(ruled_s, key=lambda each: ruled_s[each], default=None)
    if rule is None or JCT_RATIO_MAX * ruled_s[rule] > min(jct_s.values()):
        return ""
    return f"; over_run={rule} would have given {ruled_s[rule]:,.0f} s"


_RIVALS: Final = {CHAMPION: "the champion", BASELINES: "the baselines alone"}


def _passed(version: ModelVersion, unit: str, kind: str) -> bool:
    return any(each["kind"] == kind and each["passed"] for each in version.metrics[unit]["verdicts"])


def _pinball(version: ModelVersion, kind: str) -> float:
    """Mean pinball loss over the units in which the kind passed."""
    losses = [
        head["models"][kind]["pinball_log"] for unit, head in version.metrics.items() if _passed(version, unit, kind)
    ]
    return float(sum(losses) / len(losses))
