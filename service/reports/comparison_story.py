"""Sentences that explain, from the numbers alone, why the best run of a comparison is the best."""

from collections.abc import Sequence
from math import exp

from service.domain.duration import words_of
from service.reports.comparison_data import Group, RunFigures

TIE_RATIO = 1.01
"""Means closer than this count as equal: they differ by more between seeds or weeks of the same workload."""
_PRICE_RATIO = 1.05
"""Only a price above this share is worth a sentence."""
_WORTH_TELLING = 0.01
_ROUNDING = 1e-9
"""Parts below this share of a difference are left out."""


def story(runs: Sequence[RunFigures]) -> str:
    """A paragraph. Runs that left jobs behind cannot win."""
    if not runs[0].result.jobs:
        return "There is no job to compare."
    complete = sorted(
        (run for run in runs if run.result.ratio_to_lower_bound is not None), key=lambda run: run.result.mean_jct_s
    )
    if not complete:
        return "No run finished all jobs, so there is no winner: means over different sets of jobs cannot be compared."
    best, others = complete[0], complete[1:]
    sentences = [_winner(best, others), _limit(best)]
    if others:
        worst = others[-1]
        sentences += [_where_time_goes(best, other) for other in (others if len(others) == 1 else (others[0], worst))]
        sentences += [_gains(best, worst), _price(best, others)]
    if len(complete) < len(runs):
        left = ", ".join(run.label for run in runs if run.result.ratio_to_lower_bound is None)
        sentences.append(f"{left} did not finish all jobs and is not ranked.")
    return " ".join(sentence for sentence in sentences if sentence)


def _winner(best: RunFigures, others: Sequence[RunFigures]) -> str:
    mean = words_of(best.result.mean_jct_s)
    if not others:
        return f"{best.label} finishes a job after {mean} on average."
    runner_up = others[0]
    ratio = _ratio(runner_up.result.mean_jct_s, best.result.mean_jct_s)
    if ratio < TIE_RATIO:
        tied = [best.label] + [
            run.label for run in others if _ratio(run.result.mean_jct_s, best.result.mean_jct_s) < TIE_RATIO
        ]
        return f"{_enumerated(tied)} differ by less than 1%: a job takes {mean} on average."
    text = (
        f"{best.label} wins: a job takes {mean} on average, against {words_of(runner_up.result.mean_jct_s)} under "
        f"{runner_up.label} ({ratio:.2f} times as long)"
    )
    worst = others[-1]
    if worst is not runner_up:
        text += f" and {words_of(worst.result.mean_jct_s)} under {worst.label}"
    return text + "."


def _limit(best: RunFigures) -> str:
    ratio = best.result.ratio_to_lower_bound
    assert ratio is not None
    if ratio < 1.0005:
        return "It meets the lower bound: no schedule is better."
    return f"No schedule can be more than {1.0 - 1.0 / ratio:.0%} better, for its mean is {ratio:.3f} times the lower bound."


def _where_time_goes(best: RunFigures, other: RunFigures) -> str:
    """The parts of the mean JCT that differ: waiting, restarts and lost work, or placement and network."""
    saved_s = other.result.mean_jct_s - best.result.mean_jct_s
    if _ratio(other.result.mean_jct_s, best.result.mean_jct_s) < TIE_RATIO:
        return ""
    differences = [
        (other.parts.waiting_s - best.parts.waiting_s, "waiting"),
        (other.parts.wasted_s - best.parts.wasted_s, "lost to restarts and repeated work"),
        (other.parts.slower_s - best.parts.slower_s, "lost to placement and network"),
    ]
    differences.sort(key=lambda item: -item[0])
    least_s = _WORTH_TELLING * saved_s
    less = [f"{words_of(gain_s)} less {words}" for gain_s, words in differences if gain_s >= least_s]
    more = [f"{words_of(-gain_s)} more {words}" for gain_s, words in differences if gain_s <= -least_s]
    text = f"Against {other.label} a job saves {words_of(saved_s)}: {_enumerated(less)}"
    return f"{text}, paid with {_enumerated(more)}." if more else f"{text}."


