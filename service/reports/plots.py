"""Charts as plain SVG text (:mod:`.svg`): lines, dots, stacked bars, blocks of time, and densities."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from service.reports.svg import (
    BOTTOM,
    GREY,
    GRID,
    INK,
    LEFT,
    PALETTE,
    RIGHT,
    ROW,
    TOP,
    WIDTH,
    Axis,
    Drawing,
    Scale,
    cut,
    left_of_labels,
    marker,
    rectangle,
    stroke,
    text,
)

__all__ = [
    *("Axis", "Block", "Mark", "Panel", "Series"),
    *("bar_chart", "density_chart", "dot_chart", "gantt_chart", "line_chart", "panel_chart"),
]

_END = WIDTH - RIGHT
_PANEL_GAP = 20.0
_SQUARE = 460.0
_OPACITY_MIN = 0.12
"""Opacity of a cell that holds a single item, so that it is visible."""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line. ``style`` sets colour, dash and marker, so that a policy looks the same in every chart. ``level``: one value
    for every x, drawn as a line across the chart.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    markers: bool = False
    level: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One value of a row in a dot chart."""

    value: float
    style: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several diagrams over a common x axis."""

    y: Axis
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a Gantt chart: ``rows`` rows from ``row`` on. ``notch`` marks an end by preemption."""

    start: float
    end: float
    row: int
    rows: int
    colour: str
    title: str
    notch: bool = False


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], *, step: bool = False, height: float = 300.0
) -> str:
    """Lines over a common x axis; with ``step`` each value holds until the next x."""
    return panel_chart(title, x, [Panel(y, series)], step=step, height=height)


def panel_chart(title: str, x: Axis, panels: Sequence[Panel], *, step: bool = False, height: float = 300.0) -> str:
    """Panels of equal size above each other, with one x axis and one legend, that of the first panel."""
    names = dict.fromkeys((each.label, each.style) for each in panels[0].series if each.label)
    drawing = Drawing(title, [(label, partial(_dash, style)) for label, style in names])
    xs = Scale(x, [value for panel in panels for each in panel.series for value in each.xs], LEFT, _END)
    tall = (height - TOP - BOTTOM - _PANEL_GAP * (len(panels) - 1)) / len(panels)
    for index, panel in enumerate(panels):
        top = drawing.top + (tall + _PANEL_GAP) * index
        bottom = top + tall
        ys = Scale(panel.y, [value for each in panel.series for value in each.ys], bottom, top)
        drawing.columns(xs, top, bottom, numbers=panel is panels[-1])
        drawing.rows(ys, panel.y.label, LEFT, _END, (top + bottom) / 2.0, 14.0)
        drawing.add(f'<path d="M{LEFT:.1f} {top:.1f}V{bottom:.1f}H{_END:.1f}" fill="none" stroke="{GREY}"/>\n')
        drawing.add(*(_line(each, xs, ys, step) for each in panel.series))
    return drawing.svg(height + drawing.top - TOP, x.label, (LEFT + _END) / 2.0)


def _dash(style: int, across: float, down: float) -> str:
    return f'<path d="M{across:.1f} {down:.1f}h24" {stroke(style)}/>\n'


def _line(series: Series, xs: Scale, ys: Scale, step: bool) -> str:
    if series.level:
        pixels = [(LEFT, ys.at(series.ys[0])), (_END, ys.at(series.ys[0]))]
    else:
        pixels = [(xs.at(a), ys.at(b)) for a, b in zip(series.xs, series.ys, strict=True)]
    path: list[str] = []
    for index, (across, down) in enumerate(pixels):
        if step and index:
            path.append(f"H{across:.1f}V{down:.1f}")
        else:
            path.append(f"{'L' if index else 'M'}{across:.1f} {down:.1f}")
    wide = 1.0 if series.level else 2.0
    drawn = f'<path d="{"".join(path)}" fill="none" {stroke(series.style, wide)}/>\n' if path else ""
    return drawn + ("".join(marker(*pixel, series.style) for pixel in pixels) if series.markers else "")


def dot_chart(title: str, x: Axis, rows: Sequence[tuple[str, Sequence[Mark]]], names: Sequence[tuple[str, int]]) -> str:
    """One row per category, one marker per policy; ``names`` are (label, style) for the legend."""
    drawing = Drawing(title, [(label, partial(_dot, style)) for label, style in names])
    left = left_of_labels(label for label, _ in rows)
    bottom = drawing.top + ROW * len(rows)
    scale = Scale(x, [mark.value for _, marks in rows for mark in marks], left + 8.0, _END - 8.0)
    drawing.columns(scale, drawing.top, bottom)
    for index, (label, marks) in enumerate(rows):
        down = drawing.top + ROW * (index + 0.5)
        drawing.add(text(left - 8.0, down + 4.0, cut(label, 36), anchor="end"))
        drawing.add(f'<path d="M{left:.1f} {down:.1f}H{_END:.1f}" stroke="{GRID}"/>\n')
        drawing.add(*(marker(scale.at(mark.value), down, mark.style) for mark in marks))
    return drawing.svg(bottom + BOTTOM, x.label, (left + WIDTH) / 2.0)


def _dot(style: int, across: float, down: float) -> str:
    return marker(across + 14.0, down, style)


