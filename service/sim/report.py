"""A comparison as one self-contained page: no script, no font and no picture from elsewhere, readable without colour."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from policies.model.cluster import Cluster
from service.sim.plots import duration
from service.sim.report_charts import Chart, charts, run_name
from service.sim.report_data import RunFigures, main_runs
from service.sim.report_story import sensitivity, story
from service.sim.results import Result


class _Measure(NamedTuple):
    field: str
    title: str
    form: str


_MEASURES = (
    _Measure("mean_jct_s", "Mean JCT, s", ",.1f"),
    _Measure("median_jct_s", "Median JCT, s", ",.1f"),
    _Measure("p90_jct_s", "p90 JCT, s", ",.1f"),
    _Measure("p99_jct_s", "p99 JCT, s", ",.1f"),
    _Measure("mean_queueing_delay_s", "Mean queueing delay, s", ",.1f"),
    _Measure("mean_slowdown", "Mean slowdown", ",.3f"),
    _Measure("makespan_s", "Makespan, s", ",.0f"),
    _Measure("utilization_ratio", "Utilization", ".3f"),
    _Measure("preemptions", "Preemptions", ",d"),
    _Measure("wasted_gpu_s", "Wasted GPU-seconds", ",.0f"),
    _Measure("finished", "Finished jobs", ",d"),
)

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1a1a1a; }
body { background: #fff; }
h2 { margin: 2.5rem 0 .3rem; font-size: 1.25rem; }
p { max-width: 46rem; }
p.story { border-left: 4px solid #0072b2; padding: .2rem 1rem; font-size: 1.06rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child { text-align: left; white-space: nowrap; }
tbody th { font-weight: normal; }
tr.best th, tr.best td { font-weight: bold; }
td.bar { text-align: left; }
td.bar span { display: inline-block; height: .8rem; background: #0072b2; vertical-align: middle; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem 2rem; }
.charts section { min-width: 0; }
section.broad { grid-column: 1 / -1; }
svg { width: 100%; height: auto; max-width: 60rem; }
.note { color: #555; font-size: .9rem; margin: 0; }
summary { cursor: pointer; margin: .5rem 0; }
"""


def comparison_html(runs: Sequence[RunFigures], workload: str, cluster: Cluster) -> str:
    """The page: what won and why, every measure by run, then the pictures."""
    first = runs[0].result
    predictors = list(dict.fromkeys(run.result.predictor for run in runs))
    about = (
        f"{first.jobs:,} jobs of {workload} on cluster {cluster.name} ({cluster.gpus:,} GPUs on "
        f"{len(cluster.servers):,} servers); predictor {', '.join(predictors)}; seed {first.seed}. No schedule has a mean "
        f"job completion time (JCT) below {first.lower_bound_mean_jct_s:,.1f} s. {first.skipped:,} rows were skipped."
    )
    several = len(predictors) > 1
    told = " ".join(part for part in (story(main_runs(runs)), sensitivity(runs)) if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>Sooner: comparison of policies</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>Comparison of policies</h1>\n<p>{escape(about)}</p>\n<p class="story">{escape(told)}</p>\n'
        f"{_table(runs, several)}{_pictures(charts(runs, cluster))}</body>\n</html>\n"
    )


def _table(runs: Sequence[RunFigures], several: bool) -> str:
    ratios = [run.result.ratio_to_lower_bound for run in runs]
    longest = max((ratio for ratio in ratios if ratio is not None), default=1.0)
    best = min((ratio for ratio in ratios if ratio is not None), default=None)
    head = "".join(
        f'<th scope="col">{title}</th>' for title in ("Ratio to the bound", "", *(m.title for m in _MEASURES))
    )
    rows = []
    for run, ratio in zip(runs, ratios, strict=True):
        number = "jobs left" if ratio is None else f"{ratio:.3f}"
        width = 0.0 if ratio is None else 7.0 * ratio / longest
        mark = ' class="best"' if ratio is not None and ratio == best else ""
        rows.append(
            f'<tr{mark}><th scope="row">{escape(run_name(run, several))}</th><td>{number}</td>'
            f'<td class="bar"><span style="width: {width:.2f}rem"></span></td>{_cells(run.result)}</tr>\n'
        )
    caption = (
        "Mean JCT over the lower bound: 1 is out of reach for most workloads, and less is impossible. The least is in bold. "
        "Slowdown is JCT over the run time at the best placement (of at least 10 s)."
    )
    return (
        f'<p class="note">{caption}</p>\n<div class="wide"><table>\n<thead><tr><th scope="col">Policy</th>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
    )


def _cells(result: Result) -> str:
    cells = []
    for measure in _MEASURES:
        value = getattr(result, measure.field)
        title = f' title="{duration(value)}"' if measure.field.endswith("_s") and "gpu" not in measure.field else ""
        cells.append(f"<td{title}>{format(value, measure.form)}</td>")
    return "".join(cells)


def _pictures(found: Sequence[Chart]) -> str:
    sections = []
    for chart in found:
        heading = f"<h2>{escape(chart.heading)}</h2>\n" if chart.heading else ""
        note = f'<p class="note">{escape(chart.note)}</p>\n' if chart.note else ""
        drawing = chart.svg
        if chart.folded:
            drawing = f"<details><summary>{escape(chart.title)}</summary>\n{drawing}</details>\n"
        broad = ' class="broad"' if chart.broad else ""
        sections.append(f'<section id="{chart.slug}"{broad}>\n{heading}{note}{drawing}</section>\n')
    return f'<div class="charts">\n{"".join(sections)}</div>\n'
