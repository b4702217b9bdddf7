"""Charts of lines and of dots, as plain SVG text (:mod:`.svg`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.reports.svg import (
    BOTTOM,
    CHARACTER,
    GREY,
    GRID,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Scale,
    cut,
    legend,
    marker,
    stroke,
    svg_document,
    text,
    verticals,
)

__all__ = ["Axis", "Mark", "Panel", "Series", "dot_chart", "line_chart", "panel_chart"]

_PANEL_GAP = 20.0


@dataclass(frozen=True, slots=True)
class Series:
    """A named line. ``style`` picks colour, dash and marker, so that one policy looks the same in every chart."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    markers: bool = False
    level: bool = False
    """Whether it is one value for every x: drawn as a line right across."""


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


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], *, step: bool = False, height: float = 300.0
) -> str:
    """Lines over a common x axis; with ``step`` each value holds until the next x."""
    return panel_chart(title, x, [Panel(y, series)], step=step, height=height)


def panel_chart(title: str, x: Axis, panels: Sequence[Panel], *, step: bool = False, height: float = 300.0) -> str:
    """Panels of equal size above each other, with one legend, made of the first one's series, and one x axis."""
    names = dict.fromkeys((each.label, each.style) for each in panels[0].series if each.label)
    words, top = legend(list(names), lines=True)
    xs = Scale(x, [value for panel in panels for each in panel.series for value in each.xs], LEFT, WIDTH - RIGHT)
    tall = (height - TOP - BOTTOM - _PANEL_GAP * (len(panels) - 1)) / len(panels)
    parts = [words]
    bottom = top + tall
    for panel in panels:
        ys = Scale(panel.y, [value for each in panel.series for value in each.ys], bottom, bottom - tall)
        last = panel is panels[-1]
        parts += [_frame(panel.y, xs, ys, bottom - tall, bottom, numbers=last)]
        parts += [_line(each, xs, ys, step) for each in panel.series]
        bottom += tall + _PANEL_GAP
    height += top - TOP
    parts.append(text((LEFT + WIDTH - RIGHT) / 2.0, height - 8.0, x.label, colour=GREY, anchor="middle"))
    return svg_document(title, height, "".join(parts))


def _line(series: Series, xs: Scale, ys: Scale, step: bool) -> str:
    if series.level:
        pixels = [(LEFT, ys.at(series.ys[0])), (WIDTH - RIGHT, ys.at(series.ys[0]))]
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
    """One row a category, one marker a policy; ``names`` are (label, style) for the legend."""
    words, top = legend(names, lines=False)
    left = min(260.0, max(LEFT, 16.0 + CHARACTER * max((len(label) for label, _ in rows), default=0)))
    height = top + 26.0 * len(rows) + BOTTOM
    scale = Scale(x, [mark.value for _, marks in rows for mark in marks], left + 8.0, WIDTH - RIGHT - 8.0)
    parts = [words, *verticals(scale, top, height - BOTTOM)]
    for index, (label, marks) in enumerate(rows):
        down = top + 26.0 * index + 13.0
        parts.append(text(left - 8.0, down + 4.0, cut(label, 36), anchor="end"))
        parts.append(f'<path d="M{left:.1f} {down:.1f}H{WIDTH - RIGHT:.1f}" stroke="{GRID}"/>\n')
        parts += [marker(scale.at(mark.value), down, mark.style) for mark in marks]
    parts.append(text((left + WIDTH) / 2.0, height - 8.0, x.label, colour=GREY, anchor="middle"))
    return svg_document(title, height, "".join(parts))


def _frame(y: Axis, xs: Scale, ys: Scale, top: float, bottom: float, *, numbers: bool) -> str:
    parts = verticals(xs, top, bottom, numbers=numbers)
    for value, words in ys.ticks:
        down = ys.at(value)
        parts.append(f'<path d="M{LEFT:.1f} {down:.1f}H{WIDTH - RIGHT:.1f}" stroke="{GRID}"/>\n')
        parts.append(text(LEFT - 6.0, down + 4.0, words, anchor="end"))
    parts.append(f'<path d="M{LEFT:.1f} {top:.1f}V{bottom:.1f}H{WIDTH - RIGHT:.1f}" fill="none" stroke="{GREY}"/>\n')
    middle = (top + bottom) / 2.0
    turned = f' transform="rotate(-90 14 {middle:.1f})"'
    parts.append(text(14.0, middle, y.label, colour=GREY, anchor="middle", more=turned))
    return "".join(parts)
