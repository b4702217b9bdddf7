"""Charts as shapes: what they show follows from documents of the API by hand."""

from datetime import date, timedelta
from math import log
from typing import Any

import pytest

from service.web.charts import (
    LOSSES_MAX,
    STEPS,
    calibration_chart,
    days_chart,
    drift_chart,
    loss_chart,
    time_axis,
    use_chart,
)
from service.web.pages.overview import held_in


def row(day: str, useful: float, wasted: float) -> dict[str, Any]:
    return {"day": day, "useful_gpu_h": useful, "wasted_gpu_h": wasted}


def test_days_without_a_row_have_no_height() -> None:
    chart = days_chart("2026-01-01", "2026-01-04", [row("2026-01-04", 6.0, 2.0), row("2026-01-02", 3.0, 1.0)])
    assert chart is not None
    assert [(bar.lower, bar.upper) for bar in chart.bars] == [(0, 0), (37.5, 12.5), (0, 0), (75.0, 25.0)]
    assert (chart.top, chart.lower, chart.upper) == (8.0, 9.0, 3.0)
    assert [bar.x + bar.width / 2 for bar in chart.bars] == [12.5, 37.5, 62.5, 87.5]
    assert chart.bars[1].title == "2026-01-02: 3.0 useful, 1.0 wasted"


def test_a_long_period_has_several_days_a_bar_and_loses_none() -> None:
    first = date(2025, 1, 1)
    rows = [row((first + timedelta(days=number)).isoformat(), 1.0, 0.5) for number in range(365)]
    chart = days_chart("2025-01-01", "2025-12-31", rows)
    assert chart is not None
    assert len(chart.bars) == 92
    assert chart.bars[0].title == "2025-01-01 to 2025-01-04: 4.0 useful, 2.0 wasted"
    assert chart.bars[-1].title == "2025-12-31: 1.0 useful, 0.5 wasted"
    assert chart.lower == pytest.approx(365.0)


def test_a_period_without_use_has_no_chart() -> None:
    assert days_chart("2026-01-01", "2026-01-04", []) is None


def test_the_use_of_each_step_is_its_mean() -> None:
    day_s = 86_400.0
    step_s = day_s / STEPS
    held = [
        (-5.0, 0.5 * step_s, 4),  # half of the first step
        (2.0 * step_s, 4.0 * step_s, 8),  # steps 2 and 3
        (3.25 * step_s, 3.75 * step_s, 4),  # within step 3, beyond all GPUs
        (95.5 * step_s, 2.0 * day_s, 2),  # half of the last one
        (-9.0, -3.0, 8),  # before it
    ]
    chart = use_chart(0.0, day_s, 8, held)
    assert chart is not None
    assert len(chart.values) == STEPS
    expected = {0: 0.25, 2: 1.0, 3: 1.0, 95: 0.125}
    assert list(chart.values) == pytest.approx([expected.get(number, 0.0) for number in range(STEPS)])
    assert chart.points[2] == (pytest.approx(2.6), 0.0)
    assert chart.path.startswith("0.52,75 ")


def test_a_cluster_without_gpus_has_no_use() -> None:
    assert use_chart(0.0, 1.0, 0, []) is None


def test_open_and_merged_attempts_hold_gpus_too() -> None:
    page = {
        "until": "1970-01-01T00:10:00Z",
        "attempts": {"starts_s": [10.0, 20.0], "ends_s": [30.0, None]},
        "bars": {"attempt": [0, 1, 1], "gpus": [1, 4, 2]},
        "merged": {"starts_s": [5.0], "ends_s": [7.0], "gpus": [8]},
    }
    assert held_in(page) == [(10.0, 30.0, 1), (20.0, 600.0, 4), (20.0, 600.0, 2), (5.0, 7.0, 8)]


def ended(number: int, factor: float) -> dict[str, Any]:
    return {"finished_at": f"2026-01-{number + 1:02}T00:00:00Z", "prediction": {"log_error": log(factor)}}


