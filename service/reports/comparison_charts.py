"""The pictures of a comparison, in the order of the page."""

from collections.abc import Callable, Sequence
from math import exp
from statistics import fmean

from policies.model.cluster import Cluster
from service.domain.counts import count_of
from service.domain.duration import words_of
from service.reports.comparison_data import (
    GANG_CLASSES,
    TIME_BINS,
    Curve,
    Group,
    RunFigures,
    gang_class,
    gantt_groups,
    main_runs,
)
from service.reports.page import SHARE_OF_JOBS, Chart, lines
from service.reports.plots import Block, Mark, Panel, Series, bar_chart, dot_chart, gantt_chart, panel_chart
from service.reports.svg import PALETTE, Axis

_GANG_COLOURS = ("#fde725", "#90d743", "#35b779", "#21918c", "#31688e", "#443983", "#2a0845")
"""Light to dark with the gang's size (the palette "viridis"): the order survives grey print and colour blindness."""
_LOG_RATIO = 8.0
"""Values that differ by more than this factor share an axis only if it is logarithmic."""
_QUEUE_LOG_RATIO = 30.0
_LINES_READABLE = 5

_Measure = Callable[[RunFigures], float | None]


def run_name(run: RunFigures, several_predictors: bool) -> str:
    """The name of a run: its policy, and its predictor where there is more than one."""
    return f"{run.label} ({run.result.predictor})" if several_predictors else run.label


def charts(runs: Sequence[RunFigures], cluster: Cluster) -> list[Chart]:
    """All pictures. Except for the curve over prediction errors they show the runs under the first predictor."""
    main = main_runs(runs)
    styles = {label: index for index, label in enumerate(dict.fromkeys(run.label for run in runs))}
    found = [*_error_curves(runs, styles), *_promises(main, styles), _time_parts(main), *_distributions(main, styles)]
    found += [*_over_time(main, styles, cluster), *_by_group(main, styles)]
    return found + _gantts(main, cluster)


def _time_parts(runs: Sequence[RunFigures]) -> Chart:
    keys = [
        ("running, at the best placement", PALETTE[6]),
        ("slower placement and network", PALETTE[3]),
        ("restarts, checkpoints, lost work", PALETTE[1]),
        ("waiting", PALETTE[4]),
    ]
    rows = [(run.label, (run.parts.run_s, run.parts.slower_s, run.parts.wasted_s, run.parts.waiting_s)) for run in runs]
    title = "Where the time of a job goes"
    svg = bar_chart(title, Axis("mean job completion time", "seconds", least=0.0), rows, keys)
    return Chart("time-parts", title, title, svg, "What the mean job completion time is made of. Shorter is better.")


def _distributions(runs: Sequence[RunFigures], styles: dict[str, int]) -> list[Chart]:
    jct = [Series(run.label, run.jct_cdf.xs, run.jct_cdf.ys, styles[run.label]) for run in runs]
    slowdown = [Series(run.label, run.slowdown_cdf.xs, run.slowdown_cdf.ys, styles[run.label]) for run in runs]
    title, note = (
        "Job completion time: share of jobs that end within",
        "Share of jobs that end within a time. Higher is better.",
    )
    x = Axis("job completion time", "seconds", log=True)
    found = [lines("jct-cdf", "Job completion time", title, note, x, SHARE_OF_JOBS, jct)]
    title, note = "Slowdown: share of jobs below", "Share of jobs below a slowdown. Higher is better."
    # A job that is over in less than 10 s has a slowdown below 1.
    x = Axis("JCT / run time", log=True, least=min([1.0, *(x for run in runs for x in run.slowdown_cdf.xs)]))
    return [*found, lines("slowdown-cdf", "Slowdown", title, note, x, SHARE_OF_JOBS, slowdown)]


def _over_time(runs: Sequence[RunFigures], styles: dict[str, int], cluster: Cluster) -> list[Chart]:
    start_s = min((run.busy.xs[0] for run in runs if run.busy.xs), default=0.0)
    since = Axis("time since the first submission", "seconds")
    pooled = 1 if len(runs) <= _LINES_READABLE else 5  # many lines that all jump hide each other
    busy = [
        Series(run.label, [x - start_s for x in xs], [y / cluster.gpus for y in ys], styles[run.label])
        for run in runs
        for xs, ys in [_pooled(run.busy, pooled)]
    ]
    queue = [Series(run.label, [x - start_s for x in run.queue.xs], run.queue.ys, styles[run.label]) for run in runs]
    note = f"GPUs held by jobs, mean of each {TIME_BINS // pooled}th part of the time."
    y = Axis("GPUs held", "ratio", least=0.0, most=1.0)
    found = [lines("utilization", "Utilization", "GPUs held over time", note, since, y, busy)]
    note = "Jobs that wait: new ones and preempted ones, mean of each 300th part of the time."
    return [*found, lines("queue", "Queue", "Waiting jobs over time", note, since, _queue_axis(runs), queue)]


