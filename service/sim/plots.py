"""Charts as plain SVG text: no dependency, no script, readable in grey and by the colour-blind.

Series differ by colour (Okabe and Ito's palette), dash and marker at once. Equal input gives equal bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b", "#000000")
_DASHES = ("", "7 3", "2 2", "9 3 2 3", "4 4", "12 3", "1 3", "6 2 1 2 1 2")
_MARKERS = ("circle", "square", "triangle", "diamond", "ring", "cross", "plus", "bar")

WIDTH = 680.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 18.0, 34.0, 46.0
_LEGEND_LINE = 18.0
_CHARACTER = 6.6
"""Width of a character of the legend's 12-pixel font, on the generous side."""
_GREY, _GRID, _INK = "#555555", "#dddddd", "#1a1a1a"

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
_DURATION_TICKS_S: tuple[tuple[float, ...], ...] = (
    (1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36e3, 86400.0, 864e3, 864e4, 864e5),
    (
        *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
        *(_MINUTE_S * count for count in (1, 2, 5, 10, 20, 30)),
        *(_HOUR_S * count for count in (1, 2, 3, 6, 12)),
        *(_DAY_S * count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    ),
)
"""Times on a logarithmic axis that a person would choose: coarse ones, and fine ones for a short axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. ``kind``: number, seconds (told in minutes, hours, days) or ratio (told in percent)."""

    label: str
    kind: str = "number"
    log: bool = False
    least: float | None = None
    most: float | None = None


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
class Block:
    """A rectangle of a Gantt chart: ``rows`` rows from ``row`` on. ``notch`` marks an end by preemption."""

    start: float
    end: float
    row: int
    rows: int
    colour: str
    title: str
    notch: bool = False


class _Scale:
    """From values to pixels, with its ticks."""

    def __init__(self, axis: Axis, values: Sequence[float], low: float, high: float) -> None:
        usable = [value for value in values if isfinite(value) and (value > 0.0 or not axis.log)]
        least = axis.least if axis.least is not None else min(usable, default=0.0)
        most = axis.most if axis.most is not None else max(usable, default=1.0)
        if axis.log:
            least = max(least, 1e-9)
            most = max(most, least * 1.5)
        elif most <= least:
            most = least + 1.0
        self._low, self._high, self._log = low, high, axis.log
        self._from, self._to = self._plain(least), self._plain(most)
        self.ticks = _ticks(axis, least, most)

    def _plain(self, value: float) -> float:
        return log10(max(value, 1e-12)) if self._log else value

    def at(self, value: float) -> float:
        """The pixel, never outside the chart."""
        share = (self._plain(value) - self._from) / (self._to - self._from)
        return self._low + min(1.0, max(0.0, share)) * (self._high - self._low)


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would choose: ``45 s``, ``12 min``, ``3.5 h``, ``2 d``."""
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if abs(seconds) >= size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    """At most three digits that matter; thousands with commas."""
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ticks(axis: Axis, least: float, most: float) -> list[tuple[float, str]]:
    tell: Callable[[float], str] = {"seconds": duration, "ratio": lambda value: f"{100.0 * value:.3g}%"}.get(
        axis.kind, _short
    )
    if axis.log:
        return [(value, tell(value)) for value in _log_ticks(axis, least, most)]
    if axis.kind == "seconds":
        # One unit along the axis: "1.25 d" between "20 h" and "40 h" is hard to read.
        sizes = ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"))
        size, unit = next((pair for pair in sizes if most - least >= 2.0 * pair[0]), (1.0, "s"))
        return [(size * tick, f"{_short(tick)} {unit}") for tick in _round_ticks(least / size, most / size)]
    return [(value, tell(value)) for value in _round_ticks(least, most)]


def _log_ticks(axis: Axis, least: float, most: float) -> list[float]:
    if axis.kind == "seconds":
        ladders: Sequence[Sequence[float]] = _DURATION_TICKS_S
    else:
        powers = [10.0**power for power in range(floor(log10(least)), floor(log10(most)) + 1)]
        ladders = (powers, [factor * power for power in powers for factor in (1.0, 2.0, 5.0)])
    values: list[float] = []
    for ladder in ladders:
        if len(values) < 3:
            values = [tick for tick in ladder if least <= tick <= most]
    if len(values) < 2:
        values = [value for value in _round_ticks(least, most) if value > 0.0]
    return values


def _round_ticks(least: float, most: float) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten."""
    raw = (most - least) / 5.0
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= raw * 0.999)
    return [step * count for count in range(ceil(least / step - 1e-9), floor(most / step + 1e-9) + 1)]


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], *, step: bool = False, height: float = 300.0
) -> str:
    """Lines over a common x axis; with ``step`` each value holds until the next x."""
    legend, top = _legend([(each.label, each.style) for each in series], lines=True)
    height += top - _TOP
    xs = _Scale(x, [value for each in series for value in each.xs], _LEFT, WIDTH - _RIGHT)
    ys = _Scale(y, [value for each in series for value in each.ys], height - _BOTTOM, top)
    drawn = "".join(_line(each, xs, ys, step) for each in series)
    return _svg(title, height, legend + _frame(x, y, xs, ys, top, height) + drawn)


