"""Charts are self-contained SVG: well-formed, within the frame, with readable ticks and equal bytes for equal input."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.reports.plots import Block, Mark, Panel, Series, bar_chart, dot_chart, gantt_chart, line_chart, panel_chart
from service.reports.svg import PALETTE, WIDTH, Axis, look, standalone

SVG = "{http://www.w3.org/2000/svg}"


def _root(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(standalone(svg))


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in _root(svg).iter(f"{SVG}text")]


def test_a_line_ends_at_its_last_value() -> None:
    svg = line_chart("t", Axis("x"), Axis("y"), [Series("a", [0.0, 5.0, 10.0], [0.0, 0.0, 4.0], 0)], height=300.0)
    (path,) = [p for p in _root(svg).iter(f"{SVG}path") if p.get("stroke") == PALETTE[0] and "L" in (p.get("d") or "")]
    # Left and bottom of the frame, its middle, right and top.
    assert path.get("d") == "M78.0 254.0L370.0 254.0L662.0 34.0"


def test_a_step_line_is_horizontal_before_it_rises() -> None:
    svg = line_chart("t", Axis("x"), Axis("y"), [Series("a", [0.0, 10.0], [0.0, 4.0], 0)], step=True, height=300.0)
    assert "M78.0 254.0H662.0V34.0" in svg


def test_ticks_of_time_keep_one_unit_and_logarithmic_ones_are_round() -> None:
    texts = _texts(line_chart("t", Axis("time", "seconds"), Axis("y"), [Series("a", [0.0, 108_000.0], [0.0, 1.0], 0)]))
    assert {"0 h", "10 h", "20 h", "30 h"} <= set(texts)
    short = Axis("time", "seconds", log=True)
    texts = _texts(line_chart("t", short, Axis("y"), [Series("a", [1500.0, 9000.0], [0.0, 1.0], 0)]))
    assert {"30 min", "1 h", "2 h"} <= set(texts)


def test_series_differ_by_more_than_colour() -> None:
    series = [Series(f"s{style}", [0.0, 1.0], [0.0, style + 1.0], style, markers=True) for style in range(8)]
    svg = line_chart("t", Axis("x"), Axis("y"), series)
    dashes = [path.get("stroke-dasharray") for path in _root(svg).iter(f"{SVG}path") if path.get("stroke-width") == "2"]
    assert len({dash for dash in dashes if dash}) == 7
    assert [text for text in _texts(svg) if text.startswith("s")] == [each.label for each in series]


def test_64_styles_are_distinct() -> None:
    assert len({look(style) for style in range(64)}) == 64
    assert [look(style)[0] for style in (0, 8)] == [PALETTE[0]] * 2


def test_panels_share_one_axis_and_one_legend() -> None:
    x = Axis("x", least=1.0, named=((4.0, "none"),))
    above = Panel(Axis("cost"), [Series("a", [1.0, 3.0], [1.0, 2.0], 0, markers=True), Series("", [4.0], [1.5], 0)])
    below = Panel(Axis("stops"), [Series("a", [1.0, 3.0], [7.0, 8.0], 0), Series("", [4.0], [7.5], 0)])
    svg = panel_chart("t", x, [above, below], height=300.0)
    words = _texts(svg)
    assert [words.count(word) for word in ("a", "x", "cost", "stops", "none", "1", "4")] == [1, 1, 1, 1, 1, 2, 0]
    # 220 points for both panels and the gap of 20 between them; 3 of 1..4 is two thirds of the width.
    right = f"{78.0 + 584.0 * 2 / 3:.1f}"
    lines = [p.get("d") for p in _root(svg).iter(f"{SVG}path") if "L" in (p.get("d") or "")]
    assert lines == [f"M78.0 134.0L{right} 34.0", f"M78.0 254.0L{right} 154.0"]


def test_the_parts_of_a_bar_are_stacked() -> None:
    keys = [("run", "#111111"), ("wait", "#222222"), ("lost", "#333333")]
    svg = bar_chart("t", Axis("x"), [("one", [10.0, -5.0, 30.0]), ("two", [20.0, 40.0, 20.0])], keys)
    drawn = [r for r in _root(svg).iter(f"{SVG}rect") if r.get("stroke") is None and r.get("x")]
    inner = WIDTH - 78.0 - 18.0
    found = [(float(r.get("x") or 0), float(r.get("width") or 0)) for r in drawn]
    expected = [(0, 10), (10, 0), (10, 30), (0, 20), (20, 40), (60, 20)]
    for (x, wide), (start, many) in zip(found, expected, strict=True):
        assert x == pytest.approx(78.0 + inner * start / 80, abs=0.1)
        assert wide == pytest.approx(inner * many / 80, abs=0.1)
    assert [label for label, _ in keys] == _texts(svg)[:3]


def test_text_in_charts_is_escaped() -> None:
    evil = '<script>"&'
    svgs = (
        line_chart(evil, Axis(evil), Axis(evil), [Series(evil, [1.0], [1.0], 0)]),
        dot_chart(evil, Axis(evil), [(evil, [Mark(1.0, 0)])], [(evil, 0)]),
        gantt_chart(evil, Axis(evil), [Block(0.0, 1.0, 0, 1, "#fff", evil)], [(evil, 4)], [(evil, "#fff")]),
        bar_chart(evil, Axis(evil), [(evil, [1.0])], [(evil, "#fff")]),
    )
    for svg in svgs:
        assert "<script" not in svg
        assert evil in "".join(_root(svg).itertext())


def test_a_gantt_block_covers_its_rows_and_its_time() -> None:
    blocks = [Block(25.0, 50.0, 1, 2, "#123456", "job", notch=True)]
    svg = gantt_chart("t", Axis("x", least=0.0, most=100.0), blocks, [("s1", 4)], [])
    (rect,) = [r for r in _root(svg).iter(f"{SVG}rect") if r.get("fill") == "#123456"]
    inner = WIDTH - 78.0 - 18.0
    assert float(rect.get("x") or 0) == pytest.approx(78.0 + inner / 4, abs=0.1)
    assert float(rect.get("width") or 0) == pytest.approx(inner / 4, abs=0.1)
    assert float(rect.get("height") or 0) == 2 * 14.0
    assert 'stroke="#000"' in svg


@pytest.mark.parametrize("values", [[0.0, 5e-324], [1e18, 1e18], [-3.0, -3.0], [7.0, 7.0 + 1e-12], [0.0, 0.0]])
def test_equal_values_have_an_axis(values: list[float]) -> None:
    svg = line_chart("t", Axis("x"), Axis("y"), [Series("a", [0.0, 1.0], values, 0)])
    assert len({text for text in _texts(svg) if re.search(r"\d", text)}) >= 4


VALUES = st.floats(min_value=-1e12, max_value=1e12)


@given(
    points=st.lists(st.tuples(VALUES, VALUES), max_size=20),
    log=st.booleans(),
    kind=st.sampled_from(["number", "seconds", "ratio"]),
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_drawn_outside_the_frame(points: list[tuple[float, float]], log: bool, kind: str) -> None:
    series = [Series("a", [x for x, _ in points], [y for _, y in points], 0, markers=True)]
    svg = line_chart("t", Axis("x", kind, log=log), Axis("y", kind, log=log), series, height=300.0)
    assert svg == line_chart("t", Axis("x", kind, log=log), Axis("y", kind, log=log), series, height=300.0)
    for path in _root(svg).iter(f"{SVG}path"):
        for across, down in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d") or ""):
            assert 0.0 <= float(across) <= WIDTH
            assert 0.0 <= float(down) <= 300.0
    ticks = [text for text in _texts(svg) if re.search(r"\d", text)]
    assert len(ticks) <= 45
