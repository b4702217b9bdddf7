"""The report of a comparison: its figures by hand, and its sentences against the numbers."""

import re
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.reports.comparison import comparison_html
from service.reports.comparison_charts import charts
from service.reports.comparison_data import (
    GANTT_JOBS,
    Bar,
    Curve,
    Group,
    Parts,
    RunFigures,
    binned_mean,
    cdf,
    figures,
    fullest_window,
    gang_class,
    gantt_groups,
)
from service.reports.comparison_story import sensitivity, story
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Simulation
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("c", (Server("s1", 2), Server("s2", 2)))
JOBS = (
    WorkloadJob("wide", 0.0, 4, 100.0, user="ada"),
    WorkloadJob("short", 10.0, 1, 20.0, user="ben"),
    WorkloadJob("pair", 40.0, 2, 20.0, user="ada"),
)


def _simulate(policy: str, options: dict[str, str] | None = None, predictor: str = "oracle") -> Simulation:
    chosen = make_policy(policy, options)
    return run(Workload("w", JOBS), CLUSTER, chosen, predictor, SimulationOptions(restart_s=0.0, keep_spans=True))


def _figures(policy: str, predictor: str = "oracle") -> RunFigures:
    return figures(_simulate(policy, predictor=predictor), policy)


def test_spans_are_kept_on_request_and_cover_the_held_time() -> None:
    simulation = _simulate("srsf", {"preemption": "always"})
    wide, short, pair = simulation.outcomes
    # It stops for the short job and for the pair, and holds four GPUs in between.
    assert [(span.start_s, span.end_s) for span in wide.spans] == [(0.0, 10.0), (30.0, 40.0), (60.0, 140.0)]
    assert [(span.start_s, span.end_s) for span in short.spans] == [(10.0, 30.0)]
    assert [share.gpus for share in pair.spans[0].placement.shares] == [2]
    assert all(
        sum(span.end_s - span.start_s for span in outcome.spans) == pytest.approx(outcome.held_s)
        for outcome in simulation.outcomes
    )
    plain = run(Workload("w", JOBS), CLUSTER, make_policy("srsf", {"preemption": "always"}))
    assert all(outcome.spans == () for outcome in plain.outcomes)
    assert plain.outcomes[0].placement == wide.placement


def test_estimate_errors_are_logarithms_of_the_factor() -> None:
    simulation = run(Workload("w", JOBS), CLUSTER, make_policy("sjf"), "noisy:1")
    drawn = [outcome.prediction_log_error for outcome in simulation.outcomes]
    assert all(error is not None and error != 0.0 for error in drawn)
    assert [o.prediction_log_error for o in run(Workload("w", JOBS), CLUSTER, make_policy("sjf")).outcomes] == [0.0] * 3
    without = run(Workload("w", JOBS), CLUSTER, make_policy("las"), "none")
    assert [outcome.prediction_log_error for outcome in without.outcomes] == [None] * 3


def test_figures_of_three_jobs_in_a_row() -> None:
    # First in, first out: 0-100 wide, then the short one and the pair side by side.
    found = _figures("fifo")
    assert found.jct_cdf == Curve((80.0, 100.0, 110.0), (1 / 3, 2 / 3, 1.0))
    assert found.by_gang == (Group("1 GPU", 1, 110.0), Group("2 GPUs", 1, 80.0), Group("3-4 GPUs", 1, 100.0))
    assert [group.label for group in found.by_user] == ["ada", "ben"]
    assert found.by_user[0].mean_jct_s == 90.0
    assert sum(found.busy.ys) * (120.0 / 300) == pytest.approx(4 * 100 + 1 * 20 + 2 * 20)
    assert sum(found.queue.ys) * (120.0 / 300) == pytest.approx(90.0 + 60.0)
    assert found.window_s == (0.0, 120.0)
    assert [bar for bar in found.bars if bar.job_id == "wide"] == [
        Bar(0.0, 100.0, 0, 2, 4, "wide", "ada", False),
        Bar(0.0, 100.0, 2, 2, 4, "wide", "ada", False),
    ]
    assert found.prediction_log_error == 0.0


def test_attempts_that_were_stopped_are_marked() -> None:
    found = figures(_simulate("srsf", {"preemption": "always"}), "srsf")
    wide = [bar for bar in found.bars if bar.job_id == "wide"]
    assert [bar.preempted for bar in wide] == [True, True, True, True, False, False]


