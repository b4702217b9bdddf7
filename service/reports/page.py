"""The frame of a self-contained page, without scripts and external fonts or pictures: its charts and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from service.reports.plots import Series, line_chart
from service.reports.svg import Axis

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem; color: #1a1a1a; }
body { background: #fff; }
h2 { margin: 2.5rem 0 .3rem; font-size: 1.25rem; }
p { max-width: 46rem; }
p.story { border-left: 4px solid #0072b2; padding: .2rem 1rem; font-size: 1.06rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
td.words { text-align: left; white-space: normal; }
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
@media (prefers-color-scheme: dark) {
  body { background: #141414; color: #e4e4e4; }
  .note { color: #aaa; }
  th, td { border-color: #444; }
  td.bar span { background: #56b4e9; }
  svg { filter: invert(.92) hue-rotate(180deg); }
}
@media print { .charts { display: block; } section { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its heading and note. ``slug`` names its file and anchor; ``folded`` shows it only after a click."""

    slug: str
    heading: str
    title: str
    svg: str
    note: str = ""
    broad: bool = False
    folded: bool = False


SHARE_OF_JOBS = Axis("share of jobs", "ratio", least=0.0, most=1.0)


def lines(
    slug: str, heading: str, title: str, note: str, x: Axis, y: Axis, series: Sequence[Series], *, step: bool = True
) -> Chart:
    """A chart of lines; with ``step`` each value holds until the next x."""
    return Chart(slug, heading, title, line_chart(title, x, y, series, step=step), note)


def table(note: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    """A table with its note; ``rows`` are markup, the first cell of each its name."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f'<p class="note">{escape(note)}</p>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        f"{''.join(rows)}</tbody>\n</table></div>\n"
    )


def table_row(name: str, cells: str, *, best: bool = False) -> str:
    """A row of a table; ``cells`` is markup, ``best`` sets it in bold."""
    mark = ' class="best"' if best else ""
    return f'<tr{mark}><th scope="row">{escape(name)}</th>{cells}</tr>\n'


def page(title: str, about: str, body: str) -> str:
    """A whole document; ``about`` is text, ``body`` is markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>Sooner: {escape(title[0].lower() + title[1:])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n{body}</body>\n</html>\n"
    )


def pictures(found: Sequence[Chart]) -> str:
    """The charts in a grid, each with its heading and note."""
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
