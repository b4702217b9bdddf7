"""The benchmarks of placement run, and print what they promise; their sizes here are tiny."""

import pytest

from benchmarks import heavy_edge


def test_the_quality_of_mappings(capsys: pytest.CaptureFixture[str]) -> None:
    heavy_edge.quality(random_gangs=3, pools=20)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["catalogue,"] * 8 + ["random,"] * 4
    for row in rows:
        cases, mean, worst, over = (float(value) for value in row[-4:])
        assert 0.0 <= mean <= worst
        assert cases >= over
        if row[-6:-4] == ["mapping", "used"]:
            assert worst <= 3.0
