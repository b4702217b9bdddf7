"""An evaluation as one self-contained page: the errors of each model by user, kind of job and time."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from predictor.experts import FIRST
from service.domain.duration import words_of
from service.reports.evaluation_charts import charts
from service.reports.evaluation_figures import Worst, worst
from service.reports.page import page, pictures, table, table_row
from service.sim.evaluate import SERVED, Evaluation

_COLUMNS: Final = (  # The title, the key of the document, and the format; "": a duration.
    ("Pinball (log)", "pinball_log", ".4f"),
    ("MAE", "mae_s", ""),
    ("Median APE", "median_ape", ".3f"),
    ("R2 (log)", "r2_log", ".3f"),
    ("Within 2x", "within_2x", ".1%"),
    ("Under 4x", "under_4x", ".1%"),
    ("Kendall tau", "kendall_tau", ".3f"),
    ("Concor\u00addance", "concordance", ".3f"),
    ("80% cover\u00adage", "coverage_80", ".1%"),
    ("Pinball, by user", "macro_by_user.pinball_log", ".4f"),
    ("Pinball, no bursts", "deduplicated.pinball_log", ".4f"),
    ("Training", "fit_s", ""),
)


def evaluation_html(evaluation: Evaluation) -> str:
    """The page: a summary, every model by every measure, pictures, and the worst cases."""
    document = evaluation.document
    about = (
        f"{document['test_jobs']:,} test jobs of {document['workload']}, each predicted from what was known at its submission; "
        f"{document['retrains']} retrainings. Times are of service."
    )
    story_html = f'<p class="story">{escape(story(document))}</p>\n'
    return page(
        "Evaluation of predictions",
        about,
        f"{story_html}{_models(document['models'])}{pictures(charts(evaluation))}{_worst(evaluation)}",
    )


def story(document: Mapping[str, Any]) -> str:
    """The served predictions against the recurrence median, in words."""
    served, simplest = document["models"][SERVED], document["models"][FIRST]
    text = (
        f"What serves is within a factor of two for {served['within_2x']:.1%} of the jobs ({simplest['within_2x']:.1%} with the "
        f"recurrence median alone), and its mean error is {words_of(served['mae_s'])} ({words_of(simplest['mae_s'])}). "
        f"{served['coverage_80']:.1%} of its 80% intervals hold."
    )
    if simplest["pinball_log"] > 0.0:
        change = served["pinball_log"] / simplest["pinball_log"] - 1.0
        word = "below" if change <= 0.0 else "above"
        text += f" The loss of its whole distribution is {abs(change):.1%} {word} that of the recurrence median."
    cold = served["cold"]["jobs"]
    if cold:
        text += f" {cold / served['jobs']:.1%} of the jobs were of programs that had never run before."
    return text


def _models(models: Mapping[str, Mapping[str, Any]]) -> str:
    names = sorted(models, key=lambda name: (name != SERVED, models[name]["pinball_log"], name))
    rows = []
    for name in names:
        cells = "".join(f"<td>{_cell(models[name], key, form)}</td>" for _, key, form in _COLUMNS)
        rows.append(table_row(name, cells, best=name == SERVED))
    note = (
        "The served predictions are in bold, the others in order of loss. Under 4x: below a quarter of the actual duration. "
        "By user: each user counts once. No bursts: the first run of each program in each five minutes."
    )
    return table(note, ("Model", *(title for title, _, _ in _COLUMNS)), rows)


def _cell(measured: Mapping[str, Any], key: str, form: str) -> str:
    value: Any = measured
    for part in key.split("."):
        value = value[part]
    if value is None:
        return "-"
    return format(value, form) if form else words_of(value)


def _worst(evaluation: Evaluation) -> str:
    by_factor = worst(evaluation, lambda each: np.abs(each.log_factor))
    by_time = worst(evaluation, lambda each: each.error_s)
    return (
        '<h2 id="worst">Worst cases</h2>\n'
        f"{_cases('The jobs that were off by the largest factor.', by_factor)}"
        f"{_cases('The jobs that were off by the most time.', by_time)}"
    )


def _cases(note: str, found: Sequence[Worst]) -> str:
    columns = (
        "Job",
        "Actual",
        "Predicted",
        "80% interval",
        "Factor",
        "GPUs",
        "Past runs",
        "User",
        "Program",
        "Submitted",
    )
    return table(note, columns, map(_case, found))


def _case(case: Worst) -> str:
    factor = case.actual_s / case.predicted_s
    words = f"{factor:,.3g}x longer" if factor >= 1.0 else f"{1.0 / factor:,.3g}x shorter"
    cells = (
        words_of(case.actual_s),
        words_of(case.predicted_s),
        f"{words_of(case.low_s)} to {words_of(case.high_s)}",
        words,
        f"{case.gpus:,}",
        f"{case.runs:,}",
        escape(case.user),
        escape(case.program),
        words_of(case.submit_time_s),
    )
    return table_row(case.job_id, "".join(f"<td>{cell}</td>" for cell in cells))
