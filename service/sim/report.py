"""A comparison as one self-contained page: no script, no font and no picture from elsewhere, readable without colour."""

from collections.abc import Sequence
from html import escape

from service.sim.results import Result

_MEASURES: tuple[tuple[str, str, str], ...] = (
    ("mean_jct_s", "Mean JCT, s", ",.1f"),
    ("median_jct_s", "Median JCT, s", ",.1f"),
    ("p90_jct_s", "90th percentile of JCT, s", ",.1f"),
    ("p99_jct_s", "99th percentile of JCT, s", ",.1f"),
    ("mean_queueing_delay_s", "Mean queueing delay, s", ",.1f"),
    ("mean_slowdown", "Mean slowdown", ",.3f"),
    ("makespan_s", "Makespan, s", ",.0f"),
    ("utilization_ratio", "Utilization", ".3f"),
    ("preemptions", "Preemptions", ",d"),
    ("wasted_gpu_s", "Wasted GPU-seconds", ",.0f"),
    ("finished", "Finished jobs", ",d"),
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
caption { text-align: left; color: #555; padding-bottom: .5rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; font-weight: normal; }
thead th { font-weight: bold; border-bottom: 2px solid #888; }
td.bar { width: 55%; text-align: left; }
td.bar span { display: inline-block; height: .9rem; background: #0072b2; vertical-align: middle; }
"""


def comparison_html(results: Sequence[Result], workload: str, cluster: str) -> str:
    """The page: mean JCT over the lower bound as bars, then every measure by policy."""
    first = results[0]
    about = (
        f"{first.jobs:,} jobs of {workload} on cluster {cluster}; predictor {first.predictor}, seed {first.seed}; "
        f"no schedule has a mean JCT below {first.lower_bound_mean_jct_s:,.1f} s. {first.skipped:,} rows were skipped."
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Sooner: comparison of policies</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Comparison of policies</h1>\n<p>{escape(about)}</p>\n"
        f"{_bars(results)}{_measures(results)}</body>\n</html>\n"
    )


def _bars(results: Sequence[Result]) -> str:
    longest = max((result.ratio_to_lower_bound or 0.0) for result in results)
    rows = []
    for result in results:
        ratio = result.ratio_to_lower_bound
        width = 0.0 if ratio is None else 100.0 * ratio / longest
        number = "some jobs did not finish" if ratio is None else f"{ratio:.3f}"
        rows.append(
            f'<tr><th scope="row">{escape(result.policy)}</th><td>{number}</td>'
            f'<td class="bar"><span style="width: {width:.1f}%"></span></td></tr>\n'
        )
    head = '<tr><th>Policy</th><th scope="col">Ratio</th><th></th></tr>'
    caption = "Mean JCT over the lower bound; 1 is out of reach for most workloads, and less is impossible."
    return f"<table>\n<caption>{caption}</caption>\n<thead>{head}</thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n"


def _measures(results: Sequence[Result]) -> str:
    head = "".join(f'<th scope="col">{escape(result.policy)}</th>' for result in results)
    rows = []
    for name, title, form in _MEASURES:
        cells = "".join(f"<td>{format(getattr(result, name), form)}</td>" for result in results)
        rows.append(f'<tr><th scope="row">{title}</th>{cells}</tr>\n')
    return f"<table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n"