TIMES = st.floats(min_value=0.0, max_value=1000.0)


@given(intervals=st.lists(st.tuples(TIMES, TIMES, st.integers(1, 8)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_binned_means_preserve_the_integral(intervals: list[tuple[float, float, int]]) -> None:
    edges = np.linspace(-10.0, 1010.0, 38)
    times = [at for a, b, _ in intervals for at in (min(a, b), max(a, b))]
    steps = [float(step) for _, _, height in intervals for step in (height, -height)]
    means = binned_mean(times, steps, edges)
    area = sum(abs(b - a) * height for a, b, height in intervals)
    assert float((means * np.diff(edges)).sum()) == pytest.approx(area, rel=1e-9, abs=1e-6)


@given(values=st.lists(st.floats(min_value=0.0, max_value=1e9), min_size=1, max_size=900))
@settings(max_examples=50, deadline=None)
def test_distribution_functions_rise_to_one(values: list[float]) -> None:
    curve = cdf(values)
    assert len(curve.xs) <= 200
    assert list(curve.xs) == sorted(curve.xs)
    assert (curve.xs[-1], curve.ys[-1]) == (max(values), 1.0)
    for x, y in zip(curve.xs, curve.ys, strict=True):
        # With ties a quantile stands for one of several equal values.
        assert sum(value < x for value in values) < y * len(values) + 1e-6 <= sum(v <= x for v in values) + 1e-3


def test_gang_classes_and_the_rows_of_a_gantt_chart() -> None:
    assert [gang_class(gpus) for gpus in (1, 2, 3, 4, 8, 9, 32, 33, 4096)] == [
        *("1 GPU", "2 GPUs", "3-4 GPUs", "3-4 GPUs", "5-8 GPUs", "9-16 GPUs", "17-32 GPUs"),
        *("33 GPUs or more", "33 GPUs or more"),
    ]
    assert gantt_groups([("a", 40), ("b", 24), ("c", 1)]) == [("a", 40), ("b", 24)]
    assert gantt_groups([("a", 100), ("b", 1)]) == [("a", 100)]


def test_the_window_is_around_the_largest_backlog_and_the_same_for_every_policy() -> None:
    workload = generate(3, 3 * GANTT_JOBS, gpus=16, load=0.8)
    cluster = Cluster("c", tuple(Server(f"s{index}", 8) for index in range(2)))
    windows = [
        fullest_window(run(workload, cluster, make_policy(name)).outcomes, cluster.gpus) for name in ("fifo", "las")
    ]
    assert windows[0] == windows[1]
    inside = [job for job in workload.jobs if windows[0][0] <= job.submit_time_s <= windows[0][1]]
    assert len(inside) == GANTT_JOBS


def test_the_story_names_winner_saving_and_price() -> None:
    fifo, las, srsf = _figures("fifo"), _figures("las"), figures(_simulate("srsf", {"preemption": "always"}), "srsf")
    told = story([fifo, las, srsf])
    best = min((fifo, las, srsf), key=lambda run: run.result.mean_jct_s)
    assert told.startswith(f"{best.label} wins: ")
    assert f"{best.result.ratio_to_lower_bound:.3f} times the lower bound" in told
    assert f"{best.label} stops jobs {best.result.preemptions} times" in told
    assert story([fifo, replace(fifo, label="other")]).startswith("fifo and other differ by less than 1%")


def test_the_parts_of_the_mean_jct() -> None:
    # First in, first out: waits of 0, 90 and 60 s before runs of 100, 20 and 20 s.
    assert astuple(_figures("fifo").parts) == pytest.approx((50.0, 0.0, 0.0, 140 / 3))
    # Stopped twice, with 5 s without progress after each: the short job and the pair never wait.
    chosen = make_policy("srsf", {"preemption": "always"})
    options = SimulationOptions(restart_s=5.0, keep_spans=True)
    found = figures(run(Workload("w", JOBS), CLUSTER, chosen, "oracle", options), "srsf")
    assert found.parts.wasted_s == pytest.approx(10.0 / 3)
    for each in (found, _figures("las"), _figures("sjf")):
        parts = each.parts
        total_s = parts.waiting_s + parts.wasted_s + parts.slower_s + parts.run_s
        assert total_s == pytest.approx(each.result.mean_jct_s)


def test_the_story_names_savings_and_costs() -> None:
    base = _figures("fifo")
    slow = replace(base, label="slow", parts=Parts(7200.0, 0.0, 100.0, 300.0))
    slow = replace(slow, result=replace(base.result, mean_jct_s=7600.0, ratio_to_lower_bound=4.0))
    quick = replace(base, label="quick", parts=Parts(3600.0, 60.0, 40.0, 300.0))
    quick = replace(quick, result=replace(base.result, mean_jct_s=4000.0, ratio_to_lower_bound=2.0))
    told = story([slow, quick])
    expected = "Against slow a job saves 1 h: 1 h less waiting and 1 min less lost to placement and network, paid with 1 min more"
    assert f"{expected} lost to restarts and repeated work." in told
    assert told.count("Against") == 1


@pytest.mark.parametrize(
    ("p99_s", "said"),
    [
        (100.0, "is no slower than under slow."),
        (104.0, "is 4.0% slower than under slow."),
        (100.01, "is less than 0.1% slower than under slow."),
        (106.0, "takes 1 min 46 s or longer, where slow has 1 min 40 s."),
    ],
)
def test_the_story_tells_a_slower_tail(p99_s: float, said: str) -> None:
    base = _figures("fifo")
    slow = replace(base, label="slow", parts=Parts(7200.0, 0.0, 100.0, 300.0))
    slow = replace(slow, result=replace(base.result, mean_jct_s=7600.0, p99_jct_s=100.0))
    quick = replace(base, label="quick", parts=Parts(3600.0, 0.0, 100.0, 300.0))
    quick = replace(quick, result=replace(base.result, mean_jct_s=4000.0, p99_jct_s=p99_s))
    assert story([slow, quick]).endswith(said)
    three = story([slow, quick, replace(slow, label="third")])
    assert three.endswith("is no slower than under the other policies." if p99_s == 100.0 else said)


def test_one_job_on_one_server_is_singular() -> None:
    one = Cluster("c", (Server("s", 1),))
    done = run(Workload("w", JOBS[1:2]), one, make_policy("fifo"), "oracle", SimulationOptions(keep_spans=True))
    told = comparison_html([figures(done, "fifo")], "w", one)
    assert "1 job of w on cluster c (1 GPU on 1 server);" in told
    assert "0 rows were skipped." in told


def test_a_run_with_unfinished_jobs_never_wins() -> None:
    fifo = _figures("fifo")
    fast = replace(fifo, label="fast", result=replace(fifo.result, mean_jct_s=1.0, ratio_to_lower_bound=None))
    told = story([fast, fifo])
    assert told.startswith("fifo finishes a job after")
    assert told.endswith("fast did not finish all jobs and is not ranked.")
    assert story([fast]).startswith("No run finished all jobs")


def test_a_workload_without_jobs_has_a_report() -> None:
    nothing = run(Workload("w", ()), CLUSTER, make_policy("fifo"), "oracle", SimulationOptions(keep_spans=True))
    runs = [figures(nothing, label) for label in ("a", "b")]
    assert story(runs) == "There is no job to compare."
    assert "<td>-</td>" in comparison_html(runs, "w", CLUSTER)
    assert "jobs left" not in comparison_html(runs, "w", CLUSTER)


def test_sensitivity_compares_the_worst_estimates_with_the_best() -> None:
    exact = _figures("sjf")
    blurred = replace(
        exact,
        result=replace(exact.result, predictor="noisy:1", mean_jct_s=2.0 * exact.result.mean_jct_s),
        prediction_log_error=float(np.log(3.0)),
    )
    told = sensitivity([exact, blurred])
    assert "with noisy:1, off by a factor of 3.00 on average" in told
    assert "sjf 2.00 times" in told
    assert sensitivity([exact]) == ""
    same = replace(blurred, result=replace(exact.result, predictor="noisy:1"))
    assert sensitivity([exact, same]) == "sjf does not depend on the estimates."


def test_the_error_curve_appears_with_several_predictors_only() -> None:
    runs = [_figures(policy, predictor) for policy in ("sjf", "las") for predictor in ("oracle", "noisy:1", "none")]
    slugs = [chart.slug for chart in charts(runs, CLUSTER)]
    assert slugs[:2] == ["prediction-error", "time-parts"]
    assert len(slugs) == len(set(slugs))
    assert "prediction-error" not in [chart.slug for chart in charts(runs[:1], CLUSTER)]
    page = comparison_html(runs, "w", CLUSTER)
    assert "--predictors" not in page
    assert "--predictors oracle,noisy:0.5,noisy:1,noisy:2,none" in comparison_html(runs[:1], "w", CLUSTER)
    assert page == comparison_html(runs, "w", CLUSTER)
    assert "las (noisy:1)" in page
    assert '<p class="story">With predictor oracle: ' in page


def test_several_seeds_have_a_table_of_their_means() -> None:
    runs = [_figures("sjf"), _figures("las")]
    results = [replace(run.result, seed=seed, mean_jct_s=100.0 * (seed + 1)) for run in runs for seed in (0, 1, 2)]
    page = comparison_html(runs, "w", CLUSTER, results)
    assert "<h2>Over 3 seeds</h2>" in page
    assert "The rest of this page shows seed 0." in page
    [first] = re.findall(r'<tr><th scope="row">sjf</th><td>3</td><td>([^<]*)</td><td title="([^"]*)">', page)
    assert first == (f"{runs[0].result.ratio_to_lower_bound:,.3f} ±0.000", "200.0 s")
    assert "Over " not in comparison_html(runs, "w", CLUSTER, [run.result for run in runs])


def test_the_curve_of_promises_appears_where_a_run_makes_some() -> None:
    made = {f"promise {weight}": {"promise_weight": weight} for weight in ("0", "1")}
    runs = [figures(_simulate("promise", options), label) for label, options in made.items()]
    shown = {chart.slug: chart for chart in charts([*runs, _figures("fifo")], CLUSTER)}
    curve = shown["promises"].svg
    assert [label in curve for label in ("promise 0", "promise 1", "fifo")] == [True, True, False]
    assert all(words in curve for words in ("promises kept", "mean lateness", "promised / actual JCT"))
    assert "promises" not in [chart.slug for chart in charts([_figures("fifo")], CLUSTER)]
    page = comparison_html([runs[0], _figures("fifo")], "w", CLUSTER)
    assert "<td>-</td>" in page, "a policy without promises keeps none"


def test_a_workload_without_users_has_no_chart_of_users() -> None:
    jobs = tuple(replace(job, user="") for job in JOBS)
    found = figures(run(Workload("w", jobs), CLUSTER, make_policy("fifo")), "fifo")
    assert found.by_user == ()
    assert "jct-by-user" not in [chart.slug for chart in charts([found], CLUSTER)]


def test_the_chart_of_slowdowns_shows_those_below_one() -> None:
    """A job of 2 s counts as one of 10 s, so at best its slowdown is 0.2; the other waits for nothing either."""
    jobs = (WorkloadJob("a", 0.0, 1, 2.0), WorkloadJob("b", 0.0, 1, 20.0))
    done = run(Workload("w", jobs), CLUSTER, make_policy("fifo"), options=SimulationOptions(keep_spans=True))
    found = figures(done, "fifo")
    assert found.slowdown_cdf.xs == (0.2, 1.0)
    assert done.result.mean_slowdown == 0.6
    (chart,) = (chart for chart in charts([found], CLUSTER) if chart.slug == "slowdown-cdf")
    assert ">0.2<" in chart.svg


def test_a_small_loss_of_one_gang_size_is_reported() -> None:
    slow = _figures("fifo")
    # Every job ends after half the time, so nobody is worse off ...
    quick = replace(
        slow,
        label="quick",
        result=replace(slow.result, policy="quick", mean_jct_s=slow.result.mean_jct_s / 2),
        parts=Parts(*(part / 2 for part in astuple(slow.parts))),
        by_gang=tuple(replace(each, jct_s=each.jct_s / 2) for each in slow.by_gang),
        by_duration=tuple(replace(each, jct_s=each.jct_s / 2) for each in slow.by_duration),
    )
    assert "no gang size is worse off" in story([quick, slow])
    # ... but for one gang size, by a thousandth of what is saved in all.
    loser = slow.by_gang[0]
    lost = replace(loser, jct_s=loser.jct_s + slow.result.mean_jct_s / 1000)
    told = story([replace(quick, by_gang=(lost, *quick.by_gang[1:])), slow])
    assert f"worse off than under fifo are: jobs of {loser.label}" in told