def _square(colour: str, across: float, down: float) -> str:
    return rectangle(across + 8.0, down - 6.0, 14.0, 12.0, f'fill="{colour}" stroke="{GREY}"')


def bar_chart(title: str, x: Axis, rows: Sequence[tuple[str, Sequence[float]]], keys: Sequence[tuple[str, str]]) -> str:
    """One stacked bar per row: its parts are in the order of ``keys``, (label, colour). Parts below 0 count as 0."""
    drawing = Drawing(title, [(label, partial(_square, colour)) for label, colour in keys])
    left = left_of_labels(label for label, _ in rows)
    bottom = drawing.top + ROW * len(rows)
    scale = Scale(x, [0.0, *(sum(max(0.0, part) for part in parts) for _, parts in rows)], left, _END)
    drawing.columns(scale, drawing.top, bottom)
    for index, (label, parts) in enumerate(rows):
        down = drawing.top + ROW * index
        drawing.add(text(left - 8.0, down + ROW / 2.0 + 4.0, cut(label, 36), anchor="end"))
        end = 0.0
        for part, (_, colour) in zip(parts, keys, strict=True):
            begin, end = end, end + max(0.0, part)
            wide = scale.at(end) - scale.at(begin)
            drawing.add(rectangle(scale.at(begin), down + 4.0, wide, ROW - 8.0, f'fill="{colour}"'))
    return drawing.svg(bottom + BOTTOM, x.label, (left + WIDTH) / 2.0)


def gantt_chart(
    title: str,
    x: Axis,
    blocks: Sequence[Block],
    groups: Sequence[tuple[str, int]],
    keys: Sequence[tuple[str, str]],
) -> str:
    """One row per GPU. ``groups`` are (server, GPUs) from the top, ``keys`` (label, colour) for the legend."""
    drawing = Drawing(title, [(label, partial(_square, colour)) for label, colour in keys])
    count = sum(rows for _, rows in groups)
    tall = max(3.0, min(14.0, 420.0 / max(1, count)))
    top, bottom = drawing.top, drawing.top + tall * count
    scale = Scale(x, [], LEFT, _END)
    drawing.columns(scale, top, bottom)
    down = top
    for name, rows in groups:
        drawing.add(f'<path d="M{LEFT:.1f} {down:.1f}H{_END:.1f}" stroke="#999999"/>\n')
        if tall * rows >= 11.0:
            drawing.add(text(LEFT - 6.0, down + tall * rows / 2.0 + 4.0, cut(name, 10), anchor="end"))
        down += tall * rows
    for block in blocks:
        left, right, down = scale.at(block.start), scale.at(block.end), top + tall * block.row
        look = f'fill="{block.colour}" stroke="#fff" stroke-width="0.5"'
        drawing.add(rectangle(left, down, max(0.4, right - left), tall * block.rows, look, block.title))
        if block.notch:
            drawing.add(f'<path d="M{right:.1f} {down:.1f}v{tall * block.rows:.1f}" stroke="#000" stroke-width="2"/>\n')
    return drawing.svg(bottom + BOTTOM, x.label, (LEFT + WIDTH) / 2.0)


def density_chart(title: str, x: Axis, y: Axis, counts: Sequence[Sequence[float]], edges: Sequence[float]) -> str:
    """The number of items in each cell, rows over ``y`` and columns over ``x``, both with these ``edges``; darker is more.

    A line marks where both are equal, dotted ones a factor of two either way.
    """
    drawing = Drawing(title)
    left = (WIDTH - _SQUARE) / 2.0
    top, bottom = 14.0, 14.0 + _SQUARE
    xs, ys = Scale(x, edges, left, left + _SQUARE), Scale(y, edges, bottom, top)
    drawing.columns(xs, top, bottom)
    drawing.rows(ys, y.label, left, left + _SQUARE, (top + bottom) / 2.0, left - 64.0)
    most = max((count for row in counts for count in row), default=1.0)
    for row, cells in enumerate(counts):
        high, low = ys.at(edges[row + 1]), ys.at(edges[row])
        for column, count in enumerate(cells):
            if count > 0.0:
                begin, end = xs.at(edges[column]), xs.at(edges[column + 1])
                dark = _OPACITY_MIN + (1.0 - _OPACITY_MIN) * (count / most) ** 0.5
                look = f'fill="{PALETTE[0]}" fill-opacity="{dark:.2f}"'
                drawing.add(rectangle(begin, high, end - begin, low - high, look, f"{count:,.0f}"))
    drawing.add(*(_ratio_line(xs, ys, edges[0], edges[-1], factor) for factor in (0.5, 1.0, 2.0)))
    return drawing.svg(bottom + BOTTOM, x.label, left + _SQUARE / 2.0)


def _ratio_line(xs: Scale, ys: Scale, low: float, high: float, factor: float) -> str:
    """The line y = factor x within the square."""
    begin, end = max(low, low / factor), min(high, high / factor)
    if begin >= end:
        return ""
    dash = "" if factor == 1.0 else ' stroke-dasharray="2 3"'
    return (
        f'<path d="M{xs.at(begin):.1f} {ys.at(factor * begin):.1f}L{xs.at(end):.1f} {ys.at(factor * end):.1f}" '
        f'stroke="{INK}"{dash}/>\n'
    )
