"""A workload as one self-contained page: its numbers and its charts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import numpy as np

from policies.model.cluster import Cluster
from service.domain.counts import count_of, skipped_rows
from service.domain.duration import words_of
from service.reports.comparison_data import cdf, gang_class
from service.reports.page import SHARE_OF_JOBS, Chart, lines, page, pictures, table_row
from service.reports.plots import Mark, Series, dot_chart
from service.reports.svg import Axis
from service.sim.workloads.describe import DAY_S, factors_to_past, rhythm
from service.sim.workloads.model import Workload, WorkloadJob

_BINS = 150


def description_html(workload: Workload, numbers: Mapping[str, Any], cluster: Cluster | None = None) -> str:
    """The page for a workload with what :func:`.describe.describe` found."""
    about = f"{count_of(numbers['jobs'])} of {workload.name}; {skipped_rows(numbers['skipped'])}"
    if workload.labels.get("synthetic") or any(job.job_id.startswith("synthetic-") for job in workload.jobs[:1]):
        about += " Synthetic: its numbers are about the generator, not about a cluster."
    rows = [
        table_row(key, f'<td class="words">{escape(formatted(key, value))}</td>')
        for key, value in numbers.items()
        if key != "schema"
    ]
    table = f'<div class="wide"><table>\n<tbody>\n{"".join(rows)}</tbody>\n</table></div>\n'
    return page("Workload", about, f"{pictures(description_charts(workload, cluster))}{table}")


def formatted(key: str, value: object) -> str:
    """A number of the description for people: six significant digits, times also in hours or days."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count:,}" for name, count in value.items())
    if isinstance(value, float):
        text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"
        return f"{text} ({words_of(value)})" if key.endswith("_s") and abs(value) >= 60.0 else text
    return f"{value:,d}" if isinstance(value, int) else str(value)


def description_charts(workload: Workload, cluster: Cluster | None = None) -> list[Chart]:
    """The pictures; those of users and programs only where the source names them."""
    jobs = workload.jobs
    if not jobs:
        return []
    found = [_durations(jobs), _sizes(jobs)]
    if jobs[-1].submit_time_s > jobs[0].submit_time_s:
        found.append(_offered(jobs, cluster))
    found += _rhythm(jobs)
    users = Counter(job.user for job in jobs if job.user)
    if users:
        found.append(_users(users))
    programs = Counter((job.user, job.project, job.name) for job in jobs if job.name)
    if programs:
        found.append(_recurrence(programs, len(jobs)))
        found.append(_new_programs(jobs))
    factors = factors_to_past(jobs)
    if factors:
        found.append(_factors(factors))
    return found


def _durations(jobs: Sequence[WorkloadJob]) -> Chart:
    """By jobs and by the GPU time they take: these differ where a few long jobs hold most GPUs."""
    by_jobs = cdf([job.duration_s for job in jobs])
    ordered = sorted(jobs, key=lambda job: job.duration_s)
    work = list(accumulate(job.gpus * job.duration_s for job in ordered))
    wanted = np.linspace(0.0, work[-1], 200)
    picked = np.unique(np.minimum(np.searchsorted(work, wanted), len(work) - 1)).tolist()
    series = [
        Series("of the jobs", by_jobs.xs, by_jobs.ys, 0),
        Series("of the GPU time", [ordered[i].duration_s for i in picked], [work[i] / work[-1] for i in picked], 1),
    ]
    title = "Share of jobs, and of GPU time, up to a duration"
    x, y = Axis("duration", "seconds", log=True), Axis("share", "ratio", least=0.0, most=1.0)
    return lines("durations", "Durations", title, f"{title}.", x, y, series)


def _sizes(jobs: Sequence[WorkloadJob]) -> Chart:
    many: Counter[str] = Counter()
    work: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for job in jobs:
        name = gang_class(job.gpus)
        many[name] += 1
        work[name] += round(job.gpus * job.duration_s)
        largest[name] = max(job.gpus, largest.get(name, 0))
    total = max(1, sum(work.values()))
    rows = [
        (f"{name} ({many[name]:,})", [Mark(many[name] / len(jobs), 0), Mark(work[name] / total, 1)])
        for name in sorted(many, key=lambda name: largest[name])
    ]
    title = "Share of jobs, and of GPU time, by gang size"
    axis = Axis("share", "ratio", least=0.0)
    svg = dot_chart(title, axis, rows, [("of the jobs", 0), ("of the GPU time", 1)])
    return Chart("gang-sizes", "Gang sizes", title, svg, f"{title}; the number of jobs in brackets.")


