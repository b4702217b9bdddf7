"""A comparison of policies as one self-contained page, readable without colour."""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from policies.model.cluster import Cluster
from service.domain.counts import count_of, skipped_rows
from service.domain.duration import words_of
from service.reports.comparison_charts import charts, run_name
from service.reports.comparison_data import RunFigures, main_runs
from service.reports.comparison_story import sensitivity, story
from service.reports.page import page, pictures, table, table_row
from service.sim.results import Result
from service.sim.seeds import WORDS, over_seeds, ratio_words


class _Measure(NamedTuple):
    field: str
    title: str
    form: str = ""
    """Format of its numbers; "": a duration."""


_HINT = (
    '<p class="note">How much do wrong estimates cost? With <code>--predictors oracle,noisy:0.5,noisy:1,noisy:2,none</code> this '
    "page begins with a curve of cost and preemptions against prediction error.</p>\n"
)
_MEASURES = (
    _Measure("mean_jct_s", "Mean JCT"),
    _Measure("median_jct_s", "Median JCT"),
    _Measure("p90_jct_s", "p90 JCT"),
    _Measure("p99_jct_s", "p99 JCT"),
    _Measure("mean_queueing_delay_s", "Mean waiting"),
    _Measure("mean_slowdown", "Mean slowdown", ",.3f"),
    _Measure("makespan_s", "Makespan"),
    _Measure("utilization_ratio", "Utiliza\u00adtion", ".1%"),
    _Measure("preemptions", "Preemp\u00adtions", ",d"),
    _Measure("wasted_gpu_s", "Wasted GPU time"),
    _Measure("finished", "Finished jobs", ",d"),
)
_PROMISES = (
    _Measure("promises_kept_ratio", "Promises kept", ".1%"),
    _Measure("mean_lateness_s", "Mean lateness"),
    _Measure("promised_jct_ratio", "Promised over actual JCT", ",.2f"),
)
"""Shown if a run promises ends."""


def comparison_html(runs: Sequence[RunFigures], workload: str, cluster: Cluster, results: Sequence[Result] = ()) -> str:
    """The page: the winner and why, every measure by run, then the pictures. ``runs`` have one seed.

    ``results`` are those of all runs; where they have several seeds, a table shows the means over these.
    """
    first = runs[0].result
    predictors = list(dict.fromkeys(run.result.predictor for run in runs))
    about = (
        f"{count_of(first.jobs)} of {workload} on cluster {cluster.name} ({count_of(cluster.gpus, 'GPU')} on "
        f"{count_of(len(cluster.servers), 'server')}); predictor {', '.join(predictors)}; seed {first.seed}. No schedule has a "
        f"mean job completion time (JCT) below {words_of(first.lower_bound_mean_jct_s)}. {skipped_rows(first.skipped)}"
    )
    several = len(predictors) > 1
    summary = " ".join(part for part in (story(main_runs(runs)), sensitivity(runs)) if part)
    if several:
        summary = f"With predictor {predictors[0]}: {summary}"
    story_html = f'<p class="story">{escape(summary)}</p>\n'
    return page(
        "Comparison of policies",
        about,
        f"{story_html}{_table(runs, several)}{'' if several else _HINT}{_seeds_table(results, first.seed, several)}"
        f"{pictures(charts(runs, cluster))}",
    )


def _seeds_table(results: Sequence[Result], drawn: int, several: bool) -> str:
    shown = over_seeds([result.to_dict() for result in results])
    if not shown or "seeds" not in shown[0]:
        return ""
    rows = []
    for document in shown:
        name = f"{document['policy']} ({document['predictor']})" if several else document["policy"]
        first = f"<td>{document['seeds']}</td><td>{ratio_words(document)}</td>"
        rows.append(table_row(name, first + _cells(document, _MEASURES)))
    seeds = sorted({result.seed for result in results})
    note = f"{WORDS} The rest of this page shows seed {drawn}."
    columns = ("Policy", "Seeds", "Ratio to the bound", *(measure.title for measure in _MEASURES))
    return f"<h2>Over {len(seeds)} seeds</h2>\n{table(note, columns, rows)}"


def _table(runs: Sequence[RunFigures], several: bool) -> str:
    ratios = [run.result.ratio_to_lower_bound for run in runs]
    longest = max((ratio for ratio in ratios if ratio is not None), default=1.0)
    best = min((ratio for ratio in ratios if ratio is not None), default=None)
    measures = (*_MEASURES, *_PROMISES) if any(run.result.promises for run in runs) else _MEASURES
    rows = []
    for run, ratio in zip(runs, ratios, strict=True):
        left = run.result.finished < run.result.jobs
        number = "jobs left" if left else "-" if ratio is None else f"{ratio:.3f}"
        width = 0.0 if ratio is None else 7.0 * ratio / longest
        bar = f'<td>{number}</td><td class="bar"><span style="width: {width:.2f}rem"></span></td>'
        is_best = ratio is not None and ratio == best
        cells = _cells(run.result.to_dict(), measures)
        rows.append(table_row(run_name(run, several), bar + cells, best=is_best))
    note = (
        "Mean JCT over the lower bound: 1 is out of reach for most workloads, and less is impossible. The least is in bold. "
        "Slowdown is JCT over the run time at the best placement (of at least 10 s). The pointer on a time shows it in "
        "seconds."
    )
    if measures is not _MEASURES:
        note += (
            " Lateness: time from the promised end to the end, 0 for jobs in time. The last column is a geometric mean."
        )
    return table(note, ("Policy", "Ratio to the bound", "", *(measure.title for measure in measures)), rows)


def _cells(document: dict[str, Any], measures: Sequence[_Measure]) -> str:
    cells = []
    for measure in measures:
        value = document[measure.field]
        if value is None:
            cells.append("<td>-</td>")
        elif measure.form:
            cells.append(f"<td>{format(value, measure.form)}</td>")
        else:
            cells.append(f'<td title="{value:,.1f} s">{words_of(value)}</td>')
    return "".join(cells)
