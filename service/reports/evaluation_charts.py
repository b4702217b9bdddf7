"""The pictures of an evaluation, in the order in which a reader asks for them."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from predictor.intervals import Array
from predictor.recurrence import BUCKETS
from service.reports.comparison_data import cdf
from service.reports.evaluation_figures import (
    NOMINAL_LEVELS,
    Group,
    Judged,
    buckets,
    calibration,
    density,
    gangs,
    judged,
    over_time,
    stints,
    users,
)
from service.reports.page import Chart
from service.reports.plots import (
    Block,
    Mark,
    Panel,
    Series,
    density_chart,
    dot_chart,
    gantt_chart,
    line_chart,
    panel_chart,
)
from service.reports.svg import PALETTE, Axis
from service.sim.evaluate import SERVED, Evaluation

_LOSS: Final = "pinball loss (log)"
_TIME: Final = Axis("time of submission", "seconds")
_FACTOR_MOST: Final = 100.0

Measure = Callable[[Judged], Array]


def charts(evaluation: Evaluation) -> list[Chart]:
    """All pictures; what the workload does not tell (users) has none."""
    answerers = judged(evaluation)
    found = [_by_bucket(evaluation, answerers), _within(evaluation, answerers)]
    found += [_calibration(evaluation, answerers), _coverage(evaluation, answerers), _density(evaluation)]
    found += [_factors(answerers), _over_time(evaluation, answerers)]
    named = users(evaluation)
    if named:
        note = "Mean loss of the busiest users' jobs; how many in brackets. Less is better."
        found.append(_dots("users", "Error by user", note, named, answerers, _LOSS, lambda each: each.loss))
    note = "Mean loss by gang size; the number of jobs in brackets. Less is better."
    found.append(
        _dots("gangs", "Error by gang size", note, gangs(evaluation), answerers, _LOSS, lambda each: each.loss)
    )
    return [*found, _serving(evaluation)]


def _dots(
    slug: str,
    title: str,
    note: str,
    groups: Sequence[Group],
    answerers: Sequence[Judged],
    label: str,
    measure: Measure,
    kind: str = "number",
) -> Chart:
    """A row a group, a marker an answerer: the mean of a measure over the group's jobs."""
    rows = [
        (
            f"{group.label or '(nobody)'} ({len(group.rows):,})",
            [Mark(float(np.mean(measure(each)[group.rows])), style) for style, each in enumerate(answerers)],
        )
        for group in groups
    ]
    names = [(each.name, style) for style, each in enumerate(answerers)]
    axis = Axis(label, kind, least=0.0, most=1.0 if kind == "ratio" else None)
    return Chart(slug, title, title, dot_chart(title, axis, rows, names), note)


def _by_bucket(evaluation: Evaluation, answerers: Sequence[Judged]) -> Chart:
    note = (
        "Mean loss by how often the program had run before; the number of jobs in brackets. Less is better, and programs "
        "that were never seen are the hardest."
    )
    title = "Error by history"
    return _dots("buckets", title, note, buckets(evaluation), answerers, _LOSS, lambda each: each.loss)


def _within(evaluation: Evaluation, answerers: Sequence[Judged]) -> Chart:
    note = "Share of the jobs whose point was within a factor of two. More is better."
    return _dots(
        "within-2x",
        "Within a factor of two, by history",
        note,
        buckets(evaluation),
        answerers,
        "share of jobs within a factor of two",
        lambda each: np.asarray(np.abs(each.log_factor) <= np.log(2.0), dtype=np.float64),
        "ratio",
    )


def _calibration(evaluation: Evaluation, answerers: Sequence[Judged]) -> Chart:
    run = evaluation.run
    said = {**run.candidates, SERVED: evaluation.served.points}
    series = [Series("as it should be", (0.0, 1.0), (0.0, 1.0), 7)]
    for style, each in enumerate(answerers):
        observed = calibration(run.labels, said[each.name])
        series.append(Series(each.name, NOMINAL_LEVELS, observed, style, markers=True))
    title = "Calibration: what was said against what came true"
    x = Axis("share that should take less", "ratio", least=0.0, most=1.0)
    y = Axis("share that took less", "ratio", least=0.0, most=1.0)
    note = (
        "Of each answer's quantiles: the share of jobs that took less than that. On the diagonal a 90% quantile holds in 90% "
        "of the cases; a line that is flatter than it claims too much."
    )
    return Chart("calibration", "Calibration", title, line_chart(title, x, y, series, height=380.0), note)


