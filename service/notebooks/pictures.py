"""Pictures with the finding as their title, and tables. Jupyter draws the last value of a cell.

They are plain SVG and HTML without JavaScript. ``save`` writes a picture to a file.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from re import search

from service.cli.comparison_files import rasterizer
from service.reports.svg import GREY, WIDTH, Drawing, standalone, text

_TITLE_WIDTH, _NOTE_WIDTH = 64, 90
_TITLE_LINE, _NOTE_LINE = 21.0, 16.0
_MARGIN = 12.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart with the finding above it and, below, how to read it. ``chart`` is a drawing of :mod:`service.reports.plots`."""

    finding: str
    chart: str
    note: str = ""

    @property
    def svg(self) -> str:
        """The whole picture."""
        title = textwrap.wrap(self.finding, _TITLE_WIDTH)
        note = textwrap.wrap(self.note, _NOTE_WIDTH)
        size = search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', self.chart)
        assert size is not None, "every chart has a viewBox"
        top = _MARGIN + _TITLE_LINE * len(title)
        bottom = top + float(size[1])
        bold, small = ' font-size="16" font-weight="bold"', ' font-size="12.5"'
        drawing = Drawing(self.finding)
        for at, line in enumerate(title):
            drawing.add(text(_MARGIN, _MARGIN + _TITLE_LINE * (at + 0.7), line, more=bold))
        drawing.add(self.chart.replace("<svg ", f'<svg x="0" y="{top:.0f}" ', 1))
        for at, line in enumerate(note):
            drawing.add(text(_MARGIN, bottom + _NOTE_LINE * (at + 0.9), line, colour=GREY, more=small))
        return drawing.svg(bottom + _NOTE_LINE * len(note) + _MARGIN)

    def _repr_html_(self) -> str:
        return self.svg.replace(f'width="{WIDTH:.0f}"', 'style="max-width: 100%; height: auto" width="900"', 1)

    def save(self, path: str | Path) -> None:
        """Write a ``.svg`` or, with the extra ``png`` or ``notebooks``, a ``.png``. Raises NoRasterizer and OSError."""
        path = Path(path)
        drawing = standalone(self.svg)
        if path.suffix == ".png":
            path.write_bytes(rasterizer().svg_to_bytes(svg_string=drawing, zoom=2))
        else:
            path.write_text(drawing, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under their columns; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in self.rows
        )
        caption = f"<p><b>{escape(self.title)}</b></p>" if self.title else ""
        return f"{caption}<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        cells = [[str(cell) for cell in row] for row in (self.columns, *self.rows)]
        wide = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(size) if at else cell.ljust(size)
                for at, (cell, size) in enumerate(zip(row, wide, strict=True))
            )
            for row in cells
        ]
        return "\n".join(([self.title] if self.title else []) + [line.rstrip() for line in lines])