def test_the_error_over_time_is_of_equally_many_jobs_in_the_order_of_their_ends() -> None:
    jobs = [ended(number, 4.0 if number >= 5 else 0.5) for number in reversed(range(10))]
    chart = drift_chart(jobs)
    assert chart is not None
    assert list(chart.values) == pytest.approx([2.0, 4.0])
    assert [x for x, _ in chart.points] == [25.0, 75.0]
    assert [y for _, y in chart.points] == pytest.approx([66.67, 0.0])
    assert (chart.first, chart.last) == ("2026-01-01T00:00:00Z", "2026-01-10T00:00:00Z")
    assert drift_chart(jobs[:9]) is None, "one point is no course"


def test_calibration_is_drawn_with_both_axes_from_zero_to_one() -> None:
    chart = calibration_chart([{"level": 0.1, "observed": 0.25}, {"level": 0.9, "observed": 0.75}])
    assert chart is not None
    assert list(chart.points) == [(10.0, 75.0), (90.0, 25.0)]
    assert calibration_chart([]) is None


def waiting(start: dict[str, str] | None) -> dict[str, Any]:
    return {"submitted_at": "2026-01-01T00:00:00Z", "waiting_s": 3600.0, "start": start}


def spread(*hours: int) -> dict[str, str]:
    return {name: f"2026-01-01T{hour:02}:00:00Z" for name, hour in zip(("p10", "p50", "p90"), hours, strict=True)}


def test_the_axis_of_a_table_ends_at_its_latest_time() -> None:
    """It is 01:00 now."""
    axis = time_axis([waiting(spread(1, 2, 3)), waiting(None), waiting(spread(2, 4, 5))], "start")
    assert axis is not None
    assert axis.last == "2026-01-01T05:00:00Z"
    assert [axis.place(f"2026-01-01T{hour:02}:00:00Z") for hour in (0, 1, 2, 4, 5)] == [0.0, 0.0, 25.0, 75.0, 100.0]


@pytest.mark.parametrize("start", [None, spread(0, 0, 1)])
def test_a_table_without_a_time_ahead_has_no_axis(start: dict[str, str] | None) -> None:
    assert time_axis([waiting(start)], "start") is None


def reports(*points: tuple[float, float | None]) -> list[dict[str, Any]]:
    return [{"iteration": iteration, "loss": loss} for iteration, loss in points]


def test_losses_lie_between_the_least_and_the_largest_of_all_jobs() -> None:
    chart = loss_chart(7, {3: reports((5, 3.0), (20, 1.0)), 7: reports((2, 2.0), (10, 1.5)), 8: reports((9, 0.1))})
    assert chart is not None
    assert (chart.own.job, chart.own.iterations, chart.own.loss) == (7, 10, 1.5)
    assert chart.own.points == [(10.0, 50.0), (50.0, 75.0)]
    (past,) = chart.past
    assert (past.job, past.points) == (3, [(25.0, 0.0), (100.0, 100.0)])
    assert (chart.iterations, chart.top, chart.bottom, chart.logarithmic) == (20, 3.0, 1.0, False)


def test_losses_far_apart_are_drawn_on_a_logarithmic_scale() -> None:
    chart = loss_chart(7, {7: reports((1, 100.0), (2, 10.0), (4, 1.0))})
    assert chart is not None
    assert chart.logarithmic
    assert chart.own.points == [(25.0, 0.0), (50.0, 50.0), (100.0, 100.0)]
    negative = loss_chart(7, {7: reports((1, 100.0), (2, 10.0), (4, -1.0))})
    assert negative is not None
    assert not negative.logarithmic


def test_what_an_attempt_repeats_is_drawn_once_and_a_flat_loss_has_no_height() -> None:
    chart = loss_chart(7, {7: reports((1, 2.0), (8, 2.0), (4, 9.0), (9, None), (16, 2.0))})
    assert chart is not None
    assert chart.own.points == [(6.25, 0.0), (50.0, 0.0), (100.0, 0.0)]


def test_many_losses_are_thinned_out_to_the_newest_and_one_is_no_curve() -> None:
    chart = loss_chart(7, {7: reports(*((float(at), 1.0 / at) for at in range(1, 1002)))})
    assert chart is not None
    assert len(chart.own.points) <= LOSSES_MAX
    assert chart.own.iterations == 1001
    assert loss_chart(7, {3: reports((1, 2.0), (2, 1.0)), 7: reports((1, 2.0), (2, None))}) is None