def _offered(jobs: Sequence[WorkloadJob], cluster: Cluster | None) -> Chart:
    start_s, end_s = jobs[0].submit_time_s, jobs[-1].submit_time_s
    edges = np.linspace(start_s, end_s, _BINS + 1)
    work, _ = np.histogram(
        [job.submit_time_s for job in jobs], edges, weights=[job.gpus * job.duration_s for job in jobs]
    )
    per_s = (work / np.diff(edges)).tolist()
    since = (edges[:-1] - start_s).tolist()
    series = [Series("offered", since, per_s, 0), Series("mean", (), (float(np.mean(per_s)),), 1, level=True)]
    if cluster is not None:
        series.append(Series(f"GPUs of {cluster.name}", (), (float(cluster.gpus),), 2, level=True))
    title = "GPU time submitted over time"
    x, y = Axis("time since the first submission", "seconds"), Axis("GPU-seconds a second", least=0.0)
    note = f"{title}: GPU-seconds of the jobs submitted in each 150th part."
    return lines("offered", "Offered work", title, note, x, y, series)


def _users(users: Mapping[str, int]) -> Chart:
    counts = sorted(map(float, users.values()), reverse=True)
    ranks = [float(rank + 1) for rank in range(len(counts))]
    series = [Series("users", ranks, counts, 0, markers=len(counts) <= 60)]
    title = "Jobs of each user, from the busiest on"
    x, y = Axis("rank of the user", log=True), Axis("jobs", log=True)
    return lines("users", "Users", title, f"{title}: a straight line here is Zipf's law.", x, y, series, step=False)


def _recurrence(programs: Mapping[tuple[str, str, str], int], jobs: int) -> Chart:
    sizes = Counter(programs.values())
    left, xs, ys = sum(programs.values()), [], []
    for runs in sorted(sizes):
        xs.append(float(runs))
        ys.append(left / jobs)
        left -= runs * sizes[runs]
    title = "Share of jobs whose program runs at least so often"
    series = [Series("programs", xs, ys, 0, markers=len(xs) <= 40)]
    x, note = Axis("runs of the program", log=True, least=1.0), f"{title}. A program is a user, a project and a name."
    return lines("recurrence", "Recurrence", title, note, x, SHARE_OF_JOBS, series, step=False)


def _rhythm(jobs: Sequence[WorkloadJob]) -> list[Chart]:
    """A mean week in parts of two hours, or a mean day where the table holds no whole week; nothing for less than a day."""
    for name, period_s, parts in (("week", 7.0 * DAY_S, 84), ("day", DAY_S, 24)):
        found = rhythm(jobs, period_s, parts)
        if found:
            title = f"Submissions over a mean {name}"
            starts = [period_s * at / parts for at in range(parts + 1)]
            series = [
                Series("submissions", starts, [*found, found[-1]], 0),
                Series("mean", (), (1.0,), 6, level=True),
            ]
            x = Axis(f"time of the {name}", "seconds", least=0.0, most=period_s)
            note = f"{title}, which begins when the table begins."
            return [lines("rhythm", "Rhythm", title, note, x, Axis("submissions / mean", least=0.0), series)]
    return []


def _new_programs(jobs: Sequence[WorkloadJob]) -> Chart:
    """The share of jobs whose program is new, which no history can predict."""
    seen: set[tuple[str, str, str]] = set()
    fresh = []
    for job in jobs:
        key = (job.user, job.project, job.name)
        fresh.append(float(bool(job.name) and key not in seen))
        seen.add(key)
    pieces = [piece for piece in np.array_split(np.array(fresh), min(len(fresh), 50)) if len(piece)]
    ends = list(accumulate(len(piece) for piece in pieces))
    title = "Share of jobs whose program is new"
    series = [Series("new programs", [0.0, *map(float, ends[:-1])], [float(piece.mean()) for piece in pieces], 0)]
    x, y = Axis("jobs before", least=0.0), Axis("share of jobs", "ratio", least=0.0)
    return lines("new-programs", "New programs", title, f"{title}, in each fiftieth of the jobs.", x, y, series)


def _factors(factors: Sequence[float]) -> Chart:
    curve = cdf(factors)
    title = "Duration of a run over the median of its past runs"
    x = Axis("duration / median of up to 20 runs before", log=True, least=0.05, most=20.0)
    y = Axis("share of runs", "ratio", least=0.0, most=1.0)
    note = f"{title}, where there are at least four. Right of 2 and left of 0.5 the median misleads."
    return lines("repeats", "Variation between runs", title, note, x, y, [Series("runs", curve.xs, curve.ys, 0)])