def _pooled(curve: Curve, many: int) -> tuple[list[float], list[float]]:
    """The starts and the means of each ``many`` bins."""
    starts = range(0, len(curve.xs), many)
    return [curve.xs[at] for at in starts], [fmean(curve.ys[at : at + many]) for at in starts]


def _queue_axis(runs: Sequence[RunFigures]) -> Axis:
    """Logarithmic where the longest queues of the policies differ by more than a factor of 30."""
    peaks = [peak for run in runs if (peak := max(run.queue.ys, default=0.0)) > 1.0]
    if len(peaks) > 1 and max(peaks) > _QUEUE_LOG_RATIO * min(peaks):
        return Axis("waiting jobs", log=True, least=1.0)
    return Axis("waiting jobs", least=0.0)


def _by_group(runs: Sequence[RunFigures], styles: dict[str, int]) -> list[Chart]:
    names = [(run.label, styles[run.label]) for run in runs]
    axis = Axis("mean job completion time", "seconds", log=True)
    found = []
    for slug, heading, groups in (
        ("jct-by-gang-size", "By gang size", [run.by_gang for run in runs]),
        ("jct-by-user", "By user", [run.by_user for run in runs]),
        ("jct-by-duration", "By run time", [run.by_duration for run in runs]),
    ):
        rows = _rows(runs, groups, styles)
        if rows:
            title = f"Mean job completion time {heading.lower()}"
            note = f"{title}; the number of jobs in brackets."
            found.append(Chart(slug, heading, title, dot_chart(title, axis, rows, names), note))
    return found


def _rows(
    runs: Sequence[RunFigures], groups: Sequence[Sequence[Group]], styles: dict[str, int]
) -> list[tuple[str, list[Mark]]]:
    rows: dict[str, tuple[int, list[Mark]]] = {}
    for run, of_run in zip(runs, groups, strict=True):
        for group in of_run:
            _, marks = rows.setdefault(group.label, (group.jobs, []))
            marks.append(Mark(group.mean_jct_s, styles[run.label]))
    return [(f"{label} ({jobs:,})", marks) for label, (jobs, marks) in rows.items()]


def _error_curves(runs: Sequence[RunFigures], styles: dict[str, int]) -> list[Chart]:
    """Cost and preemptions against the error of the predictions: two panels over one axis, one curve per policy."""
    measured = [run for run in runs if run.prediction_log_error is not None]
    if len({run.result.predictor for run in measured}) < 2:
        return []
    widest = max(exp(run.prediction_log_error) for run in measured if run.prediction_log_error is not None)
    log = widest > 10.0
    blind_at = widest**1.15 if log else widest + 0.15 * (widest - 1.0)
    blind = any(run.prediction_log_error is None for run in runs)
    x = Axis(
        "mean factor between estimate and actual",
        log=log,
        least=1.0,
        named=((blind_at, "none"),) if blind else (),
    )
    measures: list[tuple[str, _Measure]] = [
        ("mean JCT / bound", lambda run: run.result.ratio_to_lower_bound),
        ("preemptions a job", lambda run: run.result.preemptions / max(1, run.result.jobs)),
    ]
    panels = [_panel(label, runs, styles, blind_at, value) for label, value in measures]
    title = "Cost and preemptions by prediction error"
    svg = panel_chart(title, x, panels, height=460.0)
    return [Chart("prediction-error", title, title, svg, _error_note(runs), broad=True)]


def _panel(label: str, runs: Sequence[RunFigures], styles: dict[str, int], blind_at: float, value: _Measure) -> Panel:
    """The curves of one measure. On a logarithmic axis a 0 is drawn at the lower edge."""
    series = [line for policy, style in styles.items() for line in _by_error(runs, policy, style, blind_at, value)]
    heights = sorted(y for line in series for y in line.ys if y > 0.0)
    log = bool(heights) and heights[-1] > _LOG_RATIO * heights[0]
    least = 0.8 * heights[0] if log else 0.0 if any(y == 0.0 for line in series for y in line.ys) else None
    most = heights[-1] * (1.25 if log else 1.06) if heights else None  # room for the highest marker
    return Panel(Axis(label, log=log, least=least, most=most), series)


def _by_error(runs: Sequence[RunFigures], label: str, style: int, blind_at: float, value: _Measure) -> list[Series]:
    """A policy's curve, and a marker beside the curves for its run without estimates."""
    mine = [(run.prediction_log_error, y) for run in runs if run.label == label and (y := value(run)) is not None]
    points = sorted((exp(error), y) for error, y in mine if error is not None)
    curve = Series(label, [x for x, _ in points], [y for _, y in points], style, markers=True)
    blind = [y for error, y in mine if error is None]
    return [curve, *(Series("", (blind_at,), (y,), style, markers=True) for y in blind)]