def _line(series: Series, xs: _Scale, ys: _Scale, step: bool) -> str:
    colour, dash = PALETTE[series.style % len(PALETTE)], _DASHES[series.style % len(_DASHES)]
    if series.level:
        pixels = [(_LEFT, ys.at(series.ys[0])), (WIDTH - _RIGHT, ys.at(series.ys[0]))]
    else:
        pixels = [(xs.at(a), ys.at(b)) for a, b in zip(series.xs, series.ys, strict=True)]
    path: list[str] = []
    for index, (across, down) in enumerate(pixels):
        if step and index:
            path.append(f"H{across:.1f}V{down:.1f}")
        else:
            path.append(f"{'L' if index else 'M'}{across:.1f} {down:.1f}")
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    wide = 1 if series.level else 2
    drawn = f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="{wide}"{dashes}/>\n' if path else ""
    return drawn + ("".join(_marker(*pixel, series.style) for pixel in pixels) if series.markers else "")


def dot_chart(title: str, x: Axis, rows: Sequence[tuple[str, Sequence[Mark]]], names: Sequence[tuple[str, int]]) -> str:
    """One row a category, one marker a policy; ``names`` are (label, style) for the legend."""
    legend, top = _legend(names, lines=False)
    left = min(260.0, max(_LEFT, 16.0 + _CHARACTER * max((len(label) for label, _ in rows), default=0)))
    height = top + 26.0 * len(rows) + _BOTTOM
    scale = _Scale(x, [mark.value for _, marks in rows for mark in marks], left + 8.0, WIDTH - _RIGHT - 8.0)
    parts = [legend, *_verticals(scale, top, height - _BOTTOM)]
    for index, (label, marks) in enumerate(rows):
        down = top + 26.0 * index + 13.0
        parts.append(_text(left - 8.0, down + 4.0, _cut(label, 36), anchor="end"))
        parts.append(f'<path d="M{left:.1f} {down:.1f}H{WIDTH - _RIGHT:.1f}" stroke="{_GRID}"/>\n')
        parts += [_marker(scale.at(mark.value), down, mark.style) for mark in marks]
    parts.append(_text((left + WIDTH) / 2.0, height - 8.0, x.label, colour=_GREY, anchor="middle"))
    return _svg(title, height, "".join(parts))


def gantt_chart(
    title: str,
    x: Axis,
    blocks: Sequence[Block],
    groups: Sequence[tuple[str, int]],
    keys: Sequence[tuple[str, str]],
) -> str:
    """A row a GPU. ``groups`` are (server, GPUs) from the top, ``keys`` (label, colour) for the legend."""
    legend, top = _key(keys)
    count = sum(rows for _, rows in groups)
    per_row = max(3.0, min(14.0, 420.0 / max(1, count)))
    height = top + per_row * count + _BOTTOM
    scale = _Scale(x, [], _LEFT, WIDTH - _RIGHT)
    parts = [legend, *_verticals(scale, top, height - _BOTTOM)]
    row = 0
    for name, rows in groups:
        down = top + per_row * row
        parts.append(f'<path d="M{_LEFT:.1f} {down:.1f}H{WIDTH - _RIGHT:.1f}" stroke="#999999"/>\n')
        if per_row * rows >= 11.0:
            parts.append(_text(_LEFT - 6.0, down + per_row * rows / 2.0 + 4.0, _cut(name, 10), anchor="end"))
        row += rows
    parts += [_block(block, scale, top, per_row) for block in blocks]
    parts.append(_text((_LEFT + WIDTH) / 2.0, height - 8.0, x.label, colour=_GREY, anchor="middle"))
    return _svg(title, height, "".join(parts))


def _block(block: Block, scale: _Scale, top: float, per_row: float) -> str:
    left, right = scale.at(block.start), scale.at(block.end)
    down, tall = top + per_row * block.row, per_row * block.rows
    notch = f'<path d="M{right:.1f} {down:.1f}v{tall:.1f}" stroke="#000" stroke-width="2"/>' if block.notch else ""
    return (
        f'<g><title>{escape(block.title)}</title><rect x="{left:.1f}" y="{down:.1f}" width="{max(0.4, right - left):.1f}" '
        f'height="{tall:.1f}" fill="{block.colour}" stroke="#fff" stroke-width="0.5"/>{notch}</g>\n'
    )


