"""The frame of a self-contained page: no script, no font and no picture from elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
    """A picture with its words. ``slug`` names its file and anchor; ``folded`` hides it behind a line to click."""

    slug: str
    heading: str
    title: str
    svg: str
    note: str = ""
    broad: bool = False
    folded: bool = False


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