def _gains(best: RunFigures, worst: RunFigures) -> str:
    """The shares of the saved time by quarter of duration and by gang size, and the groups that are worse off."""
    if _ratio(worst.result.mean_jct_s, best.result.mean_jct_s) < TIE_RATIO:
        return ""
    saved = _saved(best.by_duration, worst.by_duration)
    total_s = sum(saved_s for _, saved_s in saved)
    if total_s <= 0.0:
        return ""
    name, most_s = max(saved, key=lambda item: item[1])
    was_s, is_s = (_mean_s(run.by_duration, name) for run in (worst, best))
    text = (
        f"{min(1.0, most_s / total_s):.0%} of that belongs to the {name} of the jobs ({words_of(is_s)} on average instead of "
        f"{words_of(was_s)})"
    )
    gangs = _saved(best.by_gang, worst.by_gang)
    gang, gang_s = max(gangs, key=lambda item: item[1])
    if len(gangs) > 1:
        text += f", {min(1.0, gang_s / total_s):.0%} to those of {gang}"
    # Sums of equal times in another order differ by rounding.
    losers = [label for label, saved_s in (*saved, *gangs) if saved_s < -_ROUNDING * total_s]
    if losers:
        return f"{text}; worse off than under {worst.label} are: {_the_jobs(losers)}."
    return f"{text}; no quarter of the jobs by duration and no gang size is worse off."


def _mean_s(groups: Sequence[Group], label: str) -> float:
    return next(group.mean_jct_s for group in groups if group.label == label)


def _the_jobs(labels: Sequence[str]) -> str:
    return ", ".join(f"jobs of {label}" if "GPU" in label else f"the {label}" for label in labels)


def _saved(best: Sequence[Group], worst: Sequence[Group]) -> list[tuple[str, float]]:
    other = {group.label: group.jct_s for group in worst}
    return [(group.label, other[group.label] - group.jct_s) for group in best if group.label in other]


def _price(best: RunFigures, others: Sequence[RunFigures]) -> str:
    """The cost of the winner: stopped jobs, GPU time without progress, a longer tail than the best of the others."""
    result = best.result
    if not result.preemptions:
        text = f"{best.label} stops no job"
    else:
        text = (
            f"{best.label} stops jobs {result.preemptions:,} times ({result.preemptions / result.jobs:.2f} a job), which with "
            "restarts costs "
            f"{words_of(result.wasted_gpu_s / result.jobs)} of GPU time a job"
        )
    tail = min(others, key=lambda run: run.result.p99_jct_s)
    if result.p99_jct_s > _PRICE_RATIO * tail.result.p99_jct_s:
        return (
            f"{text}; the slowest hundredth of the jobs takes {words_of(result.p99_jct_s)} or longer, where {tail.label} "
            f"has {words_of(tail.result.p99_jct_s)}."
        )
    more = _ratio(result.p99_jct_s, tail.result.p99_jct_s) - 1.0
    if more > _ROUNDING:
        return f"{text}; its slowest hundredth of the jobs is {_share(more)} slower than under {tail.label}."
    rest = tail.label if len(others) == 1 else "the other policies"
    return f"{text}; its slowest hundredth of the jobs is no slower than under {rest}."


def _share(part: float) -> str:
    return f"{part:.1%}" if part >= 0.0005 else "less than 0.1%"


def _ratio(more: float, less: float) -> float:
    return more / less if less > 0.0 else 1.0


def sensitivity(runs: Sequence[RunFigures]) -> str:
    """The cost of worse estimates for the policies that were run with several predictors; empty where none was."""
    affected: list[str] = []
    indifferent: list[str] = []
    worst_error, worst_name, best_name = 0.0, "", ""
    for label in dict.fromkeys(run.label for run in runs):
        measured = [
            (run.prediction_log_error, run.result)
            for run in runs
            if run.label == label
            and run.prediction_log_error is not None
            and run.result.ratio_to_lower_bound is not None
        ]
        measured.sort(key=lambda pair: (pair[0], pair[1].predictor))
        if len(measured) < 2 or measured[0][0] == measured[-1][0]:
            continue
        (_, exact), (worst_error, worst) = measured[0], measured[-1]
        worst_name, best_name = worst.predictor, exact.predictor
        if worst.mean_jct_s == exact.mean_jct_s and worst.preemptions == exact.preemptions:
            indifferent.append(label)
        else:
            text = f"{label} {_ratio(worst.mean_jct_s, exact.mean_jct_s):.2f} times"
            if worst.preemptions or exact.preemptions:
                text += f" ({worst.preemptions / worst.jobs:.2f} stops a job instead of {exact.preemptions / exact.jobs:.2f})"
            affected.append(text)
    text = ""
    if affected:
        text = (
            f"Worse estimates cost: with {worst_name}, off by a factor of {exp(worst_error):.2f} on average, the mean JCT is, "
            f"against {best_name}: {', '.join(affected)}."
        )
    if indifferent:
        text += f" {_enumerated(indifferent)} {'does' if len(indifferent) == 1 else 'do'} not depend on the estimates."
    return text.strip()


def _enumerated(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
