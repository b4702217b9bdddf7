"""The figures of one run for a report's pictures, small enough to be sent between processes.

A run of a hundred thousand jobs is reduced to a few thousand numbers, without random sampling.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import numpy.typing as npt

from service.sim.results import JobOutcome, Result, Simulation, Span, consecutive

CURVE_POINTS = 200
TIME_BINS = 300
USERS_SHOWN = 10
GANTT_GPUS_MAX = 64
GANTT_JOBS = 300
"""Jobs around the largest backlog that the Gantt chart covers; a workload of up to this many is shown completely."""
BARS_MAX = 4000

GANG_CLASSES: tuple[tuple[int, str], ...] = (
    (1, "1 GPU"),
    (2, "2 GPUs"),
    (4, "3-4 GPUs"),
    (8, "5-8 GPUs"),
    (16, "9-16 GPUs"),
    (32, "17-32 GPUs"),
)
"""Largest gang of each class; the last class holds the rest."""
_LARGEST_CLASS = "33 GPUs or more"
DURATION_CLASSES: tuple[str, ...] = ("shortest quarter", "second quarter", "third quarter", "longest quarter")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a line."""

    xs: tuple[float, ...] = ()
    ys: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A group of finished jobs. Seconds are sums over them."""

    label: str
    jobs: int
    jct_s: float

    @property
    def mean_jct_s(self) -> float:
        """Mean job completion time."""
        return self.jct_s / self.jobs


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the mean JCT of the finished jobs, seconds.

    ``run_s`` is the time at the best placement, the same under every policy that finishes the same jobs; ``slower_s`` what
    placement and network add to it (below 0 on GPUs that are faster than the reference), ``wasted_s`` restarts,
    checkpoints and lost work.
    """

    waiting_s: float = 0.0
    wasted_s: float = 0.0
    slower_s: float = 0.0
    run_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Neighbouring GPUs of one server that one attempt held. ``row`` counts the cluster's GPUs from 0."""

    start_s: float
    end_s: float
    row: int
    rows: int
    gpus: int
    job_id: str
    user: str
    preempted: bool


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run: its summary, and the data of its pictures.

    ``busy`` are GPUs held, ``queue`` jobs that wait, each a mean over bins of time. ``prediction_log_error`` is the mean of
    abs(ln(estimate / actual)) over the jobs that had an estimate.
    """

    label: str
    result: Result
    jct_cdf: Curve
    slowdown_cdf: Curve
    busy: Curve = field(default_factory=Curve)
    queue: Curve = field(default_factory=Curve)
    parts: Parts = field(default_factory=Parts)
    by_gang: tuple[Group, ...] = ()
    by_duration: tuple[Group, ...] = ()
    by_user: tuple[Group, ...] = ()
    bars: tuple[Bar, ...] = ()
    bars_left_out: int = 0
    window_s: tuple[float, float] = (0.0, 0.0)
    prediction_log_error: float | None = None


def figures(simulation: Simulation, label: str) -> RunFigures:
    """The figures of a run whose spans were kept. O(n log n)."""
    done = [outcome for outcome in simulation.outcomes if outcome.succeeded]
    spans = [(outcome, span) for outcome in simulation.outcomes for span in outcome.spans]
    edges = _edges(simulation.outcomes)
    window_s = fullest_window(simulation.outcomes, simulation.cluster.gpus)
    bars, left_out = _bars(simulation, spans, window_s)
    errors = [abs(each.prediction_log_error) for each in done if each.prediction_log_error is not None]
    return RunFigures(
        label=label,
        result=simulation.result,
        jct_cdf=cdf([outcome.jct_s for outcome in done]),
        slowdown_cdf=cdf([outcome.slowdown for outcome in done]),
        busy=_busy(spans, edges),
        queue=_waiting(simulation.outcomes, edges),
        parts=_parts(done),
        by_gang=_groups(
            done, lambda outcome: gang_class(outcome.gpus), [*(name for _, name in GANG_CLASSES), _LARGEST_CLASS]
        ),
        by_duration=_by_duration(done),
        by_user=_by_user(done),
        bars=bars,
        bars_left_out=left_out,
        window_s=window_s,
        prediction_log_error=sum(errors) / len(errors) if errors else None,
    )


def main_runs(runs: Sequence[RunFigures]) -> list[RunFigures]:
    """The runs with the first predictor, for pictures without space for every predictor."""
    return [run for run in runs if run.result.predictor == runs[0].result.predictor]


def cdf(values: Sequence[float]) -> Curve:
    """The distribution function at up to CURVE_POINTS quantiles, from the smallest value to the largest."""
    if not values:
        return Curve()
    ordered = np.sort(np.asarray(values, dtype=float))
    ranks = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), CURVE_POINTS)).round().astype(int))
    return Curve(tuple(ordered[ranks].tolist()), tuple(((ranks + 1) / len(ordered)).tolist()))


def binned_mean(times_s: Sequence[float], steps: Sequence[float], edges_s: Floats) -> Floats:
    """The mean, over each bin, of the step function that rises by ``steps`` at ``times_s`` from 0."""
    order = np.argsort(np.asarray(times_s, dtype=float), kind="stable")
    times = np.asarray(times_s, dtype=float)[order]
    levels = np.cumsum(np.asarray(steps, dtype=float)[order])
    if not len(times):
        return np.zeros(len(edges_s) - 1)
    # The integral is piecewise linear between the steps, so interpolating it at the edges is exact.
    end = max(times[-1], edges_s[-1])
    knots = np.concatenate(([min(times[0], edges_s[0])], times, [end]))
    rises = np.concatenate(([0.0], levels)) * np.diff(knots)
    integral = np.concatenate(([0.0], np.cumsum(rises)))
    return np.asarray(np.diff(np.interp(edges_s, knots, integral)) / np.diff(edges_s), dtype=float)


def gang_class(gpus: int) -> str:
    """The class of a gang size."""
    return next((name for most, name in GANG_CLASSES if gpus <= most), _LARGEST_CLASS)


def fullest_window(outcomes: Sequence[JobOutcome], gpus: int) -> tuple[float, float]:
    """The window of time around the largest backlog, computed from the workload alone and so equal for every policy.

    Backlog is the submitted work that is left on a machine which does ``gpus`` GPU-seconds per second.
    """
    if not outcomes:
        return 0.0, 0.0
    if len(outcomes) <= GANTT_JOBS:
        return outcomes[0].submit_time_s, max(outcome.finish_time_s for outcome in outcomes)
    backlog, largest, peak, before_s = 0.0, -1.0, 0, outcomes[0].submit_time_s
    for index, outcome in enumerate(outcomes):
        backlog = max(0.0, backlog - gpus * (outcome.submit_time_s - before_s)) + outcome.gpus * outcome.duration_s
        before_s = outcome.submit_time_s
        if backlog > largest:
            largest, peak = backlog, index
    first = min(max(0, peak - GANTT_JOBS // 2), len(outcomes) - GANTT_JOBS)
    start_s, end_s = outcomes[first].submit_time_s, outcomes[first + GANTT_JOBS - 1].submit_time_s
    return (start_s, end_s) if end_s > start_s else (start_s, max(outcome.finish_time_s for outcome in outcomes))


def _edges(outcomes: Sequence[JobOutcome]) -> Floats:
    start_s = outcomes[0].submit_time_s if outcomes else 0.0
    end_s = max((outcome.finish_time_s for outcome in outcomes), default=0.0)
    return np.linspace(start_s, max(end_s, start_s + 1e-9), TIME_BINS + 1)


def _busy(spans: Sequence[tuple[JobOutcome, Span]], edges: Floats) -> Curve:
    times = [at_s for _, span in spans for at_s in (span.start_s, span.end_s)]
    steps = [float(step) for outcome, _ in spans for step in (outcome.gpus, -outcome.gpus)]
    return Curve(tuple(edges[:-1].tolist()), tuple(binned_mean(times, steps, edges).tolist()))


def _waiting(outcomes: Sequence[JobOutcome], edges: Floats) -> Curve:
    """A job waits from its submission to its end, except while it holds GPUs."""
    times: list[float] = []
    steps: list[float] = []
    for outcome in outcomes:
        times += (outcome.submit_time_s, outcome.finish_time_s)
        steps += (1.0, -1.0)
        for span in outcome.spans:
            times += (span.start_s, span.end_s)
            steps += (-1.0, 1.0)
    means = np.maximum(0.0, binned_mean(times, steps, edges))
    return Curve(tuple(edges[:-1].tolist()), tuple(means.tolist()))


def _parts(done: Sequence[JobOutcome]) -> Parts:
    many = max(1, len(done))
    held_s = sum(outcome.held_s for outcome in done) / many
    wasted_s = sum(outcome.wasted_s for outcome in done) / many
    run_s = sum(outcome.duration_s for outcome in done) / many
    waiting_s = sum(outcome.queueing_delay_s for outcome in done) / many
    return Parts(waiting_s, wasted_s, held_s - wasted_s - run_s, run_s)


def _groups(done: Iterable[JobOutcome], key: Callable[[JobOutcome], str], order: Sequence[str]) -> tuple[Group, ...]:
    jobs: Counter[str] = Counter()
    jct_s: defaultdict[str, float] = defaultdict(float)
    for outcome in done:
        name = key(outcome)
        jobs[name] += 1
        jct_s[name] += outcome.jct_s
    return tuple(Group(name, jobs[name], jct_s[name]) for name in order if jobs[name])


def _by_duration(done: Sequence[JobOutcome]) -> tuple[Group, ...]:
    """Quarters of the jobs by their actual run time."""
    ordered = sorted(done, key=lambda outcome: (outcome.duration_s, outcome.job_id))
    quarter = {id(outcome): DURATION_CLASSES[4 * index // len(ordered)] for index, outcome in enumerate(ordered)}
    return _groups(done, lambda outcome: quarter[id(outcome)], DURATION_CLASSES)


def _by_user(done: Sequence[JobOutcome]) -> tuple[Group, ...]:
    """The users with the most jobs, then all others; empty where the source names none."""
    counts = Counter(outcome.user for outcome in done if outcome.user)
    named = [user for user, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:USERS_SHOWN]]
    if not named:
        return ()
    shown = set(named)
    others = "all others"
    return _groups(done, lambda outcome: outcome.user if outcome.user in shown else others, [*named, others])


def _bars(
    simulation: Simulation, spans: Sequence[tuple[JobOutcome, Span]], window_s: tuple[float, float]
) -> tuple[tuple[Bar, ...], int]:
    """The bars of the first servers within the window, and how many are left out."""
    servers = simulation.cluster.servers
    first_row = np.cumsum([0, *(server.gpus for server in servers)]).tolist()
    bars = [
        bar
        for outcome, span in spans
        if span.start_s < window_s[1] and span.end_s > window_s[0] and isfinite(span.end_s)
        for bar in _span_bars(outcome, span, first_row)
    ]
    bars.sort(key=lambda bar: (bar.start_s, bar.row))
    return tuple(bars[:BARS_MAX]), max(0, len(bars) - BARS_MAX)


def _span_bars(outcome: JobOutcome, span: Span, first_row: Sequence[int]) -> Iterable[Bar]:
    preempted = span is not outcome.spans[-1]
    for share, gpus in zip(span.placement.shares, span.gpu_ids, strict=True):
        if first_row[share.server + 1] > GANTT_GPUS_MAX and share.server:
            continue
        for row, rows in consecutive(sorted(first_row[share.server] + gpu for gpu in gpus)):
            yield Bar(span.start_s, span.end_s, row, rows, outcome.gpus, outcome.job_id, outcome.user, preempted)


def gantt_groups(servers: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The (server, GPUs) that the Gantt chart shows: whole servers within GANTT_GPUS_MAX rows, and always the first."""
    shown: list[tuple[str, int]] = []
    rows = 0
    for name, gpus in servers:
        rows += gpus
        if shown and rows > GANTT_GPUS_MAX:
            break
        shown.append((name, gpus))
    return shown