def _error_note(runs: Sequence[RunFigures]) -> str:
    """The position of each predictor on the axis."""
    places: dict[str, str] = {}
    for run in runs:
        error = run.prediction_log_error
        places.setdefault(run.result.predictor, "no estimates, at the right" if error is None else f"{exp(error):.2f}")
    listed = ", ".join(f"{name} {place}" for name, place in places.items())
    return f"From left to right the estimates get worse; 1 is exact. Lower is better. {listed}."


def _promises(runs: Sequence[RunFigures], styles: dict[str, int]) -> list[Chart]:
    """What promises cost: three panels over the mean JCT, with a marker for each run that promises ends."""
    promising = sorted((run for run in runs if run.result.promises), key=lambda run: run.result.mean_jct_s)
    if not promising:
        return []
    x = Axis("mean job completion time", "seconds")
    measures: list[tuple[Axis, _Measure]] = [
        (Axis("promises kept", "ratio"), lambda run: run.result.promises_kept_ratio),
        (Axis("mean lateness", "seconds", least=0.0), lambda run: run.result.mean_lateness_s),
        (Axis("promised / actual JCT"), lambda run: run.result.promised_jct_ratio),
    ]
    panels = []
    for axis, value in measures:
        points = [(run, y) for run in promising if (y := value(run)) is not None]
        curve = Series("", [run.result.mean_jct_s for run, _ in points], [y for _, y in points], 0)
        marks = [
            Series(run.label, (run.result.mean_jct_s,), (y,), styles[run.label], markers=True) for run, y in points
        ]
        panels.append(Panel(axis, [curve, *marks] if len(points) > 1 else marks))
    title = "Promised ends: what they cost, and what they are worth"
    note = (
        "A marker a run, joined in the order of mean job completion times. Further left is better; from above, so are more "
        "promises kept, less time from the promised end to the end (0 for a job in time), and promises that are nearer to "
        "the actual time (geometric mean)."
    )
    svg = panel_chart(title, x, panels, height=560.0)
    return [Chart("promises", title, title, svg, note, broad=True)]


def _gantts(runs: Sequence[RunFigures], cluster: Cluster) -> list[Chart]:
    """One per run over the same window; that of the best run is open."""
    best = min(runs, key=lambda run: (run.result.ratio_to_lower_bound is None, run.result.mean_jct_s))
    start_s, end_s = runs[0].window_s[0], max(run.window_s[1] for run in runs)
    groups = gantt_groups([(server.name, server.gpus) for server in cluster.servers])
    keys = [(name, _GANG_COLOURS[index]) for index, (_, name) in enumerate(GANG_CLASSES)]
    keys.append((gang_class(GANG_CLASSES[-1][0] + 1), _GANG_COLOURS[-1]))
    used = {gang_class(bar.gpus) for run in runs for bar in run.bars}
    colours = dict(keys)
    rows = sum(gpus for _, gpus in groups)
    found: list[Chart] = []
    for run in sorted(runs, key=lambda run: run is not best):
        title = f"GPUs over time under {run.label}"
        blocks = [
            Block(
                max(bar.start_s, start_s) - start_s,
                min(bar.end_s, end_s) - start_s,
                bar.row,
                bar.rows,
                colours[gang_class(bar.gpus)],
                f"{bar.job_id} {bar.user}: {count_of(bar.gpus, 'GPU')}, {words_of(bar.end_s - bar.start_s)}"
                f"{', stopped' * bar.preempted}",
                bar.preempted and bar.end_s <= end_s,
            )
            for bar in run.bars
        ]
        x = Axis("time since the start of the window", "seconds", least=0.0, most=end_s - start_s)
        svg = gantt_chart(title, x, blocks, groups, [key for key in keys if key[0] in used])
        first = run is best
        note = _gantt_note(rows, cluster.gpus, run.bars_left_out) if first else ""
        heading = "Who held which GPU" if first else ""
        found.append(Chart(f"gantt-{len(found) + 1}", heading, title, svg, note, broad=True, folded=not first))
    return found


def _gantt_note(rows: int, gpus: int, left_out: int) -> str:
    where = "all GPUs" if rows == gpus else f"the first {rows} of {gpus:,} GPUs"
    cut = f" {left_out:,} later attempts are not drawn." if left_out else ""
    return (
        f"A row a GPU, {where}, around the largest backlog; colour is the size of the gang, a black edge an attempt that was "
        f"stopped before its end.{cut}"
    )