def _coverage(evaluation: Evaluation, answerers: Sequence[Judged]) -> Chart:
    note = "Share of the truths inside the 80% interval: 80% is right, less is overconfident, more is vague."
    return _dots(
        "coverage",
        "80% intervals that held, by history",
        note,
        buckets(evaluation),
        answerers,
        "share inside the 80% interval",
        lambda each: np.asarray(each.inside, dtype=np.float64),
        "ratio",
    )


def _density(evaluation: Evaluation) -> Chart:
    counts, edges = density(evaluation)
    title = "Predicted against actual"
    low, high = float(edges[0]), float(edges[-1])
    x = Axis("said", "seconds", log=True, least=low, most=high)
    y = Axis("took", "seconds", log=True, least=low, most=high)
    svg = density_chart(title, x, y, counts.tolist(), edges.tolist())
    note = "The points that served; the darker, the more jobs. Above the line: longer than was said. Dotted: factors of two."
    return Chart("density", title, title, svg, note)


def _factors(answerers: Sequence[Judged]) -> Chart:
    series = []
    for style, each in enumerate(answerers):
        curve = cdf(np.exp(np.abs(each.log_factor)).tolist())
        series.append(Series(each.name, curve.xs, curve.ys, style))
    title = "Share of jobs within a factor"
    x = Axis("factor between what was said and what it took", log=True, least=1.0, most=_FACTOR_MOST)
    y = Axis("share of jobs", "ratio", least=0.0, most=1.0)
    note = "Share of jobs whose point was off by at most this factor, either way. Higher is better."
    return Chart("factors", "How far off", title, line_chart(title, x, y, series, step=True), note)


def _over_time(evaluation: Evaluation, answerers: Sequence[Judged]) -> Chart:
    parts = over_time(evaluation)
    times_s = [time_s for time_s, _ in parts]

    def lines(measure: Measure) -> list[Series]:
        return [
            Series(each.name, times_s, [float(np.mean(measure(each)[rows])) for _, rows in parts], style)
            for style, each in enumerate(answerers)
        ]

    title = "Error by time of submission"
    panels = [
        Panel(Axis(_LOSS, least=0.0), lines(lambda each: each.loss)),
        Panel(Axis("mean error", "seconds", least=0.0), lines(lambda each: each.error_s)),
    ]
    note = f"Means over {len(parts)} parts of equally many jobs. A step up that stays is a workload that has changed."
    return Chart("time", title, title, panel_chart(title, _TIME, panels, height=420.0), note)


def _serving(evaluation: Evaluation) -> Chart:
    """A row a bucket, once for the distribution and once for the point."""
    shapes, points = stints(evaluation, point=False), stints(evaluation, point=True)
    names = list(dict.fromkeys(stint.name for stint in (*shapes, *points)))
    colours = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}
    blocks = [
        Block(
            stint.start_s,
            stint.end_s,
            offset + stint.bucket,
            1,
            colours[stint.name],
            f"{what}, {BUCKETS[stint.bucket]} runs: {stint.name}",
        )
        for offset, what, found in ((0, "distribution", shapes), (len(BUCKETS), "point", points))
        for stint in found
    ]
    rows = [(f"{sign} {bucket}", 1) for sign in ("dist.", "point") for bucket in BUCKETS]
    span = [time_s for block in blocks for time_s in (block.start, block.end)]
    axis = Axis(_TIME.label, "seconds", least=min(span), most=max(span))
    title = "Who served which jobs when"
    svg = gantt_chart(title, axis, blocks, rows, list(colours.items()))
    note = "The champion of each history bucket, chosen anew with each job that ends."
    return Chart("serving", title, title, svg, note)
