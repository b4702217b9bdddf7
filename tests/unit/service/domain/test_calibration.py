"""Calibration by hand."""

from service.domain.calibration import LEVELS, coverages


def test_coverage_counts_totals_up_to_each_quantile() -> None:
    # Quantiles of a uniform total from 0 to 100: calibrated for totals that are spread evenly.
    quantiles = [100.0 * level for level in LEVELS]
    even = coverages([(quantiles, total + 0.5) for total in range(100)])
    assert [(each.level, each.observed) for each in even] == [(level, level) for level in LEVELS]
    short = coverages([(quantiles, 95.0), (quantiles, 96.0)])
    assert [each.observed for each in short] == [0.0] * (len(LEVELS) - 1) + [0.5]


def test_without_predictions_there_is_none() -> None:
    assert coverages([]) == []
