"""The benchmark of the dashboard measures what it promises, compares it with its targets, and keeps to the pace of the script."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import web
from benchmarks.api import Service, fill_queue, serving
from tests.web.conftest import lacking


@pytest.fixture
def busy() -> Iterator[Service]:
    """A small service on which something happens all the time."""
    ends = threading.Event()
    with serving("", servers=2) as service:
        fill_queue(service, 20)

        def submit() -> None:
            while not ends.wait(0.3):
                fill_queue(service, 1)

        other = threading.Thread(target=submit)
        other.start()
        try:
            yield service
        finally:
            ends.set()
            other.join()


def test_it_measures_all_that_has_a_target(busy: Service) -> None:
    """Its figures mean nothing here."""
    if web.chromium() is None:
        lacking("Chromium")
    # Another thread: the tests' own browser has an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(web.in_browser, busy, 2.0, repeats=1).result()
    found = [*shown, *web.cost(busy, 2, 2.0), *web.sizes()]
    aims = [(each.unit, each.target) for each in found if each.target is not None]
    assert aims == [("ms", 300.0), ("ms", 1500.0), ("frames/s", 50.0), ("ms", 16.0), ("%", 15.0), ("kB", 300.0)]
    measured = {each.name: each.value for each in found if each.unit in ("ms", "frames/s", "kB")}
    assert [name for name, value in measured.items() if value <= 0.0] == []
    assert found[-1].holds is True
    rows = json.loads(web.as_json(found, 0.5))["figures"]
    assert [row["name"] for row in rows] == [each.name for each in found]
    assert rows[0]["units"] == pytest.approx(rows[0]["value"] / 1e3 / 0.5)


def test_a_figure_is_compared_with_its_target() -> None:
    figures = [
        web.Figure("wait", 20.0, "ms", 16.0, seconds=0.02),
        web.Figure("pan", 50.0, "frames/s", 50.0, most=False),
        web.Figure("size", 299.0, "kB", 300.0),
        web.Figure("beside", 1.0, ""),
    ]
    rows = [row.split() for row in web.table(figures, 0.1).splitlines()[2:]]
    assert rows == [
        ["wait", "20.0", "ms", "<", "16", "missed", "0.200"],
        ["pan", "50.0", "frames/s", "≥", "50", "met"],
        ["size", "299.0", "kB", "<", "300", "met"],
        ["beside", "1.0"],
    ]


def test_the_pace_is_that_of_the_script() -> None:
    assert web.pace() == web.Pace(1.0, 15.0, 0.1, 30.0)
