"""The pictures of an evaluation, in the order of the page."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from predictor.intervals import Array
from predictor.recurrence import BUCKETS
from service.reports.comparison_data import cdf
from service.reports.evaluation_figures import (
    NOMINAL_LEVELS,
    WEIGHT_SHOWN_MIN,
    Group,
    Judged,
    buckets,
    calibration,
    density,
    gangs,
    judged,
    over_time,
    quantiles_by_name,
    users,
    weights,
)
from service.reports.page import SHARE_OF_JOBS, Chart, lines
from service.reports.plots import (
    Mark,
    Panel,
    Series,
    density_chart,
    dot_chart,
    line_chart,
    panel_chart,
)
from service.reports.svg import Axis
from service.sim.evaluate import Evaluation

_LOSS: Final = "pinball loss (log)"
_TIME: Final = Axis("time of submission", "seconds")
_FACTOR_MOST: Final = 100.0

Measure = Callable[[Judged], Array | NDArray[np.bool_]]


def charts(evaluation: Evaluation) -> list[Chart]:
    """All pictures; without users in the workload there is none by user."""
    predictors = judged(evaluation)
    dots = partial(_dots, predictors)
    by_bucket = buckets(evaluation)
    note = (
        "Mean loss by how often the program had run before; the number of jobs in brackets. Less is better, and programs "
        "that were never seen are the hardest."
    )
    found = [dots("buckets", "Error by history", note, by_bucket, _LOSS, lambda each: each.loss)]
    note = "Share of the jobs whose point was within a factor of two. More is better."
    title, label = "Within a factor of two, by history", "share of jobs within a factor of two"
    near = np.log(2.0)
    found.append(
        dots("within-2x", title, note, by_bucket, label, lambda each: np.abs(each.log_factor) <= near, "ratio")
    )
    found.append(_calibration(evaluation, predictors))
    note = "Share of the actual durations inside the 80% interval: 80% is right, less is overconfident, more is vague."
    title, label = "80% intervals that held, by history", "share inside the 80% interval"
    found.append(dots("coverage", title, note, by_bucket, label, lambda each: each.inside, "ratio"))
    found += [_density(evaluation), _factors(predictors), _over_time(evaluation, predictors)]
    named = users(evaluation)
    if named:
        note = "Mean loss of the busiest users' jobs; how many in brackets. Less is better."
        found.append(dots("users", "Error by user", note, named, _LOSS, lambda each: each.loss))
    note = "Mean loss by gang size; the number of jobs in brackets. Less is better."
    found.append(dots("gangs", "Error by gang size", note, gangs(evaluation), _LOSS, lambda each: each.loss))
    return [*found, _weights(evaluation)]


def _dots(
    predictors: Sequence[Judged],
    slug: str,
    title: str,
    note: str,
    groups: Sequence[Group],
    label: str,
    measure: Measure,
    kind: str = "number",
) -> Chart:
    """One row per group, one marker per predictor: the mean of a measure over the group's jobs."""
    rows = [
        (
            f"{group.label or '(none)'} ({len(group.rows):,})",
            [Mark(float(np.mean(measure(each)[group.rows])), style) for style, each in enumerate(predictors)],
        )
        for group in groups
    ]
    names = [(each.name, style) for style, each in enumerate(predictors)]
    axis = Axis(label, kind, least=0.0, most=1.0 if kind == "ratio" else None)
    return Chart(slug, title, title, dot_chart(title, axis, rows, names), note)


def _calibration(evaluation: Evaluation, predictors: Sequence[Judged]) -> Chart:
    labels, quantiles = evaluation.run.labels, quantiles_by_name(evaluation)
    series = [Series("ideal", (0.0, 1.0), (0.0, 1.0), 7)]
    for style, each in enumerate(predictors):
        observed = calibration(labels, quantiles[each.name])
        series.append(Series(each.name, NOMINAL_LEVELS, observed, style, markers=True))
    title = "Calibration: nominal against observed levels"
    x = Axis("share that should take less", "ratio", least=0.0, most=1.0)
    y = Axis("share that took less", "ratio", least=0.0, most=1.0)
    note = (
        "The share of jobs that took less than each predicted quantile. On the diagonal a 90% quantile holds in 90% of the "
        "cases; a line that is flatter is overconfident."
    )
    return Chart("calibration", "Calibration", title, line_chart(title, x, y, series, height=380.0), note)


def _density(evaluation: Evaluation) -> Chart:
    counts, edges = density(evaluation)
    title = "Predicted against actual"
    low, high = float(edges[0]), float(edges[-1])
    x = Axis("predicted", "seconds", log=True, least=low, most=high)
    y = Axis("actual", "seconds", log=True, least=low, most=high)
    svg = density_chart(title, x, y, counts.tolist(), edges.tolist())
    note = "The served points; darker is more jobs. Above the line: longer than predicted. Dotted: factors of two."
    return Chart("density", title, title, svg, note)


def _factors(predictors: Sequence[Judged]) -> Chart:
    series = []
    for style, each in enumerate(predictors):
        curve = cdf(np.exp(np.abs(each.log_factor)).tolist())
        series.append(Series(each.name, curve.xs, curve.ys, style))
    x = Axis("factor between predicted and actual", log=True, least=1.0, most=_FACTOR_MOST)
    note = "Share of jobs whose point was off by at most this factor, either way. Higher is better."
    return lines("factors", "Size of the error", "Share of jobs within a factor", note, x, SHARE_OF_JOBS, series)


def _over_time(evaluation: Evaluation, predictors: Sequence[Judged]) -> Chart:
    parts = over_time(evaluation)
    times_s = [time_s for time_s, _ in parts]

    def curves(measure: Measure) -> list[Series]:
        return [
            Series(each.name, times_s, [float(np.mean(measure(each)[rows])) for _, rows in parts], style)
            for style, each in enumerate(predictors)
        ]

    title = "Error by time of submission"
    panels = [
        Panel(Axis(_LOSS, least=0.0), curves(lambda each: each.loss)),
        Panel(Axis("mean error", "seconds", least=0.0), curves(lambda each: each.error_s)),
    ]
    note = f"Means over {len(parts)} parts of equally many jobs. A step up that stays is a workload that has changed."
    return Chart("time", title, title, panel_chart(title, _TIME, panels, height=420.0), note)


def _weights(evaluation: Evaluation) -> Chart:
    """One panel per history bucket."""
    found = weights(evaluation)
    panels = [
        Panel(
            Axis(f"{name} runs", "ratio", least=0.0, most=1.0),
            [Series(each.name, each.at_s, each.shares[:, bucket].tolist(), style) for style, each in enumerate(found)],
        )
        for bucket, name in enumerate(BUCKETS)
    ]
    title = "Weights over time"
    note = (
        "The share of each expert in the served median at the opening of each chunk, by how often the program had run. "
        f"Experts that never have {WEIGHT_SHOWN_MIN:.0%} are left out."
    )
    return Chart("weights", title, title, panel_chart(title, _TIME, panels, step=True, height=640.0), note)