def _legend(names: Sequence[tuple[str, int]], *, lines: bool) -> tuple[str, float]:
    """The legend above the chart, wrapped, and where the chart begins."""
    parts: list[str] = []
    across, down = 12.0, 20.0
    for label, style in names:
        wide = 38.0 + _CHARACTER * len(label)
        if across + wide > WIDTH and across > 12.0:
            across, down = 12.0, down + _LEGEND_LINE
        if lines:
            dash = _DASHES[style % len(_DASHES)]
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            colour = PALETTE[style % len(PALETTE)]
            parts.append(f'<path d="M{across:.1f} {down - 4.0:.1f}h24" stroke="{colour}" stroke-width="2"{dashes}/>\n')
        else:
            parts.append(_marker(across + 14.0, down - 4.0, style))
        parts.append(_text(across + 30.0, down, label))
        across += wide + 10.0
    return "".join(parts), down + 14.0


def _key(keys: Sequence[tuple[str, str]]) -> tuple[str, float]:
    parts: list[str] = []
    across = 12.0
    for label, colour in keys:
        parts.append(f'<rect x="{across:.1f}" y="10" width="14" height="12" fill="{colour}" stroke="{_GREY}"/>\n')
        parts.append(_text(across + 20.0, 20.0, label))
        across += 34.0 + _CHARACTER * len(label)
    return "".join(parts), _TOP


def _frame(x: Axis, y: Axis, xs: _Scale, ys: _Scale, top: float, height: float) -> str:
    bottom = height - _BOTTOM
    parts = _verticals(xs, top, bottom)
    for value, text in ys.ticks:
        down = ys.at(value)
        parts.append(f'<path d="M{_LEFT:.1f} {down:.1f}H{WIDTH - _RIGHT:.1f}" stroke="{_GRID}"/>\n')
        parts.append(_text(_LEFT - 6.0, down + 4.0, text, anchor="end"))
    parts.append(f'<path d="M{_LEFT:.1f} {top:.1f}V{bottom:.1f}H{WIDTH - _RIGHT:.1f}" fill="none" stroke="{_GREY}"/>\n')
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2.0, height - 8.0, x.label, colour=_GREY, anchor="middle"))
    middle = (top + bottom) / 2.0
    turned = f' transform="rotate(-90 14 {middle:.1f})"'
    parts.append(_text(14.0, middle, y.label, colour=_GREY, anchor="middle", more=turned))
    return "".join(parts)


def _verticals(xs: _Scale, top: float, bottom: float) -> list[str]:
    """Grid lines and numbers of the x axis; numbers that would run into each other are left out."""
    parts: list[str] = []
    free_from = 0.0
    for value, text in xs.ticks:
        across = xs.at(value)
        parts.append(f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{_GRID}"/>\n')
        half = _CHARACTER * len(text) / 2.0
        if across - half >= free_from and across + half <= WIDTH:
            parts.append(_text(across, bottom + 16.0, text, anchor="middle"))
            free_from = across + half + 6.0
    return parts


def _marker(across: float, down: float, style: int) -> str:
    colour, shape = PALETTE[style % len(PALETTE)], _MARKERS[style % len(_MARKERS)]
    x, y = across, down
    if shape in ("circle", "ring"):
        fill = colour if shape == "circle" else "#fff"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>\n'
    path = {
        "square": f"M{x - 5:.1f} {y - 5:.1f}h10v10h-10z",
        "triangle": f"M{x:.1f} {y - 6:.1f}l6 11h-12z",
        "diamond": f"M{x:.1f} {y - 7:.1f}l6 7l-6 7l-6 -7z",
        "cross": f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10",
        "plus": f"M{x - 6:.1f} {y:.1f}h12m-6 -6v12",
        "bar": f"M{x:.1f} {y - 7:.1f}v14",
    }[shape]
    fill = colour if shape in ("square", "triangle", "diamond") else "none"
    return f'<path d="{path}" fill="{fill}" stroke="{colour}" stroke-width="2"/>\n'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(x: float, y: float, text: str, *, colour: str = _INK, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{more}>{escape(text)}</text>\n'


def _svg(title: str, height: float, inner: str) -> str:
    """A picture that tells its subject to a screen reader; :func:`standalone` makes a file of it."""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
        f'height="{height:.0f}" role="img" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{inner}</svg>\n'
    )


def standalone(svg: str) -> str:
    """A chart as a file of its own, which needs the name space that a page implies."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
